"""Certification logs of real members: whole after kills, alike everywhere, in nobody's way.

Clients transfer amounts between the accounts of a bank while members are killed; when all are
stopped the files of each member are read, with their numbers and their chain, and compared with one
another and with what the clients were told.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupcert.applier.targets.rocksdb import RocksDbTarget
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.storage.store import Store, StoreIdentity
from groupcert.members.binary_log.replica_reader import BinaryLogReader
from groupcert.members.binary_log.stored_log import BinaryLog, BinaryLogOptions
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.members.wire.row_changes import changed_keys, decode_changes
from groupcert.v1.group_pb2 import MemberStatus
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole
from tests.members.certification_logs import History, assert_applied, histories_in

pytestmark = [pytest.mark.slow, pytest.mark.in_turns]

COMMITS = 200
SETTINGS: dict[str, Any] = {
    "stable_set_period_ms": 200,
    "certification_log_file_seconds": 1,
}
SHARED = ("kind", "version", "origin", "session", "transaction_id", "gtid_number", "verdict")
SHARED_MORE = ("winner_item", "winner_version", "write_set", "view_id", "reported_chain")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members, each with its certification log."""
    logs = tmp_path / "logs"
    with LocalGroup(
        tmp_path / "group", members=3, settings=SETTINGS, certification_logs=logs
    ) as group:
        yield group


def stopped_histories(group: LocalGroup) -> dict[str, list[History]]:
    """The histories of each member once all of them have stopped, the oldest first."""
    for name in group.names:
        assert group.stop_member(name) == 0
    assert group.certification_logs is not None
    return {
        name: list(histories_in(group.certification_logs / name).values()) for name in group.names
    }


def assert_alike(histories: list[History]) -> None:
    """Members tell the same of each place; those that stopped later tell more."""
    by_place: dict[int, dict[str, Any]] = {}
    last = min(rows[-1]["place"] for rows in histories)
    first = max(rows[1]["place"] for rows in histories)
    seen = []
    for rows in histories:
        inside = [row for row in rows if first <= row["place"] <= last]
        seen.append([row["place"] for row in inside])
        for row in inside:
            told = {name: row.get(name) for name in (*SHARED, *SHARED_MORE)}
            assert by_place.setdefault(row["place"], told) == told
    assert seen[0] and all(places == seen[0] for places in seen)


def certified_ids(rows: History) -> list[str]:
    return [row["transaction_id"] for row in rows if row.get("verdict") == "certified"]


def siblings_in(rows: History) -> dict[int, tuple[int, int]]:
    """Of each certified transaction its commit parent and its commit id."""
    certified = [row for row in rows if row.get("verdict") == "certified"]
    return {row["version"]: (row["commit_parent"], row["commit_id"]) for row in certified}


def logged_siblings(group: LocalGroup, member: str) -> dict[int, tuple[int, int]]:
    """The same, as a replica of a stopped member would be told."""
    with Store(group.folder / member, StoreIdentity(group="local", member=member)) as store:
        rows = RocksDbTarget(store, decode_changes).checkpoint()
        assert rows is not None
        reader = BinaryLogReader(
            BinaryLog(store, rows, BinaryLogOptions()),
            GtidSet(),
            source=member,
            keys_of=changed_keys,
        )
        told = {}
        while not reader.is_at_end:
            for entry in reader.read():
                if entry.gtid:
                    told[entry.version] = (entry.header.commit_parent, entry.header.commit_id)
        return told


def is_reported(group: LocalGroup, version: int) -> bool:
    """True if each member has reported in the log since a version was stable at it."""
    return all(each.stable_version >= version for each in group.status("m1").members)


def test_a_killed_member_loses_no_decision_and_repeats_none(group: LocalGroup) -> None:
    load = BankLoad()
    with load.running(list(group.addresses.values()), seed=1):
        for _ in range(2):
            load.wait_for_commits(COMMITS)
            group.kill("m2")
            load.wait_for_commits(COMMITS)
            group.start_member("m2")
            group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)
    version = group.status("m1").observer.certified_version
    wait_for("reports", lambda: is_reported(group, version))
    histories = stopped_histories(group)
    assert [len(each) for each in histories.values()] == [1, 1, 1]
    each_rows = [rows for (rows,) in histories.values()]
    assert_alike(each_rows)
    acknowledged = {each.hex() for each in load.counts.committed_ids}
    for name, rows in zip(group.names, each_rows, strict=True):
        assert_applied(rows)
        assert siblings_in(rows) == logged_siblings(group, name)
        assert any(row.get("commit_id") for row in rows)
        ids = certified_ids(rows)
        assert len(ids) == len(set(ids))
        assert acknowledged <= set(ids)
        assert {row["kind"] for row in rows} >= {
            "start",
            "settings",
            "view_change",
            "report",
            "stable_set",
            "collection",
        }
    reports = [row for row in each_rows[0] if row.get("reported_place")]
    assert {row["origin"] for row in reports} == set(group.names)
    for name, rows in zip(group.names, each_rows, strict=True):
        chains = {row["place"]: row["chain"] for row in rows}
        mine = [row for row in reports if row["origin"] == name]
        assert all(chains[row["reported_place"]] == row["reported_chain"] for row in mine)


async def test_a_joiner_by_copy_begins_a_history_where_its_copy_is(group: LocalGroup) -> None:
    load = BankLoad()
    with load.running([group.addresses["m1"], group.addresses["m2"]], seed=2):
        load.wait_for_commits(COMMITS)
        group.kill("m3")
        shutil.rmtree(group.folder / "m3")
        log = JetStreamOptions(servers=(group.log_server.address,), group="local")
        await trim_log(log, group.status("m1").observer.log_sequence)
        seeds = {"seeds": [group.addresses["m1"], group.addresses["m2"]]}
        group.start_member("m3", seeds)
        group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)
    histories = stopped_histories(group)
    assert [len(each) for each in histories.values()][:2] == [1, 1]
    *_, joined = histories["m3"]
    assert joined[0]["kind"] == "start"
    assert joined[0]["version"] > 0
    assert_alike([*histories["m1"], *histories["m2"], joined])


def test_members_serve_without_the_folder_and_write_it_all_later(group: LocalGroup) -> None:
    assert group.certification_logs is not None
    folder = group.certification_logs / "m1"
    assert group.stop_member("m1") == 0
    kept = folder.with_name("kept")
    folder.rename(kept)
    folder.write_bytes(b"a file where the folder should be")
    group.start_member("m1")
    group.wait_online()

    def status() -> MemberStatus:
        return group.status("m1").observer

    load = BankLoad()
    with load.running([group.addresses["m1"]], seed=3):
        load.wait_for_commits(COMMITS)
        wait_for("the error", lambda: status().certification_log_error)
        load.wait_for_commits(COMMITS)
        wait_for("rows that wait", lambda: status().certification_log_waiting_rows > COMMITS)
        folder.unlink()
        kept.rename(folder)
        wait_for("files", lambda: not status().certification_log_error)
    assert_whole(group, load)
    wait_for("rows in files", lambda: status().certification_log_written_rows > COMMITS)
    histories = stopped_histories(group)
    (rows,) = histories["m1"]
    assert {each.hex() for each in load.counts.committed_ids} <= set(certified_ids(rows))
    assert len(list(folder.iterdir())) > 1
