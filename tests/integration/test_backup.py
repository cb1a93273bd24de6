"""Backups: taken from a running member, refused where a bit of them has changed, and gone on from.

Also what hangs on a copied member: its binary log goes on where its donor's was.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.certifier.storage.store import ROCKSDB_FOLDER
from groupcert.members.commands.backup import restore
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.recovery import CorruptCopy
from groupcert.members.recovery.manifest import MANIFEST, described, read_manifest, write_manifest
from tests.commands import groupcert
from tests.integration.replicas import (
    History,
    Load,
    ReplicaProcess,
    embedded_state,
    group_with_history,
)
from tests.integration.test_recovery import COMMITS, events_of, seeds, trim
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

FINE, FINDING, USAGE, UNAVAILABLE = range(4)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    settings = {"stable_set_period_ms": 200}
    folder = tmp_path_factory.mktemp("group")
    with LocalGroup(folder, settings=settings, certification_logs=folder / "logs") as group:
        yield group


@pytest.fixture(scope="module")
def backup(group: LocalGroup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of m1, with tables of more than one block."""
    with Client(group.addresses["m1"]) as client:
        for number in range(8):
            with client.transaction() as transaction:
                transaction.put(b"fill/%d" % number, os.urandom(32 << 10))
    folder = tmp_path_factory.mktemp("backups") / "backup"
    done = groupcert("backup", group.addresses["m1"], "--out", str(folder), "--json")
    assert done.returncode == FINE, done.stderr
    document = json.loads(done.stdout)
    assert document["member"] == "m1"
    assert document["bytes"] == read_manifest(folder).bytes_total
    return folder


