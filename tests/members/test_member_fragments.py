"""Large transactions in a member's mind: certified where their record comes, if all of it is there.

The simulation has the rest: crashes, overtaken batches, clients that hang up.
"""

import json

from applier.fragments import FragmentSet
from certifier.records import Outcome, Verdict
from members.fragment_sets import SET_FRAGMENTS_MAX
from members.log_records import (
    Abandonment,
    Fragment,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    ViewProposal,
)
from members.member import Member
from members.member_checkpoint import checkpoint_of, restore
from members.member_state import Delivered
from members.publisher import Submission
from tests.members.minds import SETTINGS, batch_of, deliver, mind, online, run_of, send

SET = (2, 1)
"""The first set of member m2."""


def fragments(batch_number: int, *places: int) -> LogBatch:
    """Fragments of m2's first large transaction."""
    pieces = [Fragment(1, place, b"x") for place in places]
    return batch_of(2, batch_number)._replace(fragments=pieces)


def large(pieces: int, snapshot: int = 0, transaction_id: bytes = b"") -> LoggedTransaction:
    """m2's first large transaction, of so many fragments."""
    reference = FragmentSet(*SET, pieces, pieces, bytes(16)).reference()
    return LoggedTransaction(transaction_id, snapshot, [1], payload=reference)


def outcome_of(member: Member, transaction_id: bytes) -> Outcome:
    """What a member remembers of a transaction."""
    outcome = member.outcomes.get(transaction_id)
    assert outcome is not None
    return outcome


def test_fragments_are_kept_until_their_transaction_is_certified() -> None:
    member = online(2)
    delivered = deliver(member, fragments(2, 0), fragments(3, 2, 1))
    assert [(run, each.place) for run, each in delivered.fragments] == [(2, 0), (2, 2), (2, 1)]
    assert member.fragment_sets.names == [SET]
    delivered = deliver(member, batch_of(2, 4, [large(3)]))
    (entry,) = delivered.entries
    assert (entry.version, entry.payload, entry.local) == (1, large(3).payload, False)
    assert (delivered.dropped, member.fragment_sets.names) == ([], [])


def test_one_that_is_not_whole_is_refused_and_may_be_sent_again() -> None:
    member = online(2)
    before = member.certifier.digest()
    delivered = deliver(member, fragments(2, 0), batch_of(2, 3, [large(2, transaction_id=b"t")]))
    assert (delivered.entries, delivered.dropped) == ([], [SET])
    assert member.counters.verdicts[Verdict.REFUSED] == 1
    assert member.outcomes.get(b"t") is None
    assert member.certifier.digest() != before, "members that differ here notice it"


def test_one_that_lost_leaves_no_fragments() -> None:
    member = online(2)
    small = LoggedTransaction(b"", 0, [1])
    delivered = deliver(
        member, fragments(2, 0), batch_of(2, 3, [small]), batch_of(2, 4, [large(1)])
    )
    assert delivered.dropped == [SET]
    assert member.counters.verdicts[Verdict.CONFLICT] == 1


def test_a_repetition_leaves_no_fragments() -> None:
    member = online(2)
    first = LoggedTransaction(b"t", 0, [1])
    delivered = deliver(member, fragments(2, 0), batch_of(2, 3, [first, large(1, 0, b"t")]))
    assert delivered.dropped == [SET]
    assert (member.counters.repeated, outcome_of(member, b"t").version) == (1, 1)


def test_an_abandonment_ends_a_set_of_its_own_run_only() -> None:
    member = online(2, 3)
    delivered = deliver(
        member, fragments(2, 0), batch_of(3, 2, controls=[Abandonment(1)]), fragments(3, 1)
    )
    assert delivered.dropped == []
    assert deliver(member, batch_of(2, 4, controls=[Abandonment(1)])).dropped == [SET]
    assert deliver(member, batch_of(2, 5, controls=[Abandonment(1)])).dropped == []


def test_a_view_without_the_run_ends_its_sets() -> None:
    member = online(2, 3)
    deliver(member, fragments(2, 0))
    proposal = ViewProposal(member.view.view_id, member.view.without_member("m2"))
    assert deliver(member, batch_of(3, 2, controls=[proposal])).dropped == [SET]
    assert deliver(member, fragments(3, 1)).fragments == [], "it is no member any more"


def test_open_sets_are_stored_and_restored() -> None:
    member, again = online(2), mind(run=1)
    deliver(member, fragments(2, 0))
    restore(again, json.loads(json.dumps(checkpoint_of(member))))
    assert again.fragment_sets.names == [SET]


def test_an_older_store_has_no_open_sets() -> None:
    member, again = online(2), mind(run=1)
    checkpoint = json.loads(json.dumps(checkpoint_of(member)))
    del checkpoint["fragment_sets"]
    restore(again, checkpoint)
    assert again.fragment_sets.names == []


def test_own_fragments_come_back_and_a_worker_executes_the_transaction() -> None:
    member = online()
    upload = member.publisher.begin_upload(lambda: None)
    member.publisher.fragment(upload, 0, b"x")
    send(member)
    assert upload.undelivered == 0
    reference = FragmentSet(run_of(1).incarnation, upload.number, 1, 1, bytes(16)).reference()
    logged = LoggedTransaction(b"", 0, [1], payload=reference)
    ended: list[Submission] = []
    member.publisher.submit(Submission([logged], ended.append))
    batch = member.publisher.next_batch()
    assert batch is not None
    delivered = deliver(member, batch)
    (entry,) = delivered.entries
    assert (entry.local, entry.last_committed, entry.sequence_number) == (False, 0, 0)
    assert [each.outcomes[0] is not None for each in ended] == [True]


def test_uploads_end_where_another_member_becomes_the_only_one_to_write() -> None:
    member = online(2)
    upload = member.publisher.begin_upload(lambda: None)
    settings: GroupSettings = member.settings._replace(single_primary=True, settings_version=2)
    deliver(member, batch_of(2, 2, controls=[settings]))
    member.view = member.view.with_primary("m2")
    member.publisher.fragment(upload, 0, b"x")
    batch = member.publisher.next_batch()
    assert batch is not None
    delivered = Delivered()
    member.deliver(member.log_sequence + 1, batch, delivered)
    assert upload.is_refused
    assert (delivered.fragments, member.fragment_sets.names) == ([], [])


def test_what_the_group_turns_away_leaves_no_fragments() -> None:
    member = online(2)
    single = SETTINGS._replace(settings_version=2, single_primary=True)
    deliver(member, fragments(2, 0), batch_of(2, 3, controls=[single]))
    delivered = deliver(member, batch_of(2, 4, [large(1)]))
    assert (delivered.dropped, member.fragment_sets.names) == ([SET], [])


def test_a_fragment_over_a_limit_is_not_kept() -> None:
    member = online(2)
    delivered = deliver(member, fragments(2, SET_FRAGMENTS_MAX))
    assert delivered.fragments == []
