"""A copy as it comes in: only good chunks are written, in turn; the rest is asked for again."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest, xxh3_128

from groupcert.certifier.errors import DiskFull, NotServing
from groupcert.certifier.storage.store import ROCKSDB_FOLDER
from groupcert.members.core.recovery_progress import RecoveryProgress
from groupcert.members.errors.calls import TooManyCalls
from groupcert.members.errors.recovery import CopyExpired, CorruptCopy
from groupcert.members.recovery import download as copy_download
from groupcert.members.recovery.donors import Chunk, Donor
from groupcert.members.recovery.download import BrokenStream, CopyWriter, check_space, download_copy
from groupcert.members.recovery.manifest import CopiedFile, CopyManifest, read_manifest
from tests.members.recovery.test_manifest import EMPTY

CONTENT = {"a": b"first file", "b": b"", "c": b"third"}
MANIFEST = replace(
    EMPTY,
    files=tuple(
        CopiedFile(name=name, bytes=len(data), checksum=xxh3_128(data).hexdigest())
        for name, data in CONTENT.items()
    ),
)


def chunk(file: str, offset: int, data: bytes) -> Chunk:
    return Chunk(file, offset, data, xxh3_64_intdigest(data))


class ScriptedDonor(Donor):
    """Each stream gives some chunks of four bytes, and then ends as its turn says."""

    def __init__(self, turns: Sequence[tuple[int, Exception | None]]) -> None:
        self.address = "h:1"
        self.turns = [*turns]
        self.asked: list[tuple[str, int]] = []
        self.closed: list[tuple[str, bool]] = []

    async def open_copy(self, asker: str, *, without_rows: bool = False) -> tuple[str, bytes]:
        return "id", MANIFEST.encode()

    async def read_copy(self, copy_id: str, file: str, offset: int) -> AsyncGenerator[Chunk, None]:
        self.asked.append((file, offset))
        chunks, error = self.turns.pop(0)
        names = [*CONTENT]
        for name in names[names.index(file) :]:
            first = offset if name == file else 0
            for place in range(first, len(CONTENT[name]), 4):
                if not chunks:
                    if error is not None:
                        raise error
                    return
                chunks -= 1
                yield chunk(name, place, CONTENT[name][place : place + 4])

    async def close_copy(self, copy_id: str, *, reads_on: bool) -> None:
        self.closed.append((copy_id, reads_on))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_download, "RESUME_SECONDS", 0.0)


async def download(donor: Donor, folder: Path) -> list[RecoveryProgress]:
    seen: list[RecoveryProgress] = []
    await download_copy(donor, folder, "m3", seen.append, lambda manifest: None, reads_on=True)
    return seen


async def test_what_comes_in_is_the_copy(tmp_path: Path) -> None:
    donor = ScriptedDonor([(99, None)])
    seen = await download(donor, tmp_path)
    found = {path.name: path.read_bytes() for path in (tmp_path / ROCKSDB_FOLDER).iterdir()}
    assert found == CONTENT
    assert read_manifest(tmp_path) == MANIFEST
    assert [each.bytes_done for each in seen] == [4, 8, 10, 14, 15]
    assert donor.closed == [("id", True)]


async def test_a_broken_stream_goes_on_from_the_last_good_byte(tmp_path: Path) -> None:
    gone = NotServing(member="m1", state="UNREACHABLE")
    full = TooManyCalls(open=9, open_max=9)
    donor = ScriptedDonor([(2, gone), (0, TimeoutError()), (0, full), (2, None), (99, None)])
    await download(donor, tmp_path)
    assert donor.asked == [("a", 0), ("a", 8), ("a", 8), ("a", 8), ("c", 4)]
    assert (tmp_path / ROCKSDB_FOLDER / "a").read_bytes() == CONTENT["a"]


async def test_a_stream_that_breaks_again_and_again_is_given_up(tmp_path: Path) -> None:
    donor = ScriptedDonor([(0, None)] * 9)
    with pytest.raises(NotServing, match="it ended early"):
        await download(donor, tmp_path)
    assert len(donor.asked) == copy_download.RESUMES_MAX
    assert donor.closed == [("id", False)]


async def test_a_copy_that_expired_is_given_up_at_once(tmp_path: Path) -> None:
    donor = ScriptedDonor([(1, CopyExpired(copy_id="id", lease_seconds=1))])
    with pytest.raises(CopyExpired):
        await download(donor, tmp_path)


async def test_a_copy_that_is_of_no_use_is_not_read(tmp_path: Path) -> None:
    donor = ScriptedDonor([])

    def refuse(manifest: CopyManifest) -> None:
        raise NotServing(member=manifest.member, state="BEHIND")

    with pytest.raises(NotServing):
        await download_copy(donor, tmp_path, "m3", lambda progress: None, refuse, reads_on=True)
    assert donor.closed == [("id", False)]


def test_only_the_next_chunk_is_taken_and_only_whole(tmp_path: Path) -> None:
    writer = CopyWriter(tmp_path, MANIFEST)
    for wrong in (
        chunk("a", 4, b"t fi"),
        chunk("c", 0, b"thir"),
        chunk("a", 0, b""),
        Chunk("a", 0, b"firs", 1),
    ):
        with pytest.raises(BrokenStream):
            writer.take(wrong)
    assert writer.bytes_done == 0
    writer.take(chunk("a", 0, CONTENT["a"]))
    writer.take(chunk("c", 0, CONTENT["c"]))
    assert writer.next_file is None
    with pytest.raises(BrokenStream):
        writer.take(chunk("c", 5, b"more"))
    writer.close()


@pytest.mark.parametrize("data", [b"first fils", b"first file and more"])
def test_a_file_that_is_not_what_the_manifest_says_ends_it(tmp_path: Path, data: bytes) -> None:
    writer = CopyWriter(tmp_path, MANIFEST)
    with pytest.raises(CorruptCopy, match="file a"):
        writer.take(chunk("a", 0, data))
    writer.close()


def test_no_space_is_said_before_anything_is_read(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(DiskFull):
        check_space(tmp_path, 1 << 60)
