"""What is a valid message of a member: each rule of `members/log_validity.py`, at its edge.

Method: a mind with three members gets a message as the next one of its log. One that breaks a rule
must leave everything but the place in the log and the count as it was, transactions in the same
message included.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from certifier.checkpoint import dump
from certifier.errors import ForeignLog, UnsupportedFormat
from members.batch_numbers import NUMBERS_AHEAD_MAX
from members.log_records import (
    Abandonment,
    Appointment,
    Control,
    Fragment,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    Message,
    Skip,
    StableReport,
    Unreadable,
    ViewProposal,
)
from members.member import Member
from members.member_checkpoint import checkpoint_of, restore
from members.member_state import Delivered, MemberState
from members.publisher import Submission
from members.views import ViewMember
from tests.members.minds import (
    SETTINGS,
    batch_of,
    deliver,
    joining,
    mind,
    names,
    online,
    report_of,
    run_of,
    send,
    write,
)

CHANGE = SETTINGS._replace(settings_version=2)
STRANGER = 9


def group() -> Member:
    """m1 of three members, with two transactions; the next batch of m2 has number 4."""
    member = online(2, 3)
    deliver(member, batch_of(2, 2, [write(0, 1)]), batch_of(2, 3, [write(1, 2)]))
    return member


def everything(member: Member) -> str:
    """All that members agree on but the place, and what was skipped."""
    stored = {**checkpoint_of(member), "log_sequence": 0, "skipped": ()}
    outcomes = [key.hex() for key, _ in member.outcomes]
    found = (stored, dump(member.certifier), outcomes, member.certifier.digest().hex())
    return json.dumps(found)


def why(member: Member, message: Message) -> str:
    """Why a message is skipped, which changes nothing; empty: it is taken."""
    before, total, state = everything(member), member.skipped.total, member.state
    into = Delivered()
    member.deliver(member.log_sequence + 1, message, into)
    if member.skipped.total == total:
        assert not into.skipped
        return ""
    assert everything(member) == before
    assert not (into.entries or into.ended or into.fragments or into.dropped)
    assert (into.skipped, member.state) == ([member.skipped.last], state)
    assert member.skipped.last.log_sequence == member.log_sequence
    return member.skipped.last.why


def of_member(*controls: Control, number: int = 4) -> LogBatch:
    """A message of m2, with a transaction, too."""
    return batch_of(2, number, [write(2, 7)], controls=controls)


def view_of(*numbers: int) -> ViewProposal:
    """A proposal to follow the view of `group`."""
    return ViewProposal(3, tuple(map(run_of, numbers)))


@pytest.mark.parametrize("format_version", [0, 2])
def test_what_cannot_be_read_is_skipped_unless_a_member_wrote_it(format_version: int) -> None:
    member = group()
    junk = Unreadable("it is junk", "m2", STRANGER, 4, format_version)
    assert why(member, junk) == "it is junk"
    own = junk._replace(incarnation=2)
    if not format_version:
        assert why(member, own) == "it is junk"
        return
    before, place = everything(member), member.log_sequence
    with pytest.raises(UnsupportedFormat, match=f"message {place + 1} of the log, by m2, has form"):
        member.deliver(place + 1, own, Delivered())
    assert (everything(member), member.log_sequence) == (before, place)
    member.skip_sequence = place + 1
    assert why(member, own) == "nobody could read it, and operators had it skipped"


WRONG_SETTINGS = {
    "a window": (CHANGE._replace(gc_window="junk"), "settings: gc_window is 'junk': expected"),
    "a block": (CHANGE._replace(gtid_assignment_block_size=0), "settings: gtid_assignment_block"),
    "an earlier version": (SETTINGS._replace(outcomes_max=0), "settings: outcomes_max is 0"),
    "a later version": (CHANGE._replace(settings_version=3), "settings have version 3: present"),
    "a group": (CHANGE._replace(group="other"), "settings change what a group keeps for ever"),
    "outcomes": (CHANGE._replace(outcomes_max=7), "settings change what a group keeps for ever"),
}


@pytest.mark.parametrize(("settings", "text"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_settings_that_cannot_be_do_not_count(settings: GroupSettings, text: str) -> None:
    assert why(group(), of_member(settings)).startswith(text)


def test_settings_that_came_too_late_have_no_effect_and_are_no_news() -> None:
    member = group()
    assert not why(member, of_member(SETTINGS._replace(outcomes_max=7)))
    assert member.settings == SETTINGS


WRONG_PARTS = {
    "nobody": view_of(),
    "a stranger": view_of(1, 2, 3, STRANGER),
    "a stranger for a member": view_of(1, 2, STRANGER),
    "another run": ViewProposal(3, (run_of(1), run_of(2), run_of(3, run=1))),
    "one twice": view_of(1, 2, 2, 3),
    "another order": view_of(3, 2, 1),
    "another address": ViewProposal(3, (replace(run_of(1), address="evil:1"), run_of(2))),
    "neither the sender nor another": view_of(1),
}


@pytest.mark.parametrize("proposal", WRONG_PARTS.values(), ids=WRONG_PARTS)
def test_a_member_of_the_view_only_takes_others_or_itself_out_of_it(
    proposal: ViewProposal,
) -> None:
    assert why(group(), of_member(proposal)).startswith("it proposes a view ")


@pytest.mark.parametrize("proposal", [view_of(2), view_of(1, 3), view_of(1, 2), view_of(1, 2, 3)])
def test_a_member_of_the_view_may_take_others_or_itself_out_of_it(proposal: ViewProposal) -> None:
    member = group()
    assert not why(member, of_member(proposal))
    assert member.view.members == proposal.members


def test_the_last_member_may_leave() -> None:
    member = online()
    member.leave()
    send(member)
    assert (names(member), member.state) == ([], MemberState.LEFT)
    assert not member.skipped.total


def test_no_view_follows_one_that_is_to_come() -> None:
    ahead = ViewProposal(4, (run_of(1),))
    for number in (2, STRANGER):
        text = why(group(), batch_of(number, 4, controls=[ahead]))
        assert text == "it proposes what follows view 4: present is view 3"


def test_a_proposal_that_came_too_late_has_no_effect_and_is_no_news() -> None:
    member = group()
    late = ViewProposal(2, (run_of(STRANGER),))
    assert not why(member, of_member(late))
    assert not why(member, batch_of(STRANGER, 1, controls=[late]))
    assert names(member) == ["m1", "m2", "m3"]


WRONG_REPORTS = {
    "more than is certified": (StableReport(3, 0, 1, b""), "it reports versions 3 as applied and"),
    "stable before it is applied": (StableReport(1, 2, 1, b""), "it reports versions 1 as applied"),
    "a digest of what is to come": (StableReport(1, 1, 6, b""), "it reports to have read mess"),
    "what is to come on disk": (StableReport(1, 1, 1, b"", 6), "it reports to have read message 6"),
    "a long digest": (StableReport(1, 1, 1, bytes(65)), "it reports a digest or chain of more"),
    "a long chain": (StableReport(1, 1, 1, b"", 1, 1, bytes(65)), "it reports a digest or chain"),
}


@pytest.mark.parametrize(("report", "text"), WRONG_REPORTS.values(), ids=WRONG_REPORTS)
def test_a_report_is_of_what_was_before_it(report: StableReport, text: str) -> None:
    member = group()
    assert member.log_sequence == 5
    assert why(member, of_member(report)).startswith(text)
    assert not why(member, report_of(member, 2, 4, 2, 2))


def test_who_is_appointed_has_a_name() -> None:
    assert why(group(), of_member(Appointment("a b"))).startswith("it appoints 'a b', which is no")
    assert not why(group(), of_member(Appointment("m7"), Abandonment(2**63), Skip(7)))


def test_a_message_bears_its_members_name() -> None:
    batch = of_member()._replace(member="m3")
    assert why(group(), batch) == "it bears the name 'm3', its run is one of m2"


def test_a_number_is_not_far_above_the_last_one() -> None:
    member = group()
    assert why(member, of_member(number=2**63)).startswith(f"batch {2**63} is more than 65536 aft")
    assert why(member, of_member(number=3 + NUMBERS_AHEAD_MAX + 1))
    assert not why(member, of_member(number=3 + NUMBERS_AHEAD_MAX))
    assert not why(member, of_member(number=4)), "what repeats has no effect, and is no news"
    assert member.certifier.window.newest_version == 3


STRANGE: dict[str, Sequence[Control]] = {
    "reports": [StableReport(0, 0, 0, b"")],
    "changes settings": [CHANGE],
    "appoints": [Appointment("m1")],
    "gives up": [Abandonment(1)],
    "expels all": [ViewProposal(3, ())],
    "expels all others": [ViewProposal(3, (run_of(STRANGER),))],
    "brings another one": [view_of(1, 2, 3, 8, STRANGER)],
    "has another name": [ViewProposal(3, (*map(run_of, (1, 2, 3)), replace(run_of(9), name="z")))],
    "has no address": [ViewProposal(3, (*map(run_of, (1, 2, 3)), replace(run_of(9), address="")))],
    "expels in the second place": [Skip(1), ViewProposal(3, ())],
}


@pytest.mark.parametrize("controls", STRANGE.values(), ids=STRANGE)
def test_a_stranger_does_nothing_but_join(controls: Sequence[Control]) -> None:
    assert why(group(), batch_of(STRANGER, 1, controls=controls))


@pytest.mark.parametrize("number", [0, NUMBERS_AHEAD_MAX + 1])
def test_a_stranger_joins_with_a_small_number(number: int) -> None:
    member = group()
    batch = joining(member, STRANGER)._replace(batch_number=number)
    assert why(member, batch) == f"its run joins with batch {number}: expected 1 to 65536"
    assert not why(member, joining(member, STRANGER))
    assert names(member) == ["m1", "m2", "m3", "m9"]


def test_a_stranger_has_no_transactions_and_no_fragments() -> None:
    assert why(group(), batch_of(STRANGER, 1, [write(0, 1)])).endswith("9 is not in the view")
    assert why(group(), LogBatch("m9", STRANGER, 1, fragments=[Fragment(1, 0, b"")]))
    assert not why(group(), batch_of(STRANGER, 1, controls=[Skip(7)]))


def test_what_a_run_had_on_its_way_when_it_left_has_no_effect_and_is_no_news() -> None:
    member = group()
    late: list[Control] = [CHANGE, StableReport(9, 9, 99, b""), Appointment("m1"), Abandonment(1)]
    deliver(member, batch_of(2, 4, controls=[view_of(1, 3)]))
    assert not why(member, batch_of(2, 5, [write(2, 7)], controls=late))
    assert (member.settings, member.certifier.window.newest_version) == (SETTINGS, 2)
    restored = mind(1)
    restore(restored, checkpoint_of(member))
    assert not why(restored, batch_of(2, 6, [write(2, 7)]))
    assert why(member, batch_of(2, 6, controls=[ViewProposal(4, ())]))


def test_junk_before_the_group_makes_none() -> None:
    member = mind()
    first = ViewProposal(0, (run_of(2),))
    assert "has no settings" in why(member, batch_of(2, 1, controls=[first]))
    junk = SETTINGS._replace(gc_window="junk")
    assert "gc_window" in why(member, batch_of(2, 1, controls=[junk, first]))
    assert "is not in the view" in why(member, batch_of(2, 1, controls=[SETTINGS, CHANGE]))
    assert not why(member, batch_of(2, 1, controls=[SETTINGS, SETTINGS, first]))
    assert (names(member), member.settings) == (["m2"], SETTINGS)


def test_settings_may_come_before_the_first_view() -> None:
    member = mind()
    assert not why(member, batch_of(2, 1, controls=[SETTINGS]))
    assert not why(member, joining(member, 3))
    assert (names(member), member.settings) == (["m3"], SETTINGS)


def test_a_log_that_makes_another_group_is_not_read() -> None:
    member = mind()
    other = batch_of(2, 1, controls=[SETTINGS._replace(group="other")])
    with pytest.raises(ForeignLog):
        member.deliver(1, other, Delivered())
    assert member.log_sequence == 0


def test_what_was_skipped_is_known_after_a_restart() -> None:
    member = group()
    why(member, of_member(number=2**63))
    why(member, Unreadable("it is junk", "x" * 100))
    assert member.skipped.total == 2
    assert member.skipped.last.claimed_member == f"'{'x' * 80}'… (100 characters)"
    restored = mind()
    restore(restored, json.loads(json.dumps(checkpoint_of(member))))
    assert restored.skipped.dump() == member.skipped.dump()
    earlier = {**checkpoint_of(member), "skipped": ()}
    restored = mind()
    restore(restored, earlier)  # type: ignore[arg-type]  # what an earlier release has stored
    assert restored.skipped.total == 0


class TestImpostors:
    """Somebody else writes under a member's run."""

    @staticmethod
    def member() -> tuple[Member, list[Submission]]:
        """m1 in a view with m2, and what ended of what is submitted to it."""
        member = mind(by_hand=False)
        member.caught_up()
        send(member)
        deliver(member, joining(member, 2))
        return member, []

    @staticmethod
    def submit(member: Member, ended: list[Submission]) -> LogBatch:
        """A batch of m1 on its way."""
        transaction = LoggedTransaction(b"id", 0, [7])
        member.publisher.submit(Submission([transaction], ended.append))
        batch = member.publisher.next_batch()
        assert batch is not None
        member.publisher.note_encoded(batch.batch_number, b"as it is sent")
        return batch._replace(encoded=b"as it is sent")

    def test_a_number_that_was_never_sent_makes_the_member_fall_out(self) -> None:
        member, _ = self.member()
        forged = batch_of(1, 60_000, [write(0, 1)])
        assert not why(member, forged), "who cannot know takes it, and so does who can"
        assert member.certifier.window.newest_version == 1
        assert member.state is MemberState.ERROR
        assert "bears the mark of its run, and is not its own" in member.reason

    def test_other_contents_do_and_no_client_is_told_of_their_outcome(self) -> None:
        member, ended = self.member()
        batch = self.submit(member, ended)
        forged = batch._replace(transactions=[write(0, 1)], encoded=b"other bytes")
        delivered = deliver(member, forged)
        assert not (delivered.ended or delivered.turned_away or ended)
        assert member.state is MemberState.ERROR
        deliver(member, batch)
        assert not ended, "a repetition now"
        assert len(member.publisher.abandon()) == 1, "unknown: its client asks again"

    def test_the_own_message_is_known_by_its_bytes(self) -> None:
        member, ended = self.member()
        deliver(member, self.submit(member, ended))
        assert [each.version for each in ended] == [1]
        assert member.state is MemberState.ONLINE

    def test_what_is_skipped_harms_nobody(self) -> None:
        member, ended = self.member()
        batch = self.submit(member, ended)
        assert why(member, batch._replace(batch_number=2**63, encoded=b""))
        assert why(member, Unreadable("it is junk", "m1", 1, batch.batch_number, 0, b"junk"))
        deliver(member, batch)
        assert ended
        assert member.state is MemberState.ONLINE

    def test_a_member_whose_own_message_is_skipped_falls_out(self) -> None:
        member, ended = self.member()
        batch = self.submit(member, ended)
        member.skip_sequence = member.log_sequence + 1
        deliver(member, batch)
        assert not ended
        assert member.state is MemberState.ERROR
        assert member.reason.startswith("the group has skipped message 3 of it (nobody could read")
        assert len(member.publisher.abandon()) == 1

    def test_one_that_is_leaving_has_left(self) -> None:
        member, _ = self.member()
        member.leave()
        deliver(member, batch_of(1, 60_000))
        assert member.state is MemberState.LEFT
        deliver(member, batch_of(1, 60_001))
        assert member.state is MemberState.LEFT


def test_a_stranger_may_have_any_other_weight_and_name() -> None:
    member = group()
    heavy = ViewMember(name="z-1", incarnation=77, address="[::1]:1", weight=2**32 - 1)
    proposal = ViewProposal(3, member.view.with_member(heavy))
    assert not why(member, LogBatch("z-1", 77, 1, (), [proposal]))
    assert names(member)[-1] == "z-1"
