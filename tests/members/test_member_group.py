"""Expulsion, single-primary mode and changed settings: what follows from the log for everybody."""

from dataclasses import replace

import pytest

from members.departures import Cause
from members.log_records import Appointment, Forgetting, GroupSettings, ViewProposal
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
    versions,
    write,
)

PERIOD_MS = 1_000
LIMIT_MS = 10_000
SINGLE = SETTINGS._replace(single_primary=True, settings_version=2)


def beat(member: Member, now_ms: int) -> None:
    """Has a member report, and read its report back."""
    member.tick(now_ms)
    assert member.report_if_due(now_ms, 0)
    send(member)


def departed(member: Member) -> list[tuple[str, Cause]]:
    """Who has gone, and why."""
    return [(each.name, each.cause) for each in member.departures.named()]


class TestDepartures:
    """Who is not in the view any more stays named, by all alike."""

    def test_an_expelled_member_is_named_until_it_returns(self) -> None:
        member = online(2, 3)
        for now_ms in range(PERIOD_MS, LIMIT_MS + 2 * PERIOD_MS, PERIOD_MS):
            deliver(member, report_of(member, 3, 2 + now_ms, 0, 0))
            beat(member, now_ms)
        assert departed(member) == [("m2", Cause.SILENT)]
        deliver(member, joining(member, 2, run=1))
        assert departed(member) == []

    def test_one_that_leaves_and_one_that_an_operator_expels(self) -> None:
        member, leaving = online(2, 3), mind(2)
        restore(leaving, checkpoint_of(member))
        leaving.leave()
        batch = leaving.publisher.next_batch()
        assert batch is not None
        deliver(member, batch._replace(batch_number=9))
        member.expel("m3")
        send(member)
        assert departed(member) == [("m2", Cause.LEFT), ("m3", Cause.EXPELLED)]

    def test_it_is_dated_by_who_proposes_it(self) -> None:
        member = online(2)
        read_at = Delivered(decided_us=77)
        member.deliver(member.log_sequence + 1, batch_of(2, 2), read_at)
        member.expel("m2")
        send(member)
        assert [each.since_us for each in member.departures.named()] == [77]

    def test_an_operator_has_it_forgotten_by_all(self) -> None:
        member, other = online(2, 3), mind(3)
        restore(other, checkpoint_of(member))
        member.expel("m2")
        send(member, other)
        assert departed(other) == [("m2", Cause.EXPELLED)]
        member.forget("m2")
        send(member, other)
        assert departed(member) == departed(other) == []

    def test_who_is_not_in_the_view_has_nobody_forgotten(self) -> None:
        member = online(2)
        member.expel("m2")
        send(member)
        deliver(member, batch_of(2, 5, controls=[Forgetting("m2")]))
        assert departed(member) == [("m2", Cause.EXPELLED)]


class TestExpulsion:
    """Silence, and what members do about it."""

    def test_a_silent_member_is_suspected_then_expelled(self) -> None:
        member = online(2, 3)
        for now_ms in range(0, LIMIT_MS + 1, PERIOD_MS):
            deliver(member, report_of(member, 3, 2 + now_ms, 0, 0))
            assert member.is_suspected(2) == (now_ms >= 5_000)
            beat(member, now_ms + PERIOD_MS)
            assert not member.is_suspected(3)
        assert names(member) == ["m1", "m3"]

    def test_it_is_proposed_once_for_a_view(self) -> None:
        member = online(2)
        for number in range(2, 20):
            member.tick(number * PERIOD_MS)
            deliver(member, batch_of(1, number))
        batch = member.publisher.next_batch()
        assert batch is not None
        assert batch.controls == [ViewProposal(2, (run_of(1),), Cause.SILENT.value)]

    def test_who_died_while_a_member_was_down_is_expelled_as_well(self) -> None:
        before, member = online(2, 3), mind(1, run=1)
        restore(member, checkpoint_of(before))
        member.caught_up()
        send(member)
        for now_ms in range(PERIOD_MS, LIMIT_MS + 2 * PERIOD_MS, PERIOD_MS):
            deliver(member, report_of(member, 3, 2 + now_ms, 0, 0))
            beat(member, now_ms)
        assert names(member) == ["m1", "m3"]

    def test_nobody_is_expelled_for_an_outage_of_the_log(self) -> None:
        member = online(2)
        beat(member, PERIOD_MS)
        beat(member, 100 * LIMIT_MS)
        assert not member.is_suspected(2)

    def test_an_operator_may_expel_a_member_that_is_well(self) -> None:
        member = online(2, 3)
        member.expel("m3")
        send(member)
        assert names(member) == ["m1", "m2"]

    def test_a_member_gives_up_a_log_that_takes_nothing(self) -> None:
        member = online(2)
        object.__setattr__(member.options, "unreachable_ms", 3_000)
        beat(member, 1_000)
        for now_ms in range(1_000, 4_000, 500):
            member.tick(now_ms)
            assert member.state is MemberState.ONLINE
        member.tick(4_000)
        assert member.state is MemberState.ERROR
        assert "took nothing for 3000 ms" in member.reason

    def test_one_that_was_to_leave_leaves_then(self) -> None:
        member = online(2)
        object.__setattr__(member.options, "unreachable_ms", 3_000)
        member.leave()
        for now_ms in range(0, 3_500, 500):
            member.tick(now_ms)
        assert member.state is MemberState.LEFT

    def test_a_member_that_does_not_read_holds_nothing_against_the_log(self) -> None:
        member = online(2)
        object.__setattr__(member.options, "unreachable_ms", 3_000)
        for now_ms in range(500, 10_000, 500):
            member.tick(now_ms, reads=False)
        assert member.state is MemberState.ONLINE

    def test_time_that_the_process_stood_still_is_not_held_against_the_log(self) -> None:
        member = online(2)
        object.__setattr__(member.options, "unreachable_ms", 3_000)
        member.tick(1_000)
        member.tick(1_000_000)
        assert member.state is MemberState.ONLINE


