"""A copy of a member's store: files, and a manifest that says what each of them must be.

The rule it keeps: a copy is complete or invalid. Its manifest carries a checksum of its own, a size
and a checksum for each file, and the position in the log from which a member with these files
continues. A backup is such a folder; so is what a donor sends.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from xxhash import xxh3_128

from ...certifier.errors import CorruptStore, InvalidSetting, UnsupportedFormat
from ...certifier.gtid_set import GtidSet
from ...certifier.storage.digest import OnPage, content_digest
from ...certifier.storage.store import ROCKSDB_FOLDER
from ..errors.recovery import CorruptCopy
from ..host.sync import sync
from ..total_order.port import LogIdentity

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
READ_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 16 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """One file: its name, without folders, its size, and XXH3 of its bytes in hexadecimal."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyManifest:
    """The content of a copy, and its position in the log.

    `log_sequence`: the last message of the log in it. `version`: transactions certified up to
    there; its rows have them, or its relay queue does. `gtid_executed`: their GTIDs.
    `certification_digest`: of the certifier's state there. `content_digest`: of all that the store
    holds; empty if it was not read yet.
    """

    group: str
    member: str
    log: LogIdentity
    log_sequence: int
    version: int
    gtid_executed: str
    certification_digest: str
    created_us: int
    files: tuple[CopiedFile, ...]
    content_digest: str = ""

    @property
    def bytes_total(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def gtids(self) -> GtidSet:
        """Returns `gtid_executed` as a set."""
        return GtidSet.parse(self.gtid_executed)

    def encode(self) -> bytes:
        """Returns the manifest as JSON, with its format and checksum."""
        body = json.dumps(asdict(self), sort_keys=True)
        document = {
            "format_version": FORMAT_VERSION,
            "checksum": xxh3_128(body.encode()).hexdigest(),
            "bytes_total": self.bytes_total,
            "manifest": json.loads(body),
        }
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, encoded: bytes, path: str) -> "CopyManifest":
        """Returns the manifest that `encode` encoded; errors name `path`.

        Raises:
            CorruptCopy: It is not what was written.
            UnsupportedFormat: Another release wrote it.
        """
        try:
            document = json.loads(encoded)
            found = document["format_version"]
            if found != FORMAT_VERSION:
                what = f"manifest of copy {path}"
                raise UnsupportedFormat(what=what, found=str(found), supported=str(FORMAT_VERSION))
            fields = document["manifest"]
            body = json.dumps(fields, sort_keys=True).encode()
            if document["checksum"] != xxh3_128(body).hexdigest():
                raise ValueError("its checksum does not match")
            files = tuple(CopiedFile(**file) for file in fields.pop("files"))
            manifest = cls(log=LogIdentity(**fields.pop("log")), files=files, **fields)
            manifest._check_names()
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCopy(path=path, problem=f"{MANIFEST}: {error}") from error
        return manifest

    def _check_names(self) -> None:
        """Raises ValueError for a name that could lead out of the copy's folder."""
        names = [file.name for file in self.files]
        if len(set(names)) < len(names):
            raise ValueError("a file is named twice")
        for file in self.files:
            if not _FILE_NAME.fullmatch(file.name) or file.bytes < 0:
                raise ValueError(f"{file.name!r} cannot be a file of a copy")


def described(manifest: CopyManifest, folder: Path) -> CopyManifest:
    """Returns the manifest with the files in a copy's folder. Reads them all."""
    paths = sorted((folder / ROCKSDB_FOLDER).iterdir())
    return replace(
        manifest,
        files=tuple(
            CopiedFile(name=path.name, bytes=path.stat().st_size, checksum=checksum_of(path))
            for path in paths
        ),
    )


def checksum_of(path: Path, on_bytes: OnBytes = lambda count: None) -> str:
    """Returns the XXH3 of a file's bytes, in hexadecimal."""
    checksum = xxh3_128()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            checksum.update(data)
            on_bytes(len(data))
    return checksum.hexdigest()


def read_manifest(folder: Path) -> CopyManifest:
    """Returns the manifest in a copy's folder.

    Raises:
        InvalidSetting: There is none.
        CorruptCopy, UnsupportedFormat: It cannot be read.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidSetting(name="DIR", value=str(folder), expected="a folder of groupcert backup")
    with path.open("rb") as file:
        return CopyManifest.decode(file.read(MANIFEST_BYTES_MAX), str(folder))


def verify_files(
    folder: Path, manifest: CopyManifest, on_bytes: OnBytes = lambda count: None
) -> None:
    """Raises CorruptCopy, naming the file, unless all files are there and match the manifest."""
    for problem in file_problems(folder, manifest, on_bytes):
        raise CorruptCopy(path=str(folder), problem=problem)


def file_problems(
    folder: Path, manifest: CopyManifest, on_bytes: OnBytes = lambda count: None
) -> Iterator[str]:
    """Yields the differences, in words, between the files of a copy and its manifest."""
    paths = {path.name: path for path in (folder / ROCKSDB_FOLDER).glob("*")}
    for file in manifest.files:
        path = paths.pop(file.name, None)
        if path is None or not path.is_file():
            yield f"file {file.name} is missing"
        elif (size := path.stat().st_size) != file.bytes:
            yield f"file {file.name} has {size} bytes, {file.bytes} were written"
        elif checksum_of(path, on_bytes) != file.checksum:
            yield f"the checksum of file {file.name} does not match"
    for name in sorted(paths):
        yield f"file {name} is not in the manifest"


def verify_content(
    folder: Path, manifest: CopyManifest, on_page: OnPage = lambda family, keys: None
) -> str:
    """Reads all that the copy's store holds, and returns the digest of it.

    Raises:
        CorruptCopy: Some cannot be read, or the digest is not the manifest's.
    """
    try:
        digest = content_digest(folder, on_page)
    except CorruptStore as error:
        raise CorruptCopy(path=str(folder), problem=error.problem) from error
    if manifest.content_digest not in ("", digest):
        problem = f"its content has the digest {digest}, {manifest.content_digest} was written"
        raise CorruptCopy(path=str(folder), problem=problem)
    return digest


def write_manifest(folder: Path, manifest: CopyManifest) -> None:
    """Puts the manifest beside the files, durably."""
    with (folder / MANIFEST).open("wb") as file:
        file.write(manifest.encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Yields a folder to work in, which gets its name at the end of the block; after an error it is
    removed.

    Raises:
        InvalidSetting: There is something under that name.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if folder.exists():
        raise InvalidSetting(name="--out", value=str(folder), expected="a folder that is not there")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.incomplete-{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
        sync(work)
        work.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
