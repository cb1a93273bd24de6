"""`groupcert backup` and `groupcert restore`: a copy of a member's state on disk, and back.

The rule it keeps: a backup appears whole and verified, or not at all. A restore checks everything
before a data folder gets anything: each file is compared with its checksum, every block of the
store is read, and the digest of its content is compared with the backup's.
"""

import asyncio
import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import typer
from pydantic import TypeAdapter, ValidationError

from ...applier.targets.rocksdb import ROW_PREFIX
from ...certifier.errors import InvalidSetting, UnsupportedFormat
from ...certifier.storage.store import ROCKSDB_FOLDER, Family, StoreIdentity
from ..core.recovery_progress import RecoveryProgress, readable
from ..errors.recovery import CorruptCopy
from ..host.logs import configure_logs
from ..host.private_files import keep_private
from ..host.progress_bar import Progress, progress
from ..recovery import store_swap
from ..recovery.donors import donor_at
from ..recovery.download import check_space, download_copy, written_error
from ..recovery.manifest import (
    FORMAT_VERSION,
    CopyManifest,
    appearing,
    file_problems,
    read_manifest,
    verify_content,
    verify_files,
    write_manifest,
)
from ..runtime.opening import ROWS_AT_SERVER_KEY
from ..security.credentials import Credentials
from ..settings.member import Name
from .verb_options import FINDING, FINE

CHECKING = "checking files"
SERVERS = (
    "one that keeps its rows itself: those of this one are at its PostgreSQL server, and so is all"
    " that a backup needs: pg_dump -Fc -f FILE DSN, or pg_basebackup -D FOLDER; what is restored"
    " from it is a server of the group again after groupcert postgresql attach"
)


def backup(address: str, out: Path, *, credentials: Credentials, as_json: bool) -> int:
    """Takes a backup from a running member into a new folder, and prints what it holds.

    Raises:
        InvalidSetting: The folder is there already, or a PostgreSQL server keeps the rows.
        NotServing, MemberFailed: The member gives no copy.
        CorruptCopy: What it gave cannot be read.
    """
    configure_logs()
    keep_private()
    with progress("asking for a copy") as state, appearing(out) as work:
        manifest = asyncio.run(_download(address, credentials, work, state))
        content = _read(work, manifest, state)
        if content.has_rows_at_server:
            raise InvalidSetting(name="member", value=manifest.member, expected=SERVERS)
        manifest = replace(manifest, content_digest=content.digest)
        write_manifest(work, manifest)
    _tell(manifest, out, "backed up", as_json=as_json)
    return 0


def restore(folder: Path, data_folder: Path, member: str, *, dry_run: bool, as_json: bool) -> int:
    """Puts a backup into an empty data folder, for a member of this name; with `dry_run` only
    checks whether that would work.

    Raises:
        DiskFull: There is no space for it.
        InvalidSetting: There is no backup, or the data folder has something in it.
        CorruptCopy: The backup is not what was written.
    """
    try:
        TypeAdapter(Name).validate_python(member)
    except ValidationError:
        expected = "1 to 64 letters, digits, - and _"
        raise InvalidSetting(name="--member", value=member, expected=expected) from None
    manifest = read_manifest(folder)
    if data_folder.exists() and (not data_folder.is_dir() or any(data_folder.iterdir())):
        expected = "a folder that is empty, or not there"
        raise InvalidSetting(name="--data-folder", value=str(data_folder), expected=expected)
    keep_private([] if dry_run else [data_folder])
    with progress(CHECKING, manifest.bytes_total, readable) as state:
        verify_files(folder, manifest, state.advance)
        _read(folder, manifest, state)
        if dry_run:
            check_space(_existing(data_folder), manifest.bytes_total)
        else:
            state.step("copying")
            _put(folder, manifest, data_folder, member)
    _tell(manifest, data_folder, "can be restored" if dry_run else "restored", as_json=as_json)
    return 0


