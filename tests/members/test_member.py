"""A member's mind: what follows from the log, and from nothing else.

Aim: each promise of the design's sections 4 and 5 that needs no clock and no thread. Messages are
made by hand (`minds.py`), so that each test names the order that it is about; `tests/sim` makes
orders by chance.
"""

import pytest

from applier.relay_queue import RelayEntry
from applier.source_header import SourceHeader
from certifier.errors import DigestMismatch, ForeignLog
from certifier.gtid_set import GtidSet
from members.log_records import LogBatch, LoggedTransaction, StableReport, ViewProposal
from members.member import Member
from members.member_state import Delivered, MemberState
from members.membership_errors import NameTaken
from members.publisher import Submission
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


def state(member: Member) -> MemberState:
    """The member's state now."""
    return member.state


def submit(member: Member, *transactions: LoggedTransaction) -> list[Submission]:
    """Submits transactions together; the list has the submission once it has ended."""
    ended: list[Submission] = []
    member.publisher.submit(Submission(transactions, ended.append))
    return ended


def reported(member: Member) -> StableReport:
    """The report that the member's next batch carries."""
    batch = send(member)
    (report,) = batch.controls
    assert isinstance(report, StableReport)
    return report


class TestViews:
    """Bootstrap, joining, leaving, expulsion."""

    def test_the_first_member_makes_the_group_and_its_settings(self) -> None:
        member = mind()
        member.caught_up()
        send(member)
        assert member.state is MemberState.ONLINE
        assert member.view.members == (run_of(1),)
        assert member.settings == SETTINGS

    def test_of_two_founders_one_makes_the_group_and_the_other_joins_it(self) -> None:
        first, second = mind(1), mind(2, settings=SETTINGS._replace(outcomes_max=2))
        for member in (first, second):
            member.caught_up()
        batches = [first.publisher.next_batch(), second.publisher.next_batch()]
        for member in (first, second):
            deliver(member, *(batch for batch in batches if batch))
        assert names(first) == names(second) == ["m1"]
        assert state(second) is MemberState.JOINING
        send(second, first)
        assert names(first) == names(second) == ["m1", "m2"]
        assert state(second) is MemberState.ONLINE
        assert second.settings == first.settings == SETTINGS

    def test_of_two_joiners_the_later_one_asks_again(self) -> None:
        founder, second, third = online(), mind(2), mind(3)
        for member in (second, third):
            deliver(member, *founders_batches())
            member.caught_up()
        lost = third.publisher.next_batch()
        send(second, founder, third)
        for member in (founder, second, third):
            deliver(member, *([lost] if lost else []))
            assert names(member) == ["m1", "m2"]
        send(third, founder, second)
        assert founder.view == second.view == third.view
        assert names(founder) == ["m1", "m2", "m3"]

    def test_a_joiner_whose_proposal_lost_is_not_disturbed_by_its_copy(self) -> None:
        founder, joiner = online(), mind(2)
        deliver(joiner, *founders_batches())
        joiner.caught_up()
        lost = joiner.publisher.next_batch()
        assert lost is not None
        for member in (founder, joiner):
            deliver(member, joining(founder, 3) if member is founder else third_joins())
            deliver(member, lost, lost)
        assert state(joiner) is MemberState.JOINING
        send(joiner, founder)
        assert state(joiner) is MemberState.ONLINE

    def test_catching_up_again_asks_for_nothing(self) -> None:
        member = online()
        member.caught_up()
        assert member.publisher.next_batch() is None

    def test_a_restarted_member_takes_the_place_of_its_earlier_run(self) -> None:
        member = online(2)
        deliver(member, joining(member, 2, run=1))
        assert member.view.members == (run_of(1), run_of(2, run=1))
        late = batch_of(2, 2, [write(0, 1)])
        assert versions(deliver(member, late)) == []
        fresh = batch_of(2, 2, [write(0, 1)], run=1)
        assert versions(deliver(member, fresh)) == [1]

    def test_a_view_change_is_a_relay_entry_that_runs_alone(self) -> None:
        member = online()
        delivered = deliver(member, joining(member, 2))
        (entry,) = delivered.entries
        header = SourceHeader(view_id=2)
        assert entry == RelayEntry(entry.position, 0, None, 0, 0, False, b"", header)

    def test_an_expelled_member_stops_serving(self) -> None:
        member = online(2)
        without_me = ViewProposal(member.view.view_id, (run_of(2),))
        deliver(member, batch_of(2, 2, controls=[without_me]))
        assert member.state is MemberState.ERROR
        assert "it rejoins" in member.reason

    def test_a_member_whose_name_another_process_takes_fences_itself(self) -> None:
        member = online(2)
        with pytest.raises(NameTaken, match="another process serves as m1, at m1:1"):
            deliver(member, joining(member, 1, run=1))

    def test_a_member_leaves_by_a_view_without_it(self) -> None:
        member = online(2)
        member.leave()
        send(member)
        assert member.view.members == (run_of(2),)

    def test_a_member_that_leaves_asks_again_after_another_view(self) -> None:
        member = online(2)
        member.leave()
        overtaken = member.publisher.next_batch()
        assert overtaken is not None
        deliver(member, joining(member, 3), overtaken)
        assert member.view.member(1) is not None
        send(member)
        assert member.view.members == (run_of(2), run_of(3))

    def test_leaving_a_view_that_it_is_not_in_asks_for_nothing(self) -> None:
        member = mind()
        member.leave()
        assert member.publisher.next_batch() is None

    def test_a_member_that_gave_up_serves_no_more_when_its_view_arrives(self) -> None:
        member = mind()
        member.caught_up()
        member.fail(MemberState.LEFT, "stopped")
        send(member)
        assert member.state is MemberState.LEFT

    def test_a_view_without_anybody_can_be_followed(self) -> None:
        member = online()
        member.leave()
        send(member)
        assert names(member) == []
        assert member.applied_everywhere_version == 0
        deliver(member, joining(member, 2))
        assert names(member) == ["m2"]

    def test_settings_of_another_group_fence_the_member(self) -> None:
        member = mind()
        with pytest.raises(ForeignLog, match="other"):
            deliver(member, batch_of(2, 1, controls=[SETTINGS._replace(group="other")]))


