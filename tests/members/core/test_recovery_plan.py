"""What a gap means, how far a copy is, and what a member has that the log has not."""

import pytest

from groupcert.certifier.errors import LogGap
from groupcert.members.core.recovery_plan import check_not_ahead, why_gap
from groupcert.members.core.recovery_progress import RecoveryProgress, readable
from groupcert.members.errors.recovery import ExtraTransactions, LogTrimmed
from groupcert.members.total_order.port import LogIdentity, LogState
from tests.members.state_machines import SETTINGS, batch_of, deliver, online, write

LOG = LogState(
    identity=LogIdentity(name="log", created="now"),
    first_sequence=5,
    last_sequence=9,
    replicas=1,
    durable=True,
    message_bytes_max=1,
)


def test_a_gap_before_the_beginning_of_the_log_was_trimmed() -> None:
    trimmed = why_gap(LogGap(expected=4, found=5), LOG)
    assert isinstance(trimmed, LogTrimmed)
    gap = LogGap(expected=6, found=8)
    assert why_gap(gap, LOG) is gap


def test_progress_reads_as_a_sentence() -> None:
    progress = RecoveryProgress(
        donor="m2", bytes_done=516_000_000, bytes_total=1_200_000_000, bytes_per_second=57e6
    )
    assert str(progress) == "43 % of 1.2 GB from m2, 12 s left"
    assert progress.seconds_left == 12
    assert str(RecoveryProgress(donor="m2")) == "0 % of 0 B from m2"
    assert RecoveryProgress(donor="m2").seconds_left is None
    assert str(RecoveryProgress()) == "looking for a donor"
    assert readable(5e13) == "50.0 TB"


def test_a_member_that_has_more_than_the_log_names_what_that_is() -> None:
    ahead = online(2)
    deliver(ahead, batch_of(2, 2, [write(0, 1)]), batch_of(2, 3, [write(1, 2), write(1, 3)]))
    check_not_ahead(ahead, ahead.log_sequence)
    with pytest.raises(ExtraTransactions) as raised:
        check_not_ahead(ahead, ahead.log_sequence - 1)
    assert raised.value.extra == f"{SETTINGS.group_uuid}:2-3"
    last = ahead.log_sequence - 1
    assert raised.value.lacking == f"the log, which ends at {last}, before {last + 1},"
    check_not_ahead(online(2), 0)