def restored(
    backup: Path, data_folder: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return groupcert(
        "restore", str(backup), "--data-folder", str(data_folder), "--member", "m3", *arguments
    )


def test_a_dry_run_checks_all_and_writes_nothing(backup: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    done = restored(backup, tmp_path / "data", "--dry-run", "--json")
    assert done.returncode == FINE, done.stderr
    assert json.loads(done.stdout)["result"] == "can be restored"
    assert not (tmp_path / "data").exists()
    assert before == {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}


def test_a_check_says_what_a_backup_has(backup: Path, group: LocalGroup) -> None:
    """Of rows, as many as a client reads: the log has gone on since, but nobody writes."""
    before = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    done = groupcert("restore", str(backup), "--check", "--json")
    assert done.returncode == FINE, done.stderr
    document = json.loads(done.stdout)
    manifest = read_manifest(backup)
    assert (document["result"], document["findings"]) == ("whole", [])
    assert (document["group"], document["member"]) == ("local", "m1")
    assert document["log_sequence"] == manifest.log_sequence
    assert document["gtid_executed"] == manifest.gtid_executed
    assert document["content_digest"] == manifest.content_digest
    assert (document["bytes"], document["format_version"]) == (manifest.bytes_total, 1)
    with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
        assert document["rows"] == len(list(transaction.scan(b"fill/", b"fill0"))) == 8
    assert before == {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
    told = groupcert("restore", str(backup), "--check").stdout
    assert told.endswith("whole\n") and "rows            8\n" in told


def test_a_check_names_all_damage_and_not_the_first_alone(backup: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(backup, broken)
    flipped, cut, *_ = sorted((broken / ROCKSDB_FOLDER).glob("*.sst"))
    content = bytearray(flipped.read_bytes())
    content[7] ^= 4
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-10])
    current = broken / ROCKSDB_FOLDER / "CURRENT"
    current.rename(current.with_name("OTHER"))
    done = groupcert("restore", str(broken), "--check", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["result"]) == (FINDING, "damaged")
    assert sorted(document["findings"]) == sorted(
        [
            f"the checksum of file {flipped.name} does not match",
            f"file {cut.name} has {cut.stat().st_size} bytes, {cut.stat().st_size + 10} were"
            " written",
            "file CURRENT is missing",
            "file OTHER is not in the manifest",
        ]
    )
    (broken / MANIFEST).write_bytes(b"{}")
    done = groupcert("restore", str(broken), "--check")
    assert done.returncode == FINDING
    assert "damaged: copy" in done.stdout


def test_a_check_needs_no_data_folder_and_takes_none(backup: Path, tmp_path: Path) -> None:
    assert restored(backup, tmp_path / "data", "--check").returncode == USAGE
    assert groupcert("restore", str(tmp_path), "--check").returncode == USAGE
    done = groupcert("restore", str(backup))
    assert done.returncode == USAGE
    assert "data-folder is missing: give it as --data-folder; or only --check" in done.stderr


def test_a_flipped_bit_in_any_file_is_refused_and_the_file_named(
    backup: Path, tmp_path: Path
) -> None:
    """Of each kind of file one, the largest: tables, write-ahead log, and RocksDB's own."""
    kinds: dict[str, Path] = {}
    for path in sorted((backup / ROCKSDB_FOLDER).iterdir(), key=lambda each: each.stat().st_size):
        kinds[path.suffix or path.name.rstrip("0123456789")] = path
    assert {".sst", ".log", ".json", "CURRENT", "MANIFEST-", "OPTIONS-"} == set(kinds)
    for path in (*kinds.values(), backup / MANIFEST):
        broken = tmp_path / "broken"
        shutil.copytree(backup, broken)
        target = broken / path.relative_to(backup)
        content = bytearray(target.read_bytes())
        if content:
            content[len(content) // 2] ^= 4
        else:
            content.append(0)
        target.write_bytes(content)
        for dry_run in (False, True):
            with pytest.raises(CorruptCopy, match=re.escape(path.name)):
                restore(broken, tmp_path / "data", "m3", dry_run=dry_run, as_json=False)
            assert not (tmp_path / "data").exists()
        shutil.rmtree(broken)


@pytest.mark.parametrize("fault", ["missing", "shorter"])
def test_a_missing_or_truncated_file_is_named(backup: Path, tmp_path: Path, fault: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(backup, broken)
    path = next((broken / ROCKSDB_FOLDER).glob("*.sst"))
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10])
    done = restored(broken, tmp_path / "data")
    assert done.returncode == FINDING
    assert path.name in done.stderr


def test_a_table_that_was_rotten_when_it_was_copied_is_refused(
    backup: Path, tmp_path: Path
) -> None:
    """Its checksums are right, but not RocksDB's own of the block."""
    broken = tmp_path / "broken"
    shutil.copytree(backup, broken)
    tables = (broken / ROCKSDB_FOLDER).glob("*.sst")
    path = max(tables, key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    write_manifest(broken, described(read_manifest(broken), broken))
    done = restored(broken, tmp_path / "data")
    assert done.returncode == FINDING
    assert path.name in done.stderr
    whole = tmp_path / "whole"
    shutil.copytree(backup, whole)
    write_manifest(whole, replace(read_manifest(whole), content_digest="0f"))
    done = restored(whole, tmp_path / "data")
    assert done.returncode == FINDING
    assert "0f was written" in done.stderr
    assert not (tmp_path / "data").exists()


def test_wrong_use_is_said(group: LocalGroup, backup: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert restored(backup, tmp_path).returncode == USAGE
    assert restored(tmp_path, tmp_path / "data").returncode == USAGE
    assert restored(tmp_path / "nowhere", tmp_path / "data").returncode == USAGE
    name = ("--data-folder", str(tmp_path / "data"), "--member", "no name")
    assert groupcert("restore", str(backup), *name).returncode == USAGE
    taken = groupcert("backup", group.addresses["m1"], "--out", str(tmp_path))
    assert taken.returncode == USAGE
    nobody = groupcert("backup", "127.0.0.1:1", "--out", str(tmp_path / "out"))
    assert nobody.returncode == UNAVAILABLE
    assert {path.name for path in tmp_path.iterdir()} == {"file"}, "nothing is left behind"


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_member_seeded_with_a_backup_goes_on(
    group: LocalGroup, tmp_path: Path, trimmed: bool
) -> None:
    """By the log, or where that was trimmed, from a donor; clients write all the time."""
    load = BankLoad()
    with load.running([group.addresses["m1"]], seed=1):
        load.wait_for_commits(COMMITS)
        done = groupcert("backup", group.addresses["m2"], "--out", str(tmp_path / "backup"))
        assert done.returncode == FINE, done.stderr
        load.wait_for_commits(COMMITS)
        group.kill("m3")
        shutil.rmtree(group.folder / "m3")
        log = group.folder / "m3.log"
        log.unlink()
        assert restored(tmp_path / "backup", group.folder / "m3").returncode == FINE
        if trimmed:
            await trim(group, group.status("m1").observer.log_sequence)
        group.start_member("m3", seeds(group, "m1"))
        group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)
    assert len(events_of(group, "m3", "recovery_copied")) == trimmed


async def test_the_binary_log_of_a_copied_member_is_whole(tmp_path: Path) -> None:
    """Replicas get all from it: what its donor had committed, and what it has committed itself."""
    with group_with_history(tmp_path / "group", 200) as (group, _):
        load = Load(list(group.addresses.values()))
        group.kill("m2")
        shutil.rmtree(group.folder / "m2")
        await trim(group, group.status("m1").observer.log_sequence)
        group.start_member("m2", seeds(group, "m1"))
        group.wait_online()
        load.run(200)
        assert events_of(group, "m2", "recovery_copied")
        history = History(group.addresses["m2"])
        *_, last = history.states()
        assert last == history.rows
        assert history.gtids == History(group.addresses["m1"]).gtids
        target = f"rocksdb:{tmp_path / 'target'}"
        sources = [group.addresses["m2"]]
        with ReplicaProcess(tmp_path / "replica", sources, target, "logical-clock") as replica:
            code = replica.run("--until-after-gtids", str(history.gtids))
            assert code == FINE, replica.last_line()
        rows, checkpoint = embedded_state(tmp_path / "target")
        assert rows == history.rows
        assert checkpoint.gtid_executed == history.gtids
