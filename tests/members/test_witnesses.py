"""Whether a joiner believes the log: what others have read, and how many of them say so."""

import pytest

from certifier.errors import DigestMismatch, ForeignLog
from members.recovery_errors import LogCutShort
from members.total_order import SHORTER_MS_MAX, LogIdentity, LogState
from members.views import View
from members.witnesses import ALONE_MS, Judgement, Progress, Step, Witnesses
from tests.members.minds import run_of

LOG = LogIdentity(name="g", created="today")
SAME, OTHER = b"\x01", b"\x02"
ALL = (1, 2, 3)


def said(number: int, log_sequence: int = 9, digest: bytes = SAME, **more: object) -> Progress:
    """What member `m<number>` answers."""
    answer = Progress(f"m{number}", "g", str(LOG), log_sequence, digest, True)
    return answer._replace(**more)  # type: ignore[arg-type]  # fields of it


class Joiner:
    """Member m3, which has read a log of nine messages."""

    def __init__(self, *members: int, replicas: int = 1) -> None:
        self.view = View(view_id=len(members), members=tuple(map(run_of, members)))
        state = LogState(
            identity=LOG,
            first_sequence=1,
            last_sequence=9,
            replicas=replicas,
            durable=True,
            message_bytes_max=1,
        )
        self.witnesses = Witnesses(run_of(3, run=1), "g", state, began_ms=1_000)
        self.digests = {9: SAME}
        self.log_sequence = 9

    def hears(self, *answers: Progress) -> None:
        for each in answers:
            self.witnesses.note(f"{each.name}:1", each)

    def judge(self, last_sequence: int | None = 9, *, after_ms: int = 0) -> Judgement:
        return self.witnesses.judge(
            self.view,
            last_sequence=last_sequence,
            log_sequence=self.log_sequence,
            digest_at=lambda sequence: self.digests.get(sequence, b""),
            now_ms=1_000 + after_ms,
        )


def test_asked_are_the_others_of_the_view_and_the_seeds() -> None:
    witnesses = Joiner(*ALL).witnesses
    seeds = ("m2:1", "m4:1", "m3:1")
    assert witnesses.addresses(Joiner(*ALL).view, seeds) == ["m1:1", "m2:1", "m4:1"]


@pytest.mark.parametrize(
    ("view", "answers", "step"),
    [
        ((), (), Step.JOIN),
        ((3,), (), Step.JOIN),
        ((1,), (), Step.ASK),
        ((1,), (1,), Step.JOIN),
        ((1, 2), (1,), Step.ASK),
        ((1, 2), (1, 2), Step.JOIN),
        ((1, 3), (), Step.ASK),
        ((1, 3), (1,), Step.JOIN),
        (ALL, (), Step.ASK),
        (ALL, (2,), Step.JOIN),
        (ALL, (4,), Step.ASK),
        ((1, 2, 3, 4), (1,), Step.ASK),
        ((1, 2, 3, 4), (1, 4), Step.JOIN),
    ],
)
def test_a_majority_of_the_view_is_enough_with_the_joiner(
    view: tuple[int, ...], answers: tuple[int, ...], step: Step
) -> None:
    joiner = Joiner(*view)
    joiner.hears(*map(said, answers))
    assert joiner.judge().step is step


def test_on_one_server_it_waits_for_an_operator_and_says_for_whom_else() -> None:
    joiner = Joiner(*ALL)
    joiner.witnesses.note("m1:1", "UNREACHABLE")
    step, reason = joiner.judge(after_ms=1_000 * ALONE_MS)
    assert step is Step.ASK
    assert reason == (
        "waits for m1 (m1:1: UNREACHABLE), m2 (m2:1: not asked yet) to say how far they have read, "
        "1 of them will do, since 3000 s, as the log is on 1 server(s); or for an operator's word "
        "that the log is whole: `groupcert group rejoin --trust-log --address m3:1`"
    )
    joiner.hears(said(1))
    assert joiner.judge() == Judgement(Step.JOIN)


def test_servers_that_agree_among_themselves_need_no_witness_after_a_while() -> None:
    joiner = Joiner(*ALL, replicas=3)
    assert joiner.judge(after_ms=ALONE_MS - 1).step is Step.ASK
    step, reason = joiner.judge(after_ms=ALONE_MS)
    assert step is Step.JOIN
    assert "no longer waits for m1 (m1:1: not asked yet), m2" in reason


