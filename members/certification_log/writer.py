"""The thread that writes a member's certification log, from the outbox to files.

The rule it keeps: it does not slow the member down. The rows it takes are on the member's disk and
committed; it works in small steps, with as much rest between them until too much waits; and if the
folder takes no files, the outbox keeps the rows, up to a limit, and the member goes on.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from ...certifier.errors import GroupcertError
from ...certifier.history.schema import Cursor, Row
from .files import (
    Abandoned,
    prepare,
    remove_unfinished,
    rows_beyond,
    write_file,
)
from .outbox import KeptHistory, Outbox

POLL_SECONDS = 0.2
RETRY_SECONDS = 5.0
STEP_ROWS = 256
FILE_SHARE = 0.4
"""Bytes in a file for a byte of the outbox, before a file was written."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificationLogOptions:
    """The folder of files, and when one ends; see the settings of a member."""

    folder: Path
    file_bytes: int
    file_seconds: int


class CertificationLogWriter(KeptHistory):
    """Writes the files of one member. `written_rows` are those since the start; `error` is why the
    last try failed, empty if it did not.
    """

    def __init__(
        self,
        outbox: Outbox,
        options: CertificationLogOptions,
        committed_version: Callable[[], int],
        on_written: Callable[[Cursor], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """
        Args:
            committed_version: what is visible now.
            on_written: called with how far the files are written.
            on_error: called once, by the thread, which has ended then, with what should not be.
        """
        super().__init__(outbox, options.folder)
        self._options = options
        self._committed_version = committed_version
        self._on_written = on_written
        self._on_error = on_error
        self._share = FILE_SHARE
        self._left_bytes = 0
        self._found_rows = outbox.waiting_rows
        self._has_looked = self._is_abandoned = False
        self._hurries = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="certification-log-writer", daemon=True
        )

    def start(self) -> None:
        """Begins to write, from where an earlier process was."""
        self._found_rows = self.outbox.waiting_rows
        if self.outbox.cursor.number:
            self._on_written(self.outbox.cursor)
        self._thread.start()

    def hurry(self) -> None:
        """Writes what waits and is committed, however new, without being waited for."""
        self._hurries = self._thread.is_alive() and not self.error

    @property
    def hurries(self) -> bool:
        """True until what `hurry` asked for is written, or cannot be."""
        return self._hurries

    def stop(self, timeout_seconds: float) -> None:
        """Writes all that is committed, if the folder takes it in time, and ends; after that it
        touches neither store nor folder. Rows that are not written wait in the store.
        """
        self._stopping.set()
        if self._thread.is_alive() and not self._is_abandoned:
            self._thread.join(timeout_seconds)
            self._is_abandoned = self._thread.is_alive()
            if self._is_abandoned:
                outbox = self.outbox
                log.warning(
                    "certification_log_not_written",
                    member=outbox.observer,
                    rows=outbox.waiting_rows,
                )

    def leave(self, timeout_seconds: float) -> None:
        """Ends after the current step, or after `timeout_seconds`; rows that wait get no file."""
        self._is_abandoned = True
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            prepare()
            while not self._stopping.wait(RETRY_SECONDS if self.error else POLL_SECONDS):
                if self._is_due or self._hurries or not self._has_looked:
                    self._try()
                    self._hurries = False
            self._try()
        except Exception as error:
            if not self._is_abandoned:  # Else the store may be closed.
                self._on_error(error)

    @property
    def _is_due(self) -> bool:
        outbox, options = self.outbox, self._options
        waited_seconds = time.monotonic() - outbox.waits_since
        is_old = self._hurries or waited_seconds >= options.file_seconds
        return (is_old and outbox.waiting_rows > 0) or self._is_file_full

    @property
    def _is_file_full(self) -> bool:
        """True if a file can be filled, beside rows that the last one left as not committed."""
        waiting_bytes = self.outbox.waiting_bytes
        more_bytes = waiting_bytes - min(self._left_bytes, waiting_bytes)
        is_full = more_bytes * self._share >= self._options.file_bytes
        return is_full or self.outbox.is_filling(more_bytes)

    def _try(self) -> None:
        """Writes the waiting rows, file by file; tries again later after an error."""
        try:
            self._check_wanted()
            if not self._has_looked:
                self._look()
            while (self._is_due or self._stopping.is_set()) and self._write_file():
                pass
        except (OSError, GroupcertError) as error:
            if str(error) != self.error:
                log.warning(
                    "certification_log_failed", member=self.outbox.observer, text=str(error)
                )
            self.error = str(error)
            return
        if self.error:
            log.info("certification_log_goes_on", member=self.outbox.observer)
        self.error = ""

    def _write_file(self) -> bool:
        """Writes one file; returns whether there were rows for it."""
        outbox, options = self.outbox, self._options
        if outbox.is_superseded:
            return False
        taken = outbox.take(self._committed_version())
        outbox.store.flush()
        rows = self._at_leisure(taken.rows())
        file = write_file(
            options.folder, rows, taken.cursor, options.file_bytes, lambda: not self._is_abandoned
        )
        if file is None:
            self._left_bytes = taken.waiting_bytes
            outbox.waits_since = time.monotonic()
            return False
        self._check_wanted()
        if outbox.written(taken, file.cursor):
            self._on_written(file.cursor)
        self.written_rows += file.rows
        self.last_file = file.path.name
        size = file.path.stat().st_size
        # What came in while the file was written was left by nobody, and fills the next one.
        self._left_bytes = taken.waiting_bytes - taken.bytes if size < options.file_bytes else 0
        self._share = min(max(size / max(taken.bytes, 1), 0.01), 1.0)
        return True

    def _look(self) -> None:
        """Removes unfinished files. A member that was killed has left one file more than its store
        knows of, with rows that still wait there; further files show that the store was put back to
        an earlier state.
        """
        outbox, folder = self.outbox, self.folder
        remove_unfinished(folder, outbox.observer)
        beyond = rows_beyond(folder, outbox.observer, outbox.history, outbox.cursor.place)
        outbox.is_superseded = len(beyond) > 1 or sum(beyond) > self._found_rows
        self._has_looked = True

    def _check_wanted(self) -> None:
        """Raises Abandoned if this thread was given up: the store may be closed."""
        if self._is_abandoned:
            raise Abandoned

    def _at_leisure(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yields the rows and sleeps after every STEP_ROWS for as long as they took (at most half a
        core). While the outbox fills it does not sleep: rows that do not fit are dropped.
        """
        began = time.thread_time()
        for number, row in enumerate(rows, 1):
            self._check_wanted()
            yield row
            if number % STEP_ROWS == 0:
                if not self.outbox.is_filling(self.outbox.waiting_bytes):
                    self._stopping.wait(time.thread_time() - began)
                began = time.thread_time()
