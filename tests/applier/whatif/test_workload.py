"""Streams as work: what is kept, what is derived, what parts cost."""

from statistics import fmean

import pytest

from groupcert.applier.queue.row_parts import Part
from groupcert.applier.whatif.costs import Costs
from groupcert.applier.whatif.durations import SPREAD_PERCENT, spread_percent_of
from groupcert.applier.whatif.workload import Stamps, Workload, interval_mean, load
from groupcert.certifier.errors import InvalidSetting
from tests.applier.whatif.streams import SOURCE, Source, stream


def test_entries_have_all_that_the_source_said() -> None:
    workload = stream("4us a.t/1 b.u/2 parent=7 group=3 domain=2", "view change", "1us a.t/1")
    first, view, last = workload.entries(Stamps.WRITE_SETS)
    assert (str(first.gtid), first.last_committed, first.sequence_number) == (f"{SOURCE}:1", 1, 2)
    assert first.header.databases == ("a", "b")
    assert first.header.tables == ("a.t", "b.u")
    assert (first.header.commit_parent, first.header.commit_id, first.header.domain_id) == (7, 3, 2)
    assert list(first.header.items) == list(workload.items(0))
    assert (view.gtid, view.last_committed, view.sequence_number) == (None, 0, 0)
    assert (last.position, last.last_committed, last.sequence_number) == (3, 2, 3)
    assert (workload.gtid(1), workload.name(1)) == (None, "entry 2")
    assert workload.name(2) == f"{SOURCE}:2"


def test_entries_refer_to_the_parents_that_the_source_named() -> None:
    source = Source()
    parents = [(), (5, 6), (7,)]
    workload = load([source.transaction(["a.t/1"], parent_items=each) for each in parents], Costs())
    for part, expected in ((workload, parents), (workload.window(1, 3), parents[1:])):
        found = [each.header.parent_items for each in part.entries(Stamps.WRITE_SETS)]
        assert found == expected


def test_unknown_durations_come_from_the_costs() -> None:
    source, costs = Source(), Costs(execute_us=100, row_us=10, spread_percent=0)
    works = [source.transaction(["a.t/1", "a.t/2"]), source.transaction(["a.t/3"], duration_us=7)]
    workload = load([*works, source.view_change()], costs)
    assert list(workload.durations_us) == [120, 7, 0]
    assert (workload.transactions, workload.timed, len(workload)) == (2, 1, 3)


def drawn(*durations_us: int | None, spread_percent: int | None = None) -> Workload:
    """The workload of transactions with these durations, None where the stream says none."""
    source = Source()
    works = [source.transaction(["a.t/1"], duration_us=each) for each in durations_us]
    return load(works, Costs(execute_us=100, row_us=0, spread_percent=spread_percent))


def test_unknown_durations_are_drawn_by_position() -> None:
    workload = drawn(*[None] * 2_000)
    assert workload.spread_percent == SPREAD_PERCENT
    assert fmean(workload.durations_us) == pytest.approx(100, rel=0.05)
    assert spread_percent_of(workload.durations_us) == pytest.approx(SPREAD_PERCENT, abs=5)
    assert drawn(*[None] * 2_000).durations_us == workload.durations_us
    mixed = drawn(*[7, None] * 1_000, spread_percent=SPREAD_PERCENT).durations_us
    assert list(mixed[1::2]) == list(workload.durations_us[1::2])
    assert set(mixed[::2]) == {7}


def test_drawn_durations_vary_as_those_that_the_stream_says() -> None:
    assert drawn(90, 110, 90, 110, None).spread_percent == 10
    assert drawn(90, 110, 90, 110, None, spread_percent=30).spread_percent == 30
    assert drawn(1_000_000, 9_000_000, *[None] * 3).spread_percent == SPREAD_PERCENT, (
        "the slow ones"
    )
    assert drawn(0, None).spread_percent == 0, "nothing takes time"


def test_negative_costs_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="row_us is '-1': expected 0 or more"):
        Costs(row_us=-1)


def test_a_part_takes_its_share_of_the_rows_rounded_up() -> None:
    workload = stream("10us a.t/1 a.u/1 a.u/2", "10us")
    assert workload.execution_us(0, None, 1) == 10
    assert workload.execution_us(0, Part(table="a.t"), 2) == 4
    assert workload.execution_us(0, Part(table="a.u"), 2) == 7
    assert workload.execution_us(0, Part(table="a.never"), 2) == 0
    slots = [workload.execution_us(0, Part(slot=slot, slots=3), 3) for slot in range(3)]
    assert 10 <= sum(slots) <= 12
    assert workload.execution_us(1, Part(slot=0, slots=4), 4) == 3


def test_only_rows_that_are_written_twice_keep_their_text() -> None:
    workload = stream("1us a.t/1 a.t/2", "1us a.t/2")
    assert list(workload.texts.values()) == ["a.t/2"]


def test_tables_are_those_of_the_rows_or_else_unknown() -> None:
    workload = stream("1us a.t/1 b.u/1", "1us databases=a")
    assert workload.tables(0) == {"a.t", "b.u"}
    assert workload.tables(1) == set()
    assert workload.without_write_set == 1


def test_databases_that_are_not_told_are_those_of_the_rows_where_order_counts() -> None:
    source = Source()
    works = [source.transaction(["a.t/1", "b.t/1"]), source.transaction(databases=("b",))]
    works[0] = works[0]._replace(header=works[0].header._replace(databases=None))
    workload = load(works, Costs())
    assert workload.dependencies.newest_followed(1) == 0
    assert next(workload.entries(Stamps.WRITE_SETS)).header.databases is None


def commit_ids(workload: Workload) -> list[int]:
    """The commit id of each entry."""
    return [entry.header.commit_id for entry in workload.entries(Stamps.WRITE_SETS)]


def test_groups_hold_consecutive_transactions_that_do_not_follow_each_other() -> None:
    workload = stream("1us a.t/1", "1us a.t/2", "1us a.t/3", "1us a.t/3", "1us", "1us a.t/4")
    assert not workload.has_commit_ids
    workload.group(3)
    assert commit_ids(workload) == [1, 1, 1, 0, 0, 0]
    assert workload.has_commit_ids


def test_the_modified_interval_never_goes_back_but_behind_a_barrier() -> None:
    assert interval_mean([(0, 1), (0, 2), (2, 3), (0, 4)]) == (1 + 2 + 1 + 2) / 4
    assert interval_mean([(3, 4), (0, 0), (0, 5)]) == 1, "what was before it is done"
    assert interval_mean([(0, 1), (0, 2), (0, 0), (0, 1), (0, 2)]) == 1.5, "numbers begin again"
    assert interval_mean([]) == 0