class TestBatches:
    """Messages that come twice, late, or from where they may not."""

    def test_a_repeated_batch_counts_once(self) -> None:
        member = online(2)
        batch = batch_of(2, 2, [write(0, 1)])
        assert versions(deliver(member, batch, batch)) == [1]

    def test_an_overtaken_batch_counts_never(self) -> None:
        member = online(2)
        later, earlier = batch_of(2, 3, [write(0, 1)]), batch_of(2, 2, [write(0, 2)])
        assert versions(deliver(member, later, earlier)) == [1]

    def test_own_transactions_that_were_overtaken_are_ordered_again(self) -> None:
        member = online()
        first = submit(member, *(write(0, item) for item in range(200)))
        overtaken, batch = member.publisher.next_batch(), member.publisher.next_batch()
        assert overtaken is not None
        assert batch is not None
        deliver(member, batch, overtaken)
        assert not first
        send(member)
        assert [outcome and outcome.verdict for outcome in first[0].outcomes] == [1] * 200

    def test_an_answer_is_given_up_where_nobody_waits(self) -> None:
        member = online()
        submission = submit(member, write(0, 1))
        batch = member.publisher.next_batch()
        assert batch is not None
        member.publisher.abandon()
        assert versions(deliver(member, batch)) == [1]
        assert not submission

    def test_strangers_and_the_expelled_are_refused_alike_and_leave_nothing(self) -> None:
        member = online(2)
        digest = member.certifier.digest()
        deliver(member, batch_of(2, 2, controls=[ViewProposal(2, (run_of(1),))]))
        for number in (2, 3):
            batch = batch_of(number, 3, [write(0, 1, transaction_id=b"id")])
            assert versions(deliver(member, batch)) == []
        assert member.outcomes.get(b"id") is None
        assert member.certifier.digest() == digest

    def test_an_expelled_member_turns_its_clients_away(self) -> None:
        member = online(2)
        ended = submit(member, write(0, 1))
        deliver(member, batch_of(2, 2, controls=[ViewProposal(2, (run_of(2),))]))
        batch = member.publisher.next_batch()
        assert batch is not None
        delivered = deliver(member, batch)
        assert versions(delivered) == []
        assert [each.outcomes for each in delivered.turned_away] == [[None]]
        assert not ended

    def test_a_report_from_outside_the_view_changes_nothing(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, [write(0, 1)]), report_of(member, 3, 1, 1, 1))
        assert member.report_of(3) == (0, 0)


