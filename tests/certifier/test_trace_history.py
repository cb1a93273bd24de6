"""A trace as a certification log: what stands in its rows, and in which order."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from certifier.errors import InvalidTrace
from certifier.history import RecordKind, Row, place_of, signed
from certifier.records import position_of
from certifier.trace_history import TraceHistory
from certifier.write_set import item_from_text
from tests.certifier.histories import GROUP, OTHER, options

DATA = Path(__file__).parent.parent / "data" / "mysql-9.7.4-relay"
HALF = "\ud800"
"""A surrogate without its other half: JSON can escape it, UTF-8 cannot hold it."""
VIEW: dict[str, object] = {
    "type": "view_change",
    "view_id": "v:1",
    "members": ["m1", "m2"],
    "joined": ["m2"],
}


def write(snapshot: str, *items: str, member: str = "m1", **more: object) -> dict[str, object]:
    """A line of a transaction; the snapshot in numbers of the group."""
    return {
        "type": "transaction",
        "member": member,
        "snapshot_version": f"{GROUP}:{snapshot}" if snapshot else "",
        "write_set": list(items),
        **more,
    }


def rows(*lines: dict[str, object], observer: str | None = None) -> list[Row]:
    """The rows of a trace."""
    history = TraceHistory(options(learn=True), observer)
    return list(history.rows(map(json.dumps, lines)))


def kinds(found: Sequence[Row]) -> list[object]:
    """What each row tells."""
    return [row["kind"] for row in found]


def test_a_history_begins_with_its_settings_before_the_first_line() -> None:
    (start,) = rows()
    assert (start["kind"], start["observer"], start["place"]) == ("start", "trace", 0)
    settings = json.loads(str(start["settings"]))
    assert (settings["source"], settings["group_source"]) == ("trace", GROUP)


def test_a_transaction_has_what_its_line_says_and_what_was_decided() -> None:
    line = write(
        "",
        *("shop.a/2", "shop.b/1", "shop.a/2"),
        session="s7",
        read_set=["shop.c/3"],
        databases=["shop", "depot", "shop"],
        domain_id=4,
        commit_parent=9,
        commit_id=0,
        duration_us=55,
    )
    row = rows(line)[1]
    assert row == row | {
        "place": place_of(position_of(1, 0), RecordKind.TRANSACTION),
        "version": 1,
        "origin": "m1",
        "session": "s7",
        "gtid_source": GROUP,
        "gtid_number": 1,
        "gtid_brought": False,
        "snapshot_set": "",
        "write_set": [signed(item_from_text(text)) for text in ("shop.a/2", "shop.b/1")],
        "read_set": [signed(item_from_text("shop.c/3"))],
        "databases": ["depot", "shop"],
        "domain_id": 4,
        "commit_parent": 9,
        "commit_id": 0,
        "verdict": "certified",
        "is_local": False,
        "last_committed": 1,
        "sequence_number": 2,
    }
    assert not {"started_us", "committed_us", "decided_us", "tables"} & row.keys()


def test_keys_go_along_where_that_is_allowed() -> None:
    texts = (write("", "shop.a/2", read_set=["shop.c/3"]), write("", "shop.b/1"))
    lines = [json.dumps(line) for line in texts]
    _, first, second = TraceHistory(options(learn=True), keys=True).rows(lines)
    assert (first["write_keys"], first["read_keys"]) == (["shop.a/2"], ["shop.c/3"])
    assert (second["write_keys"], second["read_keys"]) == (["shop.b/1"], None)
    assert not any({"write_keys", "read_keys"} & row.keys() for row in rows(*texts))


def test_what_a_line_does_not_say_is_left_out() -> None:
    row = rows(write("", "shop.a/1"))[1]
    left_out = ("session", "databases", "domain_id", "commit_id", "commit_parent")
    assert [row.get(name) for name in left_out] == [None] * len(left_out)


def test_a_conflict_names_the_winner_and_a_refusal_its_reason() -> None:
    first = write("", "a", gtid=f"{OTHER}:5")
    _, _, conflict, refused = rows(first, write("", "a", member="m2"), first | {"write_set": ["b"]})
    assert (conflict["verdict"], conflict["winner_version"]) == ("conflict", 1)
    assert conflict["winner_item"] == signed(item_from_text("a"))
    assert (conflict["winner_origin"], conflict["version"]) == ("m1", 1)
    assert (refused["verdict"], refused["gtid_brought"]) == ("refused", True)
    assert "already used" in str(refused["reason"])


def test_the_observers_transactions_are_local_and_its_joining_resets_the_clock() -> None:
    _, view, mine, other = rows(VIEW, write("", "a", member="m2"), write("1", "a"), observer="m2")
    assert (view["view_id"], view["members"]) == ("v:1", ["m1", "m2"])
    assert (view["resets_clock"], view["last_committed"], view["sequence_number"]) == (True, 0, 0)
    assert (mine["observer"], mine["is_local"], mine.get("sequence_number")) == ("m2", True, None)
    assert (other["is_local"], other["last_committed"], other["sequence_number"]) == (False, 1, 2)


def test_what_was_executed_elsewhere_stands_before_what_named_it() -> None:
    found = rows(VIEW | {"executed": f"{GROUP}:1-4"}, write("1-4:9", "a"))
    assert kinds(found) == [
        *("start", "executed_elsewhere", "view_change", "executed_elsewhere", "transaction")
    ]
    assert [row.get("snapshot_set") for row in found[1::2]] == [f"{GROUP}:1-4", f"{GROUP}:9"]
    places = [row["place"] for row in found]
    assert places == sorted(places, key=int)  # type: ignore[arg-type]
    assert len(set(places)) == len(places)


def test_a_collection_says_what_was_stable_and_what_it_purged() -> None:
    collection: dict[str, object] = {"type": "garbage_collection", "stable_set": f"{GROUP}:1"}
    found = rows(write("", "a", "b"), write("1", "c"), collection)
    assert kinds(found[3:]) == ["stable_set", "collection"]
    stable, collected = found[3:]
    assert (stable["stable_version"], stable["stable_set"]) == (1, f"{GROUP}:1")
    assert (collected["collected_version"], collected["purged_items"]) == (1, 2)
    assert collected["last_committed_global"] == 3


def test_empty_lines_have_no_row_and_keep_the_count() -> None:
    history = TraceHistory(options(learn=True))
    found = list(history.rows(["\n", json.dumps(write("", "a"))]))
    assert found[1]["place"] == place_of(position_of(2, 0), RecordKind.TRANSACTION)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (write("", "a", session=7), "trace line 2: session is 7; expected session: a JSON string"),
        (write("", "a", domain_id=True), "trace line 2: domain_id is true; expected 0 to"),
        (write("", "a", commit_id=-1), "trace line 2: commit_id is -1; expected 0 to"),
        (write("", "a", commit_parent="1"), 'trace line 2: commit_parent is "1"; expected 0 to'),
        (write("", "a", databases="shop"), 'trace line 2: databases is "shop"'),
        (write("", "a", databases=[1]), r"trace line 2: databases is \[1\]"),
        (VIEW | {"members": [1]}, r"trace line 2: members is \[1\]"),
        (VIEW | {"view_id": 1}, "trace line 2: view_id is 1"),
        (VIEW | {"view_id": HALF}, r'view_id is "\\ud800"; expected view_id: .* text in UTF-8'),
        (VIEW | {"members": [HALF]}, r'trace line 2: members is \["\\ud800"\]; .* text in UTF-8'),
        (write("", "a", member=HALF), r'trace line 2: member is "\\ud800"; .* text in UTF-8'),
        (write("", "a", session=HALF), r'trace line 2: session is "\\ud800"'),
        (write("", "a", databases=[HALF]), r'trace line 2: databases is \["\\ud800"\]'),
        ({"type": "transaction"}, "trace line 2: write_set is"),
    ],
)
def test_a_field_of_another_kind_is_named_with_its_line(
    line: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidTrace, match=message):
        rows(write("", "a"), line)


def test_a_view_change_may_say_nothing_of_the_view() -> None:
    view = rows({"type": "view_change"})[1]
    assert (view["view_id"], view["members"], view["resets_clock"]) == (None, [], False)


def test_the_rows_of_a_real_group_have_its_servers_stamps() -> None:
    """Source: `tests/data/mysql-9.7.4-relay/README.md`."""
    mysql = replace(options(learn=True, block_size=1_000_000), snapshot_lag_max=1 << 62)
    with gzip.open(DATA / "trace.jsonl.gz", "rt") as lines:
        found = list(TraceHistory(mysql).rows(lines))
    with gzip.open(DATA / "expected.jsonl.gz", "rt") as lines:
        expected = [line for text in lines if "gtid" in (line := json.loads(text))]
    stamps = [
        {
            "gtid": ":".join((str(row["gtid_source"]), str(row["gtid_number"]))),
            "last_committed": row["last_committed"],
            "sequence_number": row["sequence_number"],
        }
        for row in found
        if row["kind"] == "transaction"
    ]
    assert stamps == expected
    assert len(stamps) == 11_280
    assert kinds(found[:3]) == ["start", "executed_elsewhere", "view_change"]
    assert [kinds(found).count(kind) for kind in ("stable_set", "collection")] == [2, 2]