class TestSettings:
    """Records that change what the group agrees on."""

    def test_the_next_version_counts_and_no_other(self) -> None:
        member = online(2)
        for number, (version, size) in enumerate([(3, 5), (2, 7), (2, 9), (1, 11)], start=2):
            other = SETTINGS._replace(settings_version=version, gtid_assignment_block_size=size)
            deliver(member, batch_of(2, number, controls=[other]))
        assert member.settings.settings_version == 2
        assert member.settings.gtid_assignment_block_size == 7
        assert member.certifier.blocks.block_size == 7

    @pytest.mark.parametrize(
        "fixed", [{"outcomes_max": 2}, {"group": "other"}, {"group_uuid": "other"}]
    )
    def test_what_is_stored_depends_on_some_which_stay(self, fixed: dict[str, object]) -> None:
        member = online(2)
        other = GroupSettings(**{**SETTINGS._asdict(), "settings_version": 2, **fixed})
        deliver(member, batch_of(2, 2, controls=[other]))
        assert member.settings == SETTINGS

    def test_those_from_outside_the_view_do_not_count(self) -> None:
        member = online(2)
        deliver(member, batch_of(3, 2, controls=[SINGLE]))
        assert member.settings == SETTINGS

    def test_of_two_changes_one_counts(self) -> None:
        first, second = online(2), online(2)
        first.change_settings(SETTINGS._replace(gc_window="tight"))
        batch = batch_of(2, 2, controls=[SINGLE])
        deliver(first, batch)
        deliver(second, batch)
        send(first, second)
        assert first.settings == second.settings == SINGLE

    def test_a_member_that_is_allowed_no_more_holds_nobody_up(self) -> None:
        member = online(2, 3)
        closed = SETTINGS._replace(settings_version=2, members_allowed=("m1", "m2"))
        deliver(member, batch_of(2, 2, controls=[closed]))
        member.expel("m2")
        send(member)
        assert names(member) == ["m1", "m3"]

    def test_who_is_not_allowed_does_not_join(self) -> None:
        member = online(2)
        closed = SETTINGS._replace(settings_version=2, members_allowed=("m1", "m2"))
        deliver(member, batch_of(2, 2, controls=[closed]), joining(member, 3))
        assert names(member) == ["m1", "m2"]
        deliver(member, joining(member, 2, run=1))
        assert names(member) == ["m1", "m2"]


class TestSinglePrimary:
    """One member writes; which one, all members know at each place."""

    def test_the_heaviest_is_elected_then_the_first_by_name(self) -> None:
        member = online(2)
        heavy = _weighing(run_of(3), 90)
        proposal = ViewProposal(member.view.view_id, member.view.with_member(heavy))
        deliver(member, batch_of(3, 1, controls=[proposal]), batch_of(2, 2, controls=[SINGLE]))
        assert member.view.primary == "m3"
        deliver(member, batch_of(2, 3, controls=[_without(member, "m3")]))
        assert member.view.primary == "m1"
        assert member.may_write

    def test_a_primary_stays_though_a_heavier_one_joins(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, controls=[SINGLE]))
        heavy = (*member.view.members, _weighing(run_of(3), 90))
        deliver(member, batch_of(2, 3, controls=[ViewProposal(member.view.view_id, heavy)]))
        assert member.view.primary == "m1"

    def test_others_are_refused_at_their_place(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, controls=[SINGLE, Appointment("m2")]))
        assert not member.may_write
        ended: list[Submission] = []
        member.publisher.submit(Submission([write(0, 1)], ended.append))
        member.publisher.submit(Submission([], ended.append))
        batch = member.publisher.next_batch()
        assert batch is not None
        delivered = deliver(member, batch)
        assert versions(delivered) == []
        assert [each.outcomes for each in delivered.turned_away] == [[None]]
        assert [each.transactions for each in ended] == [[]], "a mark ends at its place"
        assert versions(deliver(member, batch_of(2, 3, [write(0, 1)]))) == [1]

    def test_a_stranger_is_not_appointed_nor_anybody_in_multi_primary_mode(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, controls=[Appointment("m2")]))
        assert member.view.primary == ""
        member.change_settings(SETTINGS._replace(single_primary=True))
        member.appoint("m9")
        send(member)
        assert member.view.primary == "m1"

    def test_back_in_multi_primary_mode_all_may_write(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, controls=[SINGLE, Appointment("m2")]))
        back = SETTINGS._replace(settings_version=3)
        deliver(member, batch_of(2, 3, controls=[back]))
        assert member.view.primary == ""
        assert member.may_write


def _weighing(member: ViewMember, weight: int) -> ViewMember:
    return replace(member, weight=weight)


def _without(member: Member, name: str) -> ViewProposal:
    return ViewProposal(member.view.view_id, member.view.without_member(name))
