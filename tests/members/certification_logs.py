"""Certification logs as tests read them: each history in order, its numbers and chain proved."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from pyarrow import parquet

from groupcert.certifier.history.schema import CHAIN_START, Row, link, text_of

History = list[dict[str, Any]]


def histories_in(folder: Path) -> dict[str, History]:
    """The rows of each history in a folder, the oldest history first, without absent values."""
    found: dict[str, History] = {}
    for path in sorted(folder.glob("*.parquet")):
        rows = [
            {name: value for name, value in row.items() if value is not None}
            for row in parquet.read_table(path).to_pylist()
        ]
        assert rows, f"{path} is empty"
        found.setdefault(rows[0]["history"], []).extend(rows)
    assert not list(folder.glob("*.unfinished"))
    for rows in found.values():
        assert_whole_history(rows)
    return dict(sorted(found.items(), key=lambda item: item[1][0]["decided_us"]))


def assert_whole_history(rows: History) -> None:
    """It begins with its start; nothing is missing, doubled, out of order or edited."""
    assert rows[0]["kind"] == "start"
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(earlier["place"] < later["place"] for earlier, later in pairwise(rows))
    assert len({(row["observer"], row["history"]) for row in rows}) == 1
    chain = CHAIN_START
    for row in rows:
        chain = link(chain, text_of(row))
        assert row["chain"] == chain, f"row {row['number']}"
    first = rows[0]["version"]
    certified = [row["version"] for row in rows if row.get("verdict") == "certified"]
    assert certified == list(range(first + 1, first + len(certified) + 1))
    assert rows[-1]["version"] == first + len(certified)


def assert_applied(rows: History) -> None:
    """Every certified transaction tells when it ran."""
    for row in rows:
        if row.get("verdict") == "certified":
            assert row["decided_us"] <= row["started_us"] <= row["committed_us"]
            assert row["started_tick"] < row["committed_tick"]
            assert ("worker" in row) == ("executed_us" in row) == (row["started_tick"] > 0)
            if "worker" in row:
                assert row["started_us"] <= row["executed_us"] <= row["committed_us"]


def read_log(folder: Path, observer: str) -> list[Row]:
    """The rows of an observer's one history in a folder, with absent values; asserts that its
    numbers and its chain are whole.
    """
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{observer}-*.parquet")):
        rows += parquet.read_table(path).to_pylist()
    assert rows, f"no log of {observer} in {folder}"
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    chain = CHAIN_START
    for row in rows:
        chain = link(chain, text_of({**row, "chain": None}))
        assert row["chain"] == chain, row
    places = [int(str(row["place"])) for row in rows]
    assert all(before < after for before, after in pairwise(places))
    return rows


def stamps(rows: list[Row]) -> list[tuple[object, object]]:
    """`last_committed` and `sequence_number` of the transactions."""
    return [
        (row["last_committed"], row["sequence_number"])
        for row in rows
        if row["kind"] == "transaction"
    ]