class TestTransactions:
    """Local and remote ones, marks, and the client's ids."""

    def test_a_transaction_that_comes_again_is_answered_and_not_certified_again(self) -> None:
        member = online(2)
        first = submit(member, write(0, 1, transaction_id=b"id"))
        send(member)
        batch = batch_of(2, 2, [write(0, 1, transaction_id=b"id")])
        again = submit(member, write(0, 1, transaction_id=b"id"))
        assert versions(deliver(member, batch)) == []
        send(member)
        assert first[0].outcomes == again[0].outcomes
        assert member.counters.repeated == 2

    def test_a_conflict_is_remembered_too(self) -> None:
        member = online(2)
        lost = write(0, 1, transaction_id=b"lost")
        deliver(member, batch_of(2, 2, [write(0, 1), lost]))
        newer = lost._replace(snapshot=1)
        assert versions(deliver(member, batch_of(2, 3, [newer]))) == []

    def test_local_transactions_have_no_stamps_and_remote_ones_have(self) -> None:
        member = online(2)
        submit(member, write(0, 1))
        send(member)
        member.publisher.submit(Submission([write(1, 2)], lambda _: None))
        local = deliver(member, member.publisher.next_batch() or batch_of(1, 9)).entries
        remote = deliver(member, batch_of(2, 2, [write(1, 3)])).entries
        stamps = [(entry.local, entry.sequence_number) for entry in (*local, *remote)]
        assert stamps == [(True, 0), (False, 2)]

    def test_a_mark_ends_at_its_place_with_the_version_there(self) -> None:
        member = online(2)
        ended = submit(member)
        deliver(member, batch_of(2, 2, [write(0, 1), write(0, 2)]))
        send(member)
        assert (ended[0].version, ended[0].outcomes) == (2, [])
        assert ended[0].log_sequence == member.log_sequence

    def test_history_is_kept_only_where_it_is_asked_for(self) -> None:
        for record_history in (False, True):
            member = online(2, record_history=record_history)
            delivered = deliver(member, batch_of(2, 2, [write(0, 1)]))
            assert len(delivered.noted) == record_history

    def test_what_has_to_be_stored_can_be_put_together(self) -> None:
        member = online(2, record_history=True)
        stored = Delivered()
        for number in (2, 3):
            stored.absorb(deliver(member, batch_of(2, number, [write(0, number)])))
        assert versions(stored) == [1, 2]
        assert [version for _, _, version, _, _ in stored.noted.transactions] == [1, 2]


