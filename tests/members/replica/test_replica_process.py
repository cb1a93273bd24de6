"""Targets by their names, and the embedded store of a replica."""

from pathlib import Path

import pytest

from groupcert.applier.errors import UnsuitableTarget
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.targets.rocksdb import RowChanges
from groupcert.certifier.errors import ForeignDataFolder, InvalidSetting
from groupcert.certifier.gtid import Gtid
from groupcert.members.replica.replica_process import EmbeddedTarget, opens_target
from groupcert.members.replica.source_rows import GroupRows
from groupcert.v1.transaction_pb2 import Changes

GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def entry(number: int, value: bytes) -> RelayEntry:
    """A transaction that puts one row."""
    payload = Changes(put_keys=[b"t/1"], put_values=[value]).SerializeToString()
    return RelayEntry(number, number, Gtid(GROUP, number), 0, number, local=False, payload=payload)


def opened(target: str, mapping: Path | None = None) -> object:
    """Opens a target."""
    return opens_target(target, GroupRows(mapping), replica="r1", workers=4, two_phase=False)()


@pytest.mark.parametrize("target", ["", "rocksdb", "rocksdb:", "sqlite:x", "/folder"])
def test_another_kind_of_target_is_an_error_that_names_the_kinds(target: str) -> None:
    with pytest.raises(InvalidSetting, match=r"rocksdb:FOLDER, postgresql://.* or mysql://"):
        opened(target)


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "mariadb"])
def test_an_sql_target_needs_a_mapping_and_the_error_has_no_password(kind: str) -> None:
    with pytest.raises(UnsuitableTarget, match="there is no mapping") as raised:
        opened(f"{kind}://user:secret@host/shop")
    assert "target host/shop:" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "--mapping FILE" in str(raised.value)


def test_a_mapping_is_read_before_the_server_is_asked(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.toml"
    mapping.write_text("[tables]\n")
    with pytest.raises(UnsuitableTarget, match=r"mapping\.toml: there is no \[tables"):
        opened("postgresql://user@127.0.0.1:1/shop", mapping)
    with pytest.raises(FileNotFoundError):
        opened("postgresql://user@127.0.0.1:1/shop", tmp_path / "none.toml")


def test_the_embedded_store_has_rows_and_checkpoint_when_it_is_opened_again(tmp_path: Path) -> None:
    target = EmbeddedTarget(tmp_path / "store", "r1")
    assert target.checkpoint() is None
    progress = TargetProgress(Checkpoint(scheme="rows"))
    for number, value in ((1, b"a"), (2, b"b")):
        job: Job[RowChanges] = Job([entry(number, value)])
        job.execution = target.execute(job)
        target.commit(CommitGroup(number + 1, [job]), progress)
    target.close()
    again = EmbeddedTarget(tmp_path / "store", "r1")
    found = again.checkpoint()
    assert found == progress.checkpoint
    assert found is not None
    assert (str(found.gtid_executed), found.scheme) == (f"{GROUP}:1-2", "rows")
    assert dict(again.open_snapshot().scan()) == {b"t/1": b"b"}
    again.close()


def test_the_store_of_another_replica_is_refused(tmp_path: Path) -> None:
    EmbeddedTarget(tmp_path, "r1").close()
    with pytest.raises(ForeignDataFolder):
        EmbeddedTarget(tmp_path, "r2")
