"""Long histories are those of a recorder, and have the wrong stamps that they say they have."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.history.schema import Row
from groupcert.members.certification_log.files import SCHEMA
from tests.audit.duckdb_checks import STAMPS, wrong_by
from tests.audit.long_history import ITEMS, Workload, make, rows, write
from tests.bench.audit import TRANSACTIONS_MIN, WRONG_STAMPS
from tests.members.certification_logs import read_log

FILE_ROWS = 200
SMALL = Workload(
    transactions=2_000,
    items_total=300,
    alone_share=0.03,
    stable_period=100,
    stable_lag=50,
    view_period=300,
)


def below(folder: Path) -> list[Row]:
    """Returns the rows of a log, whose numbers and chain are whole."""
    assert all(
        parquet.read_schema(path).equals(SCHEMA, check_metadata=False) for path in folder.iterdir()
    )
    return read_log(folder, "observer")


@pytest.mark.parametrize("items", ITEMS)
def test_a_history_has_every_kind_of_row(items: str, tmp_path: Path) -> None:
    write(tmp_path, rows(replace(SMALL, transactions=700, items=items)), FILE_ROWS)
    made = below(tmp_path)
    assert len(list(tmp_path.iterdir())) > 2
    kinds = {str(row["kind"]) for row in made}
    assert kinds == {"start", "transaction", "stable_set", "collection", "view_change"}
    assert {row["verdict"] for row in made} >= {"certified", "conflict"}
    assert any(row["write_set"] == [] for row in made)
    assert sum(row["kind"] == "transaction" for row in made) == 700


def test_a_history_is_made_once(tmp_path: Path) -> None:
    workload = Workload(transactions=300)
    folder = make(tmp_path, workload)
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert make(tmp_path, workload) == folder
    assert written == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(below(folder)) == 301


@pytest.mark.parametrize("items", ITEMS)
def test_the_smallest_history_has_place_for_all_wrong_stamps(items: str) -> None:
    right = Workload(transactions=TRANSACTIONS_MIN, items=items)
    changes = [
        int(str(wrong["last_committed"])) - int(str(row["last_committed"]))
        for wrong, row in zip(
            rows(replace(right, wrong_stamps=WRONG_STAMPS)), rows(right), strict=True
        )
        if wrong.get("last_committed") != row.get("last_committed")
    ]
    assert sorted(changes) == [-1] * WRONG_STAMPS + [1] * WRONG_STAMPS


@pytest.mark.parametrize("items", ITEMS)
def test_duckdb_finds_the_wrong_stamps_and_nothing_else(items: str, tmp_path: Path) -> None:
    for wrong, expected in ((0, {}), (20, {"STAMP_TOO_LOW": 20, "STAMP_TOO_HIGH": 20})):
        folder = tmp_path / str(wrong)
        write(folder, rows(replace(SMALL, items=items, wrong_stamps=wrong)), FILE_ROWS)
        assert wrong_by(STAMPS, folder, "1GB", str(tmp_path))[0] == expected


def test_duckdb_finds_wrong_verdicts(tmp_path: Path) -> None:
    history = list(rows(replace(SMALL, transactions=500)))
    lost = next(row for row in history if row.get("verdict") == "conflict")
    lost["snapshot_version"] = lost["version"]
    write(tmp_path, history, FILE_ROWS)
    assert wrong_by(STAMPS, tmp_path, "1GB", str(tmp_path))[0] == {"CONFLICT_FALSE": 1}


def test_items_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="zipf"):
        Workload(transactions=1, items="normal")
