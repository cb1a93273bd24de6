"""Logs that somebody has changed with care, and who it was that was changed.

A real group writes its logs; then some are changed and chained anew, as one does who knows how. An
export of the log server, which nobody has changed, stands beside them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from groupcert.certifier.history.schema import CHAIN_START, RecordKind, Row, link, text_of
from groupcert.members.commands.cli import app
from groupcert.members.demo.local_group import LocalGroup
from tests.audit.histories import write_as_is
from tests.laboratory.bank_load import BankLoad
from tests.members.certification_logs import read_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.in_turns]
COMMITS = 200
REPORTS = 2
"""Of each member about its own log, before it is stopped."""
OBSERVERS = ("m1", "m2", "m3")


class Logs(NamedTuple):
    """The rows of each member as it wrote them, and the folder of the export."""

    rows: Mapping[str, list[Row]]
    order: Path

    def copied(self) -> dict[str, list[Row]]:
        """The rows of all members, to be changed."""
        return {name: [dict(row) for row in rows] for name, rows in self.rows.items()}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Members that have written their logs and are stopped; the log server runs."""
    folder = tmp_path_factory.mktemp("tampered")
    settings = {"stable_set_period_ms": 200, "certification_log_file_seconds": 1}
    with LocalGroup(
        folder, members=3, settings=settings, certification_logs=folder / "logs"
    ) as group:
        load = BankLoad()
        with load.running(list(group.addresses.values()), seed=1):
            while not _have_reported(folder / "logs"):
                load.wait_for_commits(COMMITS)
        for name in group.names:
            assert group.stop_member(name) == 0
        yield group


@pytest.fixture(scope="module")
def logs(group: LocalGroup, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """What members wrote, and what their log server has."""
    order = tmp_path_factory.mktemp("order")
    asked = ["--log-server", group.log_server.address, "--group", "local", "--out", str(order)]
    done = CliRunner().invoke(app, ["export", *asked])
    assert done.exit_code == 0, done.output
    return Logs({name: read_log(group.folder / "logs" / name, name) for name in OBSERVERS}, order)


def test_the_copy_that_was_changed_and_the_one_that_was_cut_off_are_named(
    spark: SparkSession, logs: Logs, tmp_path: Path
) -> None:
    """Who changed one copy had to leave in the others what its member had told of its chain."""
    copies = logs.copied()
    place = changed(copies["m1"])
    chain_anew({"m1": copies["m1"]})
    last = max(told(copies["m1"], "m2"))
    copies["m2"] = [row for row in copies["m2"] if integer(row, "place") < last]
    end = integer(copies["m2"][-1], "place")
    found = findings(spark, tmp_path, copies, logs.order)
    assert {each for each in found if each[0] is not Code.REPORT_WRONG} == {
        (Code.MEMBERS_DISAGREE, "m1", place),
        (Code.HISTORY_CUT, "m2", end),
    }
    wrong = {each[1:] for each in found if each[0] is Code.REPORT_WRONG}
    assert wrong == {("m1", each) for each in told(copies["m3"], "m1") if each >= place}
    assert wrong


def test_copies_that_were_all_changed_alike_are_named_by_an_export_alone(
    spark: SparkSession, logs: Logs, tmp_path: Path
) -> None:
    """Nothing in the copies says that they were changed: each word about a chain was changed as
    well, and the group's digest does not cover a transaction's id.
    """
    copies = logs.copied()
    (place,) = {changed(rows) for rows in copies.values()}
    chain_anew(copies)
    assert findings(spark, tmp_path / "alone", copies) == set()
    found = findings(spark, tmp_path / "beside", copies, logs.order)
    disagreeing = {each for each in found if each[0] is Code.MEMBERS_DISAGREE}
    assert disagreeing >= {(Code.MEMBERS_DISAGREE, name, place) for name in OBSERVERS}
    assert {name for code, name, _ in found if code is Code.REPORT_WRONG} == {*OBSERVERS}
    assert {name for _, name, _ in found} == {*OBSERVERS}, "the export is at odds with nobody"


def changed(rows: list[Row]) -> int:
    """Gives a transaction in the middle another id; returns its place."""
    certified = [row for row in rows if row["verdict"] == "certified" and row["transaction_id"]]
    row = certified[len(certified) // 2]
    row["transaction_id"] = "00" * 16
    return integer(row, "place")


def chain_anew(copies: Mapping[str, list[Row]]) -> None:
    """Chains all rows anew, and has members tell each other the new chains."""
    chains: dict[tuple[object, object], bytes] = {}
    heads = dict.fromkeys(copies, CHAIN_START)
    pairs = [(name, row) for name, rows in copies.items() for row in rows]
    for name, row in sorted(pairs, key=lambda pair: integer(pair[1], "place")):
        about = row["origin"], row["reported_place"]
        if row["reported_chain"] is not None and about in chains:
            row["reported_chain"] = chains[about]
        row["chain"] = heads[name] = link(heads[name], text_of(row))
        chains[name, row["place"]] = heads[name]


def told(rows: list[Row], member: str) -> set[int]:
    """The places of a member's own log of which it told the chain."""
    return {
        integer(row, "reported_place")
        for row in rows
        if row["kind"] == RecordKind.REPORT
        and row["origin"] == member
        and row["reported_chain"] is not None
    }


def integer(row: Row, name: str) -> int:
    """A column that has a number."""
    value = row[name]
    assert isinstance(value, int)
    return value


def findings(
    spark: SparkSession, folder: Path, copies: Mapping[str, list[Row]], *beside: Path
) -> set[tuple[Code, str, int]]:
    """What an audit finds in the copies and in the logs beside them."""
    write_as_is(folder, *copies.values())
    log = Log(spark, [str(folder), *map(str, beside)])
    results = [job.run(log) for job in (verify, agree, proof)]
    return {
        (each.code, each.observer, each.place) for result in results for each in result.findings
    }


def _have_reported(folder: Path) -> bool:
    """Returns whether each member has the reports of all about their own logs in its files."""
    found = [_rows(folder / name) for name in OBSERVERS]
    return all(len(told(rows, name)) >= REPORTS for rows in found for name in OBSERVERS)


def _rows(folder: Path) -> list[Row]:
    """The rows of the files that are there already."""
    paths = sorted(folder.glob("*.parquet")) if folder.is_dir() else ()
    return [row for path in paths for row in parquet.read_table(path).to_pylist()]
