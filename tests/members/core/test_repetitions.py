"""Transactions that would be certified once more are found before they go into the log.

What becomes of those that are in it, `tests/testdata/members/forgotten.txt` draws.
"""

import pytest

from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.member import Member
from groupcert.members.core.repetitions import passes_again
from tests.members.state_machines import SETTINGS, batch_of, deliver, online, write

GROUP = SETTINGS.group_uuid


@pytest.fixture
def forgetful() -> Member:
    """A member that remembers two of five transactions, and has forgotten three."""
    member = online(2, settings=SETTINGS._replace(outcomes_max=2))
    known = [write(number, transaction_id=b"%d" % number) for number in range(5)]
    deliver(member, batch_of(2, 2, known))
    assert member.outcomes.forgotten_version == 3
    return member


@pytest.mark.parametrize(
    ("logged", "passes"),
    [
        (write(0, transaction_id=b"0"), True),
        (write(2, transaction_id=b"other"), True),
        (write(3, transaction_id=b"other"), False),
        (write(0, transaction_id=b"4"), False),
        (write(0, 1, transaction_id=b"0"), False),
        (write(0), False),
        (write(0, transaction_id=b"0")._replace(gtid=Gtid(GROUP, 1)), False),
        (write(0, transaction_id=b"0")._replace(snapshot=GtidSet.parse(f"{GROUP}:1-2")), True),
        (write(0, transaction_id=b"0")._replace(snapshot=GtidSet.parse(f"{GROUP}:1-3")), False),
        (write(0, transaction_id=b"0")._replace(read_set=[7]), True),
    ],
    ids="same perhaps since known rows nameless gtid old new reads".split(),
)
def test_what_has_no_rows_and_may_be_forgotten_passes_again(
    forgetful: Member, logged: LoggedTransaction, passes: bool
) -> None:
    assert passes_again(forgetful.certifier, forgetful.outcomes, logged) == passes


def test_nothing_passes_again_while_nothing_is_forgotten() -> None:
    member = online(2)
    assert not passes_again(member.certifier, member.outcomes, write(0, transaction_id=b"0"))