@pytest.mark.parametrize("view", [(), (3,)])
def test_seeds_are_waited_for_a_little_where_the_view_has_nobody_else(view: tuple[int]) -> None:
    joiner = Joiner(*view)
    joiner.witnesses.note("m2:1", "UNREACHABLE")
    assert joiner.judge(after_ms=ALONE_MS - 1) == Judgement(Step.ASK, "waits for seeds: m2:1")
    assert joiner.judge(after_ms=ALONE_MS).step is Step.JOIN
    joiner.hears(said(2))
    assert joiner.judge().step is Step.JOIN


def test_who_has_read_nothing_before_knows_nothing() -> None:
    """It has read what is left, as the joiner has: two empty members are no majority."""
    joiner = Joiner(*ALL)
    joiner.hears(said(2, vouches=False))
    step, reason = joiner.judge()
    assert step is Step.ASK
    assert "m2 (m2:1: it has read nothing itself before)" in reason
    joiner.hears(said(1, vouches=False))
    assert joiner.judge().step is Step.JOIN, "nobody is left to be asked"


@pytest.mark.parametrize(
    "answer",
    [said(2, group="another"), said(3)],
    ids=["of another group", "of itself"],
)
def test_an_answer_of_somebody_else_does_not_count(answer: Progress) -> None:
    joiner = Joiner(*ALL)
    joiner.witnesses.note("m2:1", answer)
    assert joiner.judge().step is Step.ASK
    joiner.witnesses.note("m2:1", said(2))
    assert joiner.judge().step is Step.JOIN


def test_the_log_is_read_to_its_end_before_its_last_view_counts() -> None:
    joiner = Joiner(3)
    joiner.log_sequence = 8
    assert joiner.judge() == Judgement(Step.READ, "reading the log: 8 of 9 messages")
    joiner.log_sequence = 9
    assert joiner.judge(20).step is Step.JOIN, "the end moves, and is not run after"


def test_it_reads_as_far_as_the_others_have() -> None:
    joiner = Joiner(*ALL)
    joiner.hears(said(1, 9), said(2, 11))
    assert joiner.judge(11) == Judgement(Step.READ, "reading the log: 9 of 11 messages")
    joiner.log_sequence = 11
    assert joiner.judge(11).step is Step.JOIN


@pytest.mark.parametrize("number", [2, 4])
def test_who_has_read_more_than_the_log_has_keeps_the_joiner_out(number: int) -> None:
    """Whether it is in the last view that is left, or a seed."""
    joiner = Joiner()
    joiner.hears(said(number, 12))
    step, reason = joiner.judge()
    assert step is Step.ASK
    assert reason.startswith(f"the log ends at 9, before what member m{number} has read, 12: ")
    assert joiner.judge(after_ms=SHORTER_MS_MAX - 1).step is Step.ASK
    with pytest.raises(LogCutShort):
        joiner.judge(after_ms=SHORTER_MS_MAX)


def test_a_log_that_was_shorter_for_a_moment_is_believed() -> None:
    joiner = Joiner(*ALL)
    joiner.hears(said(2, 12))
    assert joiner.judge().step is Step.ASK
    assert joiner.judge(12, after_ms=9).step is Step.READ
    assert joiner.judge(after_ms=SHORTER_MS_MAX).step is Step.ASK


def test_the_time_begins_anew_once_the_log_did_not_answer() -> None:
    joiner = Joiner(*ALL)
    joiner.hears(said(2, 12))
    assert joiner.judge().step is Step.ASK
    assert joiner.judge(None, after_ms=9) == Judgement(Step.ASK, "the log does not answer")
    assert joiner.judge(after_ms=SHORTER_MS_MAX).step is Step.ASK


def test_another_log_at_a_member_of_the_group_is_named() -> None:
    joiner = Joiner(*ALL)
    joiner.hears(said(1, log=""), said(2, log="g created before"))
    with pytest.raises(ForeignLog, match="as member m2 has it"):
        joiner.judge()


@pytest.mark.parametrize(
    ("answers", "is_fenced"),
    [
        ([said(1, digest=OTHER)], True),
        ([said(1, digest=OTHER), said(2)], False),
        ([said(1, digest=OTHER), said(2, digest=OTHER), said(4)], True),
        ([said(1, digest=b"")], False),
        ([said(1, 8, digest=OTHER)], False),
        ([said(1, 0, digest=OTHER)], False),
    ],
    ids=["one of one", "one of two", "two of three", "no digest", "long past", "nothing read"],
)
def test_a_joiner_that_most_disagree_with_is_fenced(
    answers: list[Progress], is_fenced: bool
) -> None:
    joiner = Joiner(*ALL)
    joiner.digests[0] = SAME
    joiner.hears(*answers)
    if is_fenced:
        with pytest.raises(DigestMismatch, match="digest at position 9 is 01 here and 02 at mem"):
            joiner.judge()
    else:
        assert joiner.judge().step is Step.JOIN
