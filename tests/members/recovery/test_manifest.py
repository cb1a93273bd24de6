"""A copy is whole or none: manifest, files and content are each compared with what was written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidSetting, UnsupportedFormat
from groupcert.certifier.storage.store import ROCKSDB_FOLDER
from groupcert.members.errors.recovery import CorruptCopy
from groupcert.members.recovery.manifest import (
    MANIFEST,
    CopiedFile,
    CopyManifest,
    appearing,
    checksum_of,
    described,
    read_manifest,
    verify_files,
    write_manifest,
)
from groupcert.members.total_order.port import LogIdentity

EMPTY = CopyManifest(
    group="g",
    member="m1",
    log=LogIdentity(name="log", created="now"),
    log_sequence=7,
    version=5,
    gtid_executed="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1-5",
    certification_digest="0f",
    created_us=1,
    files=(),
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    (folder / ROCKSDB_FOLDER).mkdir(parents=True)
    (folder / ROCKSDB_FOLDER / "000009.sst").write_bytes(b"rows" * 1_000)
    (folder / ROCKSDB_FOLDER / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    (folder / ROCKSDB_FOLDER / "000010.log").write_bytes(b"")
    write_manifest(folder, described(EMPTY, folder))
    return folder


def test_a_manifest_is_read_as_it_was_written(copy: Path) -> None:
    manifest = read_manifest(copy)
    assert manifest == described(EMPTY, copy)
    assert manifest.bytes_total == 4_016
    assert manifest.gtids().count() == 5
    read: list[int] = []
    verify_files(copy, manifest, read.append)
    assert sum(read) == manifest.bytes_total


@pytest.mark.parametrize("name", ["000009.sst", "CURRENT"])
def test_each_fault_of_a_file_is_found_and_names_it(copy: Path, name: str) -> None:
    manifest = read_manifest(copy)
    path = copy / ROCKSDB_FOLDER / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 16]))
    with pytest.raises(CorruptCopy, match=f"checksum of file {name}"):
        verify_files(copy, manifest)
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptCopy, match=f"file {name} has {len(content) - 1} bytes"):
        verify_files(copy, manifest)
    path.unlink()
    with pytest.raises(CorruptCopy, match=f"file {name} is missing"):
        verify_files(copy, manifest)


def test_a_file_that_nobody_wrote_is_found(copy: Path) -> None:
    (copy / ROCKSDB_FOLDER / "000011.sst").write_bytes(b"")
    with pytest.raises(CorruptCopy, match=r"000011\.sst is not in the manifest"):
        verify_files(copy, read_manifest(copy))


def test_any_changed_bit_of_a_manifest_is_found(copy: Path) -> None:
    whole = (copy / MANIFEST).read_bytes()
    told = read_manifest(copy)
    for place in range(0, len(whole), 7):
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        try:
            found = CopyManifest.decode(changed, "x")
        except (CorruptCopy, UnsupportedFormat):
            continue
        assert found == told, "a bit that means nothing"


def test_a_manifest_of_another_release_is_refused() -> None:
    document = json.loads(EMPTY.encode())
    document["format_version"] = 2
    with pytest.raises(UnsupportedFormat):
        CopyManifest.decode(json.dumps(document).encode(), "x")


@pytest.mark.parametrize("name", ["../rows", "a/b", "", ".hidden", "x" * 300])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    named = replace(EMPTY, files=(CopiedFile(name=name, bytes=1, checksum=""),))
    with pytest.raises(CorruptCopy, match="cannot be a file"):
        CopyManifest.decode(named.encode(), "x")
    file = CopiedFile(name="a", bytes=1, checksum="")
    with pytest.raises(CorruptCopy, match="twice"):
        CopyManifest.decode(replace(EMPTY, files=(file, file)).encode(), "x")


def test_a_folder_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="groupcert backup"):
        read_manifest(tmp_path)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "backup"
    with pytest.raises(RuntimeError), appearing(out) as work:
        (work / "half").touch()
        raise RuntimeError
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep"]
    with appearing(out) as work:
        (work / "whole").touch()
        assert not out.exists()
    assert (out / "whole").is_file()
    with pytest.raises(InvalidSetting, match="--out"), appearing(out):
        pass
    (tmp_path / "empty").mkdir()
    with appearing(tmp_path / "empty") as work:
        (work / "whole").touch()
    assert (tmp_path / "empty" / "whole").is_file()


def test_a_checksum_is_of_all_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"x" * 2_999_999 + b"y")
    assert checksum_of(tmp_path / "a") != checksum_of(tmp_path / "b")
