"""Outcomes on disk: a restarted member knows what the others know, and turns generations with them.

Why it matters: a table that forgets elsewhere answers a retry that the others certify, and then the
members' databases differ.
"""

from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.gtid import Gtid
from groupcert.certifier.outcomes import Doubtful, OutcomeTable
from groupcert.certifier.records import Conflict, Outcome, Verdict
from groupcert.certifier.storage.store import Family, Store
from groupcert.members.runtime.state_store import OutcomeLog
from tests.sim.disk import SimulatedDisk
from tests.stores import writing

GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def remember(table: OutcomeTable, count: int) -> None:
    """Remembers the next so many transactions."""
    for number in range(table.next_number, table.next_number + count):
        gtid = Gtid(GROUP, number + 1)
        table.remember(b"%d" % number, Outcome(Verdict.CERTIFIED, gtid, number + 1))


def save(store: Store, log: OutcomeLog, table: OutcomeTable) -> None:
    """Writes what is new."""
    with writing(store) as batch:
        log.save(batch, table)


@given(
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.booleans()), max_size=25),
)
def test_a_restart_at_any_moment_leaves_the_table_as_it_was(
    outcomes_max: int, steps: list[tuple[int, bool, bool]]
) -> None:
    store = SimulatedDisk().as_store()
    expected, table = OutcomeTable(outcomes_max), OutcomeTable(outcomes_max)
    log = OutcomeLog(store)
    for count, saves, restarts in steps:
        remember(expected, count)
        remember(table, count)
        if saves or restarts:
            save(store, log, table)
        if restarts:
            log = OutcomeLog(store)
            table = log.load(outcomes_max)
        assert list(table) == list(expected)
        assert table.next_number == expected.next_number
        assert table.forgotten_version == expected.forgotten_version


def test_what_is_forgotten_leaves_the_disk() -> None:
    store = SimulatedDisk().as_store()
    log, table = OutcomeLog(store), OutcomeTable(6)
    for _ in range(50):
        remember(table, 2)
        save(store, log, table)
    assert len(list(store.scan(Family.OUTCOMES))) <= 6


def test_nothing_is_written_where_nothing_is_new() -> None:
    store = SimulatedDisk().as_store()
    log, table = OutcomeLog(store), OutcomeTable(6)
    remember(table, 2)
    save(store, log, table)
    save(store, log, table)
    assert len(list(store.scan(Family.OUTCOMES))) == 1


def test_every_verdict_comes_back_without_the_story_of_a_conflict() -> None:
    store = SimulatedDisk().as_store()
    log, table = OutcomeLog(store), OutcomeTable(10)
    conflict = Conflict(7, 1, Gtid(GROUP, 1), "m1", 1, 0, 2)
    table.remember(b"won", Outcome(Verdict.CERTIFIED, Gtid(GROUP, 5), 3, 1, 2))
    table.remember(b"lost", Outcome(Verdict.CONFLICT, conflict=conflict))
    table.remember(b"late", Outcome(Verdict.TOO_OLD, reason="too old"))
    table.remember(b"lost again", Doubtful(Verdict.CONFLICT, conflict=conflict))
    save(store, log, table)
    stored = list(OutcomeLog(store).load(10))
    assert [type(outcome) for _, outcome in stored] == [Outcome, Outcome, Outcome, Doubtful]
    assert stored == [
        (b"won", Outcome(Verdict.CERTIFIED, Gtid(GROUP, 5), 3)),
        (b"lost", Outcome(Verdict.CONFLICT)),
        (b"late", Outcome(Verdict.TOO_OLD, reason="too old")),
        (b"lost again", Doubtful(Verdict.CONFLICT)),
    ]
