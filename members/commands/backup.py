"""`groupcert backup` and `groupcert restore`: a copy of a member's state on disk, and back.

The rule it keeps: a backup appears whole and verified, or not at all. A restore checks everything
before a data folder gets anything: each file is compared with its checksum, every block of the
store is read, and the digest of its content is compared with the backup's.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, StoreIdentity
from groupcert.members.core.recovery_plan import RecoveryProgress, readable
from groupcert.members.host.logs import configure_logs
from groupcert.members.recovery import store_swap
from groupcert.members.recovery.donors import donor_at
from groupcert.members.recovery.download import check_space, download_copy, written_error
from groupcert.members.recovery.manifest import (
    CopyManifest,
    appearing,
    read_manifest,
    verify_content,
    verify_files,
    write_manifest,
)
from groupcert.members.security.credentials import Credentials
from groupcert.members.settings.member import Name


def backup(address: str, out: Path, *, credentials: Credentials, as_json: bool) -> int:
    """Takes a backup from a running member into a new folder, and prints what it holds.

    Raises:
        InvalidSetting: The folder is there already.
        NotServing, MemberFailed: The member gives no copy.
        CorruptCopy: What it gave cannot be read.
    """
    configure_logs()
    with _bar() as bar, appearing(out) as work:
        manifest = asyncio.run(_download(address, credentials, work, bar))
        bar.description("reading it")
        digest = verify_content(work, manifest)
        manifest = replace(manifest, content_digest=digest)
        write_manifest(work, manifest)
    _tell(manifest, out, "backed up", as_json=as_json)
    return 0


def restore(folder: Path, data_folder: Path, member: str, *, dry_run: bool, as_json: bool) -> int:
    """Puts a backup into an empty data folder, for a member of this name; with `dry_run` only
    checks whether that would work.

    Raises:
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
    with _bar() as bar:
        bar.description("checking files")
        verify_files(folder, manifest, partial(bar.advance, manifest.bytes_total))
        bar.description("reading it")
        verify_content(folder, manifest)
        if not dry_run:
            bar.description("copying")
            _put(folder, manifest, data_folder, member)
    _tell(manifest, data_folder, "can be restored" if dry_run else "restored", as_json=as_json)
    return 0


async def _download(
    address: str, credentials: Credentials, work: Path, bar: "_Bar"
) -> CopyManifest:
    async with donor_at(address, credentials) as donor:
        return await download_copy(
            *(donor, work, "groupcert backup", bar.show, lambda manifest: None), reads_on=False
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


def _tell(manifest: CopyManifest, folder: Path, what: str, *, as_json: bool) -> None:
    document = {
        "result": what,
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
    if as_json:
        typer.echo(json.dumps(document))
        return
    typer.echo(
        f"{what}: {readable(manifest.bytes_total)} in {len(manifest.files)} files of member "
        f"{manifest.member} of group {manifest.group}, as of position {manifest.log_sequence} "
        f"of the log, {manifest.version} transactions; {folder}"
    )


class _Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("asking for a copy", total=None)

    def description(self, text: str) -> None:
        """Shows what is done from now on."""
        self._progress.reset(self._task, total=None, description=text)

    def show(self, progress: RecoveryProgress) -> None:
        """Shows how far a copy is."""
        self._progress.update(
            self._task,
            description=str(progress),
            completed=progress.bytes_done,
            total=progress.bytes_total,
        )

    def advance(self, total: int, count: int) -> None:
        """Adds some of all bytes."""
        self._progress.update(self._task, advance=count, total=total)


@contextmanager
def _bar() -> Iterator[_Bar]:
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"))
    shown = sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        yield _Bar(progress)
