"""From the log or from a copy, from whom, and how far: each with its reason."""

from pathlib import Path

import pytest

from certifier.errors import LogGap
from members.config import MemberConfig
from members.recovery_choice import (
    Candidate,
    RecoveryProgress,
    check_not_ahead,
    check_start,
    choose_donor,
    plan_recovery,
    readable,
    why_gap,
    why_none,
)
from members.recovery_errors import ExtraTransactions, LogTooLong, LogTrimmed
from members.total_order import LogIdentity, LogState
from tests.members.minds import SETTINGS, batch_of, deliver, online, write


def member(name: str, *, state: str = "ONLINE", certified: int = 10, lacks: int = 0) -> Candidate:
    return Candidate(name, f"{name}:1", state, certified, certified - lacks)


def log_of(first: int, last: int) -> LogState:
    return LogState(
        identity=LogIdentity(name="log", created="now"),
        first_sequence=first,
        last_sequence=last,
        replicas=1,
        durable=True,
        message_bytes_max=1,
    )


def config(**settings: object) -> MemberConfig:
    values: dict[str, object] = {
        "group": "g",
        "member": "m1",
        "data_folder": Path("x"),
        "log_servers": ("nats://127.0.0.1:1",),
        **settings,
    }
    return MemberConfig.model_validate(values)


@pytest.mark.parametrize(
    ("first", "last", "has", "messages_max", "knows_members", "copy", "reason"),
    [
        (1, 9, 0, 100, True, False, "the log reaches back, 9 messages are to be read"),
        (4, 9, 3, 100, True, False, "the log reaches back, 6 messages are to be read"),
        (5, 9, 3, 100, True, True, "the log begins at 5, after 4, which comes next"),
        (5, 9, 3, 0, False, True, "the log begins at 5, after 4, which comes next"),
        (1, 500, 0, 100, True, True, "500 messages of the log are more than 100: a copy is"),
        (1, 500, 0, 100, False, False, "the log reaches back, 500 messages"),
        (1, 500, 0, 0, True, False, "the log reaches back, 500 messages"),
        (1, 500, 400, 100, True, False, "the log reaches back, 100 messages"),
        (10, 9, 9, 100, True, False, "the log reaches back, 0 messages"),
    ],
)
def test_the_log_serves_where_it_reaches_back_and_is_not_too_long(
    first: int,
    last: int,
    has: int,
    messages_max: int,
    knows_members: bool,
    copy: bool,
    reason: str,
) -> None:
    plan = plan_recovery(first, last, has, messages_max=messages_max, knows_members=knows_members)
    assert plan.copy == copy
    assert plan.reason.startswith(reason)


def test_a_start_says_why_it_goes_by_the_log() -> None:
    assert check_start(log_of(1, 9), 9, config()) == (
        "the log reaches back, 0 messages are to be read"
    )


def test_a_start_that_the_log_does_not_reach_is_no_gap() -> None:
    with pytest.raises(LogTrimmed) as raised:
        check_start(log_of(5, 9), 3, config())
    assert (raised.value.expected, raised.value.first) == (4, 5)


def test_a_log_that_became_shorter_is_a_gap() -> None:
    with pytest.raises(LogGap):
        check_start(log_of(1, 9), 10, config())


def test_a_gap_before_the_beginning_of_the_log_was_trimmed() -> None:
    trimmed = why_gap(LogGap(expected=4, found=5), log_of(5, 9))
    assert isinstance(trimmed, LogTrimmed)
    gap = LogGap(expected=6, found=8)
    assert why_gap(gap, log_of(5, 9)) is gap


def test_a_long_log_is_read_by_those_who_know_nobody() -> None:
    with pytest.raises(LogTooLong):
        check_start(log_of(1, 50), 0, config(recovery_log_messages_max=49, seeds=("h:1",)))
    assert check_start(log_of(1, 50), 0, config(recovery_log_messages_max=49))


def test_the_member_that_lacks_least_is_the_donor() -> None:
    choice = choose_donor([member("m1", lacks=5), member("m2", lacks=1)], asker="m3")
    assert choice is not None
    assert choice.donor.name == "m2"
    assert choice.reason == "m2 at m2:1 is ONLINE and lacks 1 transactions (m1 lacks 5)"


def test_what_others_have_certified_counts_as_lacking() -> None:
    behind = member("m1", certified=4)
    choice = choose_donor([behind, member("m2", lacks=2)], asker="m3")
    assert choice is not None
    assert choice.donor.name == "m2"


def test_of_equal_donors_the_first_by_name_gives() -> None:
    candidates = [member("m4"), member("m2"), member("m1", lacks=3), member("m5")]
    choice = choose_donor(candidates, asker="m3")
    assert choice is not None
    assert choice == choose_donor(reversed(candidates), asker="m3")
    assert choice.reason == (
        "m2 at m2:1 is ONLINE and lacks 0 transactions, as m4 and m5 does: the first by name"
    )
    pair = choose_donor([member("m4"), member("m2")], asker="m3")
    assert pair is not None
    assert pair.reason.endswith("as m4 does: the first by name")


def test_neither_the_asker_nor_who_failed_nor_who_is_not_online_gives() -> None:
    candidates = [
        member("m1", state="RECOVERING"),
        member("m2"),
        member("m3"),
        member("m4", lacks=9),
    ]
    choice = choose_donor(candidates, asker="m3", failed=["m2:1"])
    assert choice is not None
    assert choice.donor.name == "m4"
    assert choice.reason.endswith("lacks 9 transactions, the only member that can give its state")
    assert choose_donor(candidates, asker="m3", failed=["m2:1", "m4:1"]) is None


def test_who_finds_no_donor_says_why() -> None:
    candidates = [member("m1", state="FENCED"), member("m2"), member("m3", state="RECOVERING")]
    assert why_none(candidates, "m3", {"m2:1": "it died"}) == (
        "m2:1: it died; m1 at m1:1 is FENCED"
    )
    assert why_none([], "m3", {}) == "there is nobody else"


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