class TestHeaders:
    """What the binary log will have to know of a transaction."""

    def test_a_local_transaction_holds_its_rows_since_its_commit_was_asked_for(self) -> None:
        member = online()
        snapshots, visible = (0, 1, 0), (0, 0, 2)
        entries = []
        for number, (snapshot, version) in enumerate(zip(snapshots, visible, strict=True)):
            submission = Submission([write(snapshot, number)], lambda ended: None)
            submission.locked_since = version
            member.publisher.submit(submission)
            batch = member.publisher.next_batch()
            assert batch is not None
            entries += deliver(member, batch).entries
        assert [entry.header.locked_since for entry in entries] == [0, 1, 2]

    def test_a_remote_one_in_effect_since_its_snapshot(self) -> None:
        member = online(2)
        elsewhere = GtidSet.parse(f"{SETTINGS.group_uuid}:1")
        writes = [write(0, 1), write(1, 2), write(0, 3)._replace(snapshot=elsewhere)]
        delivered = deliver(member, batch_of(2, 2, writes))
        assert [entry.header.locked_since for entry in delivered.entries] == [0, 1, None]

    def test_one_that_nobody_waits_for_any_longer_since_its_snapshot(self) -> None:
        member = online()
        submission = Submission([write(0, 1)], lambda ended: None)
        submission.locked_since = 9
        member.publisher.submit(submission)
        batch = member.publisher.next_batch()
        assert batch is not None
        member.publisher.abandon()
        (entry,) = deliver(member, batch).entries
        assert entry.header.locked_since == 0

    def test_it_prepares_when_it_is_delivered(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, [write(0, 1), write(0, 2)]))
        member.committed(1)
        (entry,) = deliver(member, batch_of(2, 3, [write(0, 3)])).entries
        assert entry.header.commit_parent == 1

    def test_write_set_and_domain_come_with_it(self) -> None:
        member = online(2)
        logged = write(0, 1, 7)._replace(domain_id=4)
        (entry,) = deliver(member, batch_of(2, 2, [logged])).entries
        assert (tuple(entry.header.items), entry.header.domain_id) == ((1, 7), 4)


class TestReports:
    """How far members are, and what follows from that."""

    def test_the_stable_set_is_the_smallest_of_the_view_and_is_collected(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, [write(0, item) for item in range(5)]))
        deliver(member, report_of(member, 1, 2, 5, 4))
        assert member.certifier.stable_version == 0
        deliver(member, report_of(member, 2, 3, 3, 2))
        assert member.certifier.stable_version == 2
        assert member.applied_everywhere_version == 3

    def test_nothing_is_collected_that_this_place_has_not_certified(self) -> None:
        member = online()
        deliver(member, report_of(member, 1, 2, 9, 9))
        assert member.certifier.stable_version == 0

    def test_a_report_that_was_overtaken_takes_nothing_back(self) -> None:
        member = online()
        deliver(member, batch_of(1, 2, [write(0, item) for item in range(5)]))
        deliver(member, report_of(member, 1, 3, 5, 5), report_of(member, 1, 4, 3, 3))
        assert member.report_of(1) == (5, 5)
        assert member.applied_everywhere_version == 5

    def test_a_member_that_is_gone_is_waited_for_no_more(self) -> None:
        member = online(2)
        deliver(member, batch_of(2, 2, [write(0, 1)]), report_of(member, 1, 2, 1, 1))
        assert member.applied_everywhere_version == 0
        deliver(member, batch_of(1, 3, controls=[ViewProposal(2, (run_of(1),))]))
        assert member.applied_everywhere_version == 1
        assert member.certifier.stable_version == 1

    def test_a_member_reports_after_its_period(self) -> None:
        member = online()
        deliver(member, batch_of(1, 2, [write(0, 1)]))
        member.committed(1)
        assert not member.report_if_due(PERIOD_MS - 1, 1)
        assert member.report_if_due(PERIOD_MS, 1)
        assert reported(member)[:3] == (1, 1, 2)

    def test_a_member_without_news_says_that_it_is_alive(self) -> None:
        member = online()
        deliver(member, batch_of(1, 2, [write(0, 1)]))
        member.committed(1)
        assert member.report_if_due(PERIOD_MS, 0)
        assert not member.report_if_due(2 * PERIOD_MS - 1, 0)
        assert member.report_if_due(2 * PERIOD_MS, 0)

    def test_what_is_not_visible_is_not_reported_as_stable(self) -> None:
        member = online()
        deliver(member, batch_of(1, 2, [write(0, 1), write(0, 2)]))
        member.committed(1)
        member.committed(0)
        assert member.report_if_due(PERIOD_MS, 2)
        assert reported(member)[:2] == (1, 1)

    def test_many_items_make_a_member_report_at_once(self) -> None:
        member = online(stable_items=3)
        deliver(member, batch_of(1, 2, [write(0, 1, 2)]))
        member.committed(1)
        assert not member.report_if_due(1, 1)
        deliver(member, batch_of(1, 3, [write(1, 3)]))
        assert member.report_if_due(1, 1)
        member.committed(2)
        assert not member.report_if_due(2, 2)

    def test_a_report_that_was_asked_for_comes_as_soon_as_the_version_is_visible(self) -> None:
        member = online()
        asking = write(0, 1)._replace(report_applied=True)
        later = write(0, 2)._replace(report_applied=True)
        deliver(member, batch_of(1, 2, [write(0, 3), asking, write(0, 4), later]))
        due = []
        for version in range(5):
            member.committed(version)
            due.append(member.report_if_due(1, 0))
        assert due == [False, False, True, True, True]
        deliver(member, batch_of(1, 3, [write(4, 5)]))
        member.committed(5)
        assert not member.report_if_due(1, 0)

    def test_only_a_member_that_serves_reports(self) -> None:
        member = mind()
        deliver(member, batch_of(1, 1))
        assert not member.report_if_due(PERIOD_MS, 1)


