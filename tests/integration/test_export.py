"""What members wrote of their decisions is what `groupcert export` derives from the log.

Members are stopped in order, so that their files are whole, and one of them had another run before.
The log server stays, and its log is read from its beginning.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from groupcert.certifier.history.schema import Row
from groupcert.members.commands.cli import app
from groupcert.members.demo.local_group import LocalGroup
from tests.laboratory.bank_load import BankLoad
from tests.members.certification_logs import read_log

COMMITS = 300
OWN = {
    "number",
    "chain",
    "history",
    "observer",
    "settings",
    "decided_us",
    "started_us",
    "executed_us",
    "committed_us",
    "started_tick",
    "committed_tick",
    "worker",
    "commit_parent",
    "commit_id",
}
"""Columns of who was there, and of how the rows were written."""
OBSERVERS_OWN = {
    "is_local",
    "last_committed",
    "sequence_number",
    "last_committed_global",
    "resets_clock",
}
"""Columns in which members differ."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """Members that are stopped, with their certification logs in `logs`; the log server runs."""
    folder = tmp_path_factory.mktemp("exported")
    settings = {"certification_log": str(folder / "logs"), "stable_set_period_ms": 200}
    with LocalGroup(folder, members=3, settings=settings) as group:
        addresses = list(group.addresses.values())
        transfer(addresses, seed=1)
        assert group.stop_member("m2") == 0
        group.start_member("m2")
        group.wait_online()
        transfer(addresses, seed=2)
        for name in group.names:
            assert group.stop_member(name) == 0
        yield group


def transfer(addresses: Sequence[str], seed: int) -> None:
    """Has clients commit at all members, few enough rows for conflicts."""
    load = BankLoad()
    with load.running(addresses, seed):
        load.wait_for_commits(COMMITS)
    assert load.commits >= COMMITS


def exported(group: LocalGroup, out: Path, *flags: str) -> dict[str, int]:
    """Exports the group's log; the verdicts."""
    log = ["--log-server", group.log_server.address, "--group", "local"]
    done = CliRunner().invoke(app, ["export", "--out", str(out), *log, *flags, "--json"])
    assert done.exit_code == 0, done.output
    verdicts: dict[str, int] = json.loads(done.stdout)["verdicts"]
    return verdicts


def shared(rows: list[Row], without: set[str]) -> list[Row]:
    """The rows without some columns."""
    return [{name: row[name] for name in row if name not in without} for row in rows]


@pytest.mark.in_turns
def test_a_members_own_log_is_what_follows_from_the_total_order(
    group: LocalGroup, tmp_path: Path
) -> None:
    for name in group.names:
        verdicts = exported(group, tmp_path, "--observer", name)
        own, derived = read_log(group.folder / "logs", name), read_log(tmp_path, name)
        assert verdicts["certified"] >= 2 * COMMITS
        assert len(own) > 2 * COMMITS
        assert shared(derived[: len(own)], OWN) == shared(own, OWN)
        if name == group.names[-1]:
            assert len(derived) == len(own), "the last one to leave has seen everything"
        theirs, ours = (json.loads(str(rows[0]["settings"])) for rows in (own, derived))
        assert theirs | {"source": "total_order"} == ours
        kinds = {row["kind"] for row in derived}
        assert kinds >= {"settings", "report", "stable_set", "collection", "view_change"}
        joined = [row for row in derived if row["resets_clock"]]
        assert len(joined) == (2 if name == "m2" else 1), "each run begins with its view"


def test_nobody_sees_what_members_decided(group: LocalGroup, tmp_path: Path) -> None:
    exported(group, tmp_path, "--file-rows", "500")
    derived = read_log(tmp_path, "total-order")
    for name in group.names:
        own = read_log(group.folder / "logs", name)
        without = OWN | OBSERVERS_OWN
        assert shared(derived[: len(own)], without) == shared(own, without)
    assert {row["is_local"] for row in derived if row["kind"] == "transaction"} == {False}
