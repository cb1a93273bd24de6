"""A trace as work: what is certified, what is derived, what is refused."""

import json
from collections.abc import Iterable, Mapping

import pytest

from applier.whatif.trace_work import LOCK_INTERVAL_MAX, TraceWork
from applier.whatif.workload import Work
from certifier.core import CertifierOptions
from certifier.errors import InvalidTrace

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
OPTIONS = CertifierOptions(
    group_source=UUID, collection_period_transactions=0, learn_snapshots=True
)


def transaction(snapshot: str, *items: str, **more: object) -> dict[str, object]:
    """A line of a trace."""
    return {
        "type": "transaction",
        "member": "m1",
        "snapshot_version": f"{UUID}:{snapshot}" if snapshot else "",
        "write_set": list(items),
        **more,
    }


def works(*lines: Mapping[str, object]) -> list[Work]:
    """What is read of these lines."""
    return read(json.dumps(line) for line in lines)


def read(lines: Iterable[str]) -> list[Work]:
    """What is read of these texts."""
    return list(TraceWork(OPTIONS).read(lines))


def test_certified_transactions_bear_the_certifiers_stamps() -> None:
    found = works(
        transaction("", "a.t/1"), transaction("", "a.t/2"), transaction("1-2", "a.t/1", "a.t/1")
    )
    assert [(one.last_committed, one.sequence_number) for one in found] == [(1, 2), (1, 3), (2, 4)]
    assert [str(one.gtid) for one in found] == [f"{UUID}:{number}" for number in (1, 2, 3)]
    assert (found[2].keys, found[2].rows) == (["a.t/1"], 1)


def test_what_is_not_certified_is_left_out_and_counted() -> None:
    reader = TraceWork(OPTIONS)
    lines = [transaction("", "a.t/1"), transaction("", "a.t/1"), transaction("1", "a.t/1")]
    collection = {"type": "garbage_collection", "stable_set": f"{UUID}:1"}
    texts = [*map(json.dumps, [*lines, collection]), "\n"]
    assert len(list(reader.read(texts))) == 2
    assert (reader.summary.certified, reader.summary.conflict) == (2, 1)
    assert reader.summary.garbage_collections == 1


def test_a_view_change_is_work_that_runs_alone() -> None:
    view = {"type": "view_change", "view_id": "1", "members": ["m1"], "joined": ["m1"]}
    assert works(view, transaction("", "a.t/1"))[0] == Work(None)


def test_databases_and_tables_come_from_the_items() -> None:
    found = works(transaction("", "b.u/1", "a.t/1", "greeting"))[0].header
    assert found.databases == ("", "a", "b")
    assert found.tables == ("", "a.t", "b.u")


def test_what_the_line_says_goes_before_what_is_derived() -> None:
    line = transaction(
        *("", "a.t/1"),
        databases=["z", "a"],
        domain_id=3,
        commit_parent=8,
        commit_id=5,
        duration_us=70,
    )
    found = works(line)[0]
    header = found.header
    assert header.databases == ("a", "z")
    assert (header.domain_id, header.commit_parent, header.commit_id) == (3, 8, 5)
    assert found.duration_us == 70


def test_without_write_set_nothing_is_known_but_the_databases_that_are_given() -> None:
    found = works(transaction(""), transaction("", databases=["a"], commit_id=None))
    assert [one.header.databases for one in found] == [None, ("a",)]
    assert [one.header.tables for one in found] == [None, None]
    assert [one.lock_interval for one in found] == [1, 1]


def test_the_commit_parent_is_the_size_of_the_snapshot() -> None:
    found = works(transaction("", "a.t/1"), transaction("", "a.t/2"), transaction("1", "a.t/3"))
    parents = [one.header.commit_parent for one in found]
    assert parents == [1, 1, 2]


def test_the_lock_interval_reaches_back_to_the_newest_of_the_snapshot() -> None:
    found = works(
        transaction("", "a.t/1"),
        transaction("", "a.t/2"),
        transaction("1", "a.t/3"),
        transaction("1:3", "a.t/4"),
    )
    assert [one.lock_interval for one in found] == [1, 2, 2, 1]


def test_no_lock_interval_reaches_over_a_transaction_without_write_set() -> None:
    found = works(
        transaction("", "a.t/1"),
        transaction(""),
        transaction("", "a.t/2"),
        transaction("", "a.t/3"),
    )
    assert [one.lock_interval for one in found] == [1, 1, 1, 2]


def test_lock_intervals_have_a_limit() -> None:
    lines = (json.dumps(transaction("", f"a.t/{number}")) for number in range(6))
    found = list(TraceWork(OPTIONS, lock_interval_max=3).read(lines))
    assert [one.lock_interval for one in found] == [1, 2, 3, 3, 3, 3]
    assert LOCK_INTERVAL_MAX == 2**16 - 1, "WL#7165: the difference has 16 bits"


def test_local_transactions_are_executed_by_a_replica_as_others_are() -> None:
    found = works(transaction("", "a.t/1", local=True), transaction("", "a.t/2", local=False))
    assert [one.sequence_number for one in found] == [2, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"duration_us": -1}, "line 2: duration_us is -1; expected 0 to"),
        ({"domain_id": "x"}, 'line 2: domain_id is "x"'),
        ({"commit_id": True}, "line 2: commit_id is true"),
        ({"commit_parent": 2**63}, "line 2: commit_parent is 9223372036854775808"),
        ({"databases": "a"}, 'line 2: databases is "a"; expected databases: a JSON array of names'),
        ({"databases": [1]}, r"line 2: databases is \[1\]"),
    ],
)
def test_a_field_of_the_wrong_kind_names_its_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidTrace, match=message):
        works(transaction("", "a.t/1"), transaction("", "a.t/2", **fields))


@pytest.mark.parametrize("text", ['{"local"', '["local"]', '"local"'])
def test_a_damaged_line_is_refused_by_certification(text: str) -> None:
    with pytest.raises(InvalidTrace, match="line 1: it is"):
        read([text])


def test_a_trace_without_a_certified_transaction_is_an_error() -> None:
    with pytest.raises(
        InvalidTrace, match=r"line 1: .* without a certified transaction \(0 others"
    ):
        read([])
    view = {"type": "view_change", "view_id": "1", "members": ["m1"], "joined": []}
    with pytest.raises(InvalidTrace, match=r"line 1: .* without a certified transaction"):
        works(view)
