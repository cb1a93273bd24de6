"""What a member takes in: nothing in most states, and no more than may wait."""

import pytest

from groupcert.certifier.errors import LogFull, NotServing, Overloaded
from groupcert.members.core import admission
from groupcert.members.core.admission import check_admitted, why_not
from groupcert.members.core.publisher import Submission
from groupcert.members.core.views import MemberState
from groupcert.members.errors.membership import NotPrimary
from tests.members.state_machines import SETTINGS, batch_of, deliver, online, write

WRITES = [write(0, 1), write(0, 2)]


def test_a_member_that_is_not_the_primary_takes_marks_and_names_the_primary() -> None:
    member = online(2)
    check_admitted(member, WRITES)
    single = SETTINGS._replace(settings_version=2, single_primary=True)
    deliver(member, batch_of(2, 2, controls=[single]))
    check_admitted(member, WRITES)
    member.view = member.view.with_primary("m2")
    check_admitted(member, [])
    with pytest.raises(NotPrimary, match="send it to m2 m2:1"):
        check_admitted(member, WRITES)
    member.view = member.view.in_mode(single_primary=False)
    assert isinstance(why_not(member), NotPrimary)


def test_a_member_that_leaves_or_is_out_takes_nothing() -> None:
    member = online(2)
    member.publisher.turn_away()
    with pytest.raises(NotServing, match="m1 is about to leave its group") as caught:
        check_admitted(member, [])
    assert caught.value.ordered == "nothing"
    member.fail(MemberState.ERROR, "expelled")
    with pytest.raises(NotServing, match="m1 is ERROR"):
        check_admitted(member, [])
    assert str(getattr(why_not(member), "ordered", "")) == "perhaps"


def test_a_member_whose_log_has_no_space_takes_neither_transactions_nor_marks() -> None:
    member = online(2)
    member.publisher.note_log_full("no space left on device")
    for transactions in (WRITES, []):
        with pytest.raises(
            LogFull, match=r"no space left on device\), and nothing of this attempt was"
        ):
            check_admitted(member, transactions)
    member.publisher.turn_away()
    with pytest.raises(NotServing):
        check_admitted(member, [])
    member = online(2)
    member.publisher.note_log_full("")
    check_admitted(member, WRITES)


def test_no_more_waits_than_may_but_one_of_any_size_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITING_MAX", 3)
    member = online(2)
    member.publisher.submit(Submission(WRITES, lambda ended: None))
    check_admitted(member, WRITES[:1])
    with pytest.raises(Overloaded, match="2 transactions wait for the log, the limit is 3"):
        check_admitted(member, WRITES)
    monkeypatch.setattr(admission, "WAITING_BYTES_MAX", 3 * 200)
    check_admitted(member, WRITES[:1])
    monkeypatch.setattr(admission, "WAITING_BYTES_MAX", 3 * 200 - 1)
    with pytest.raises(Overloaded, match="400 bytes of transactions wait for the log, the limit"):
        check_admitted(member, WRITES[:1])
    check_admitted(online(2), WRITES)