def check(folder: Path, *, as_json: bool) -> int:
    """Checks a backup by itself, and prints what it has and all that is wrong with it; returns 1 if
    anything is.

    Raises InvalidSetting: There is no backup.
    """
    try:
        manifest = read_manifest(folder)
    except (CorruptCopy, UnsupportedFormat) as error:
        return _tell_findings({"folder": str(folder)}, [str(error)], as_json=as_json)
    document = _document(manifest, folder)
    document["format_version"] = FORMAT_VERSION
    document["created"] = f"{datetime.fromtimestamp(manifest.created_us / 1e6, UTC):%FT%TZ}"
    with progress(CHECKING, manifest.bytes_total, readable) as state:
        findings = list(file_problems(folder, manifest, state.advance))
        if not findings:  # Of files that are not those that were written, no content is known.
            try:
                document["rows"] = _read(folder, manifest, state).rows
            except CorruptCopy as error:
                findings.append(error.problem)
    return _tell_findings(document, findings, as_json=as_json)


class _Content(NamedTuple):
    """What a store holds: its digest, and how many rows of clients, or that a server has them."""

    digest: str
    rows: int
    has_rows_at_server: bool


def _read(folder: Path, manifest: CopyManifest, state: Progress) -> _Content:
    """Reads all of a copy's store. Raises CorruptCopy."""
    state.step("reading it", number="{:,.0f} entries".format)
    rows, has_rows_at_server = 0, False

    def count(family: Family, keys: list[bytes]) -> None:
        nonlocal rows, has_rows_at_server
        state.advance(len(keys))
        if family is Family.DATA:
            rows += sum(key.startswith(ROW_PREFIX) for key in keys)
        elif family is Family.META:
            has_rows_at_server |= ROWS_AT_SERVER_KEY in keys

    digest = verify_content(folder, manifest, count)
    return _Content(digest, rows, has_rows_at_server)


def _existing(folder: Path) -> Path:
    """Returns a folder that may not be there yet, or the nearest one above it that is."""
    return next(each for each in (folder, *folder.absolute().parents) if each.is_dir())


async def _download(
    address: str, credentials: Credentials, work: Path, state: Progress
) -> CopyManifest:
    def show(copied: RecoveryProgress) -> None:
        if not state.total:
            state.step(f"copying the state of {copied.donor}", number=readable)
        state.at(copied.bytes_done, copied.bytes_total)

    async with donor_at(address, credentials) as donor:
        return await download_copy(
            donor, work, "groupcert backup", show, lambda manifest: None, reads_on=False
        )


def _put(folder: Path, manifest: CopyManifest, data_folder: Path, member: str) -> None:
    """Copies the files, checks the copies, and makes them the member's own."""
    existed = data_folder.exists()
    try:
        incoming = store_swap.begin(data_folder)
        check_space(incoming, manifest.bytes_total)
        (incoming / ROCKSDB_FOLDER).mkdir()
        for file in manifest.files:
            shutil.copyfile(
                folder / ROCKSDB_FOLDER / file.name, incoming / ROCKSDB_FOLDER / file.name
            )
        verify_files(incoming, manifest)
        identity = StoreIdentity(group=manifest.group, member=member)
        store_swap.adopt(data_folder, manifest, identity)
        store_swap.finish(data_folder)
    except BaseException as error:
        for left in data_folder.iterdir() if data_folder.exists() else ():
            shutil.rmtree(left, ignore_errors=True)
        if not existed:
            shutil.rmtree(data_folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise written_error(data_folder, error) from error
        raise


def _document(manifest: CopyManifest, folder: Path) -> dict[str, object]:
    return {
        "folder": str(folder),
        "group": manifest.group,
        "member": manifest.member,
        "log_sequence": manifest.log_sequence,
        "version": manifest.version,
        "gtid_executed": manifest.gtid_executed,
        "bytes": manifest.bytes_total,
        "files": len(manifest.files),
        "content_digest": manifest.content_digest,
    }


def _tell_findings(document: dict[str, object], findings: list[str], *, as_json: bool) -> int:
    if as_json:
        result = "damaged" if findings else "whole"
        typer.echo(json.dumps({"result": result, **document, "findings": findings}))
    else:
        for name, value in document.items():
            number = isinstance(value, int)
            typer.echo(f"{name.replace('_', ' '):16}{f'{value:,}' if number else value}")
        typer.echo("".join(f"damaged: {each}\n" for each in findings) or "whole\n", nl=False)
    return FINDING if findings else FINE


def _tell(manifest: CopyManifest, folder: Path, what: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"result": what, **_document(manifest, folder)}))
        return
    typer.echo(
        f"{what}: {readable(manifest.bytes_total)} in {len(manifest.files)} files of member "
        f"{manifest.member} of group {manifest.group}, as of position {manifest.log_sequence} "
        f"of the log, {manifest.version} transactions; {folder}"
    )