class TestDigests:
    """Who disagrees with most of the group must not go on."""

    WRONG = b"\x01" * 8

    def test_a_member_that_most_disagree_with_fences_itself(self) -> None:
        member = online(2, 3)
        deliver(member, report_of(member, 2, 2, 0, 0, self.WRONG))
        with pytest.raises(DigestMismatch) as raised:
            deliver(member, report_of(member, 3, 2, 0, 0, self.WRONG))
        assert raised.value.member == "m3"
        assert raised.value.mine == member.certifier.digest().hex()
        assert raised.value.theirs == self.WRONG.hex()

    def test_most_go_on_though_one_disagrees(self) -> None:
        member = online(2, 3)
        for number in (2, 3, 4):
            deliver(member, report_of(member, 2, number, 0, 0, self.WRONG))
        assert member.state is MemberState.ONLINE

    def test_one_of_two_that_disagree_cannot_know_who_is_right(self) -> None:
        member = online(2)
        with pytest.raises(DigestMismatch):
            deliver(member, report_of(member, 2, 2, 0, 0, self.WRONG))

    def test_who_agrees_again_or_is_gone_does_not_count(self) -> None:
        member = online(2, 3)
        deliver(member, report_of(member, 2, 2, 0, 0, self.WRONG))
        deliver(member, report_of(member, 2, 3, 0, 0))
        deliver(member, report_of(member, 3, 2, 0, 0, self.WRONG))
        without_third = ViewProposal(member.view.view_id, (run_of(1), run_of(2)))
        deliver(member, batch_of(1, 2, controls=[without_third]))
        deliver(member, joining(member, 3, run=1))
        with pytest.raises(DigestMismatch):
            for number in (2, 13):
                name = run_of(number % 10, number // 10)
                report = StableReport(0, 0, member.log_sequence, self.WRONG)
                deliver(member, LogBatch(name.name, name.incarnation, 9, (), [report]))

    def test_a_report_on_a_place_that_is_not_known_any_more_agrees(self) -> None:
        member = online(2)
        old = StableReport(0, 0, 0, self.WRONG)
        deliver(member, batch_of(2, 2, controls=[old]))
        assert member.state is MemberState.ONLINE


def founders_batches() -> list[LogBatch]:
    """What m1 wrote to make the group."""
    founder = mind()
    founder.caught_up()
    return [send(founder)]


def third_joins() -> LogBatch:
    """The message by which m3 joins m1."""
    return joining(online(), 3)
