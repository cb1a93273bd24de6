"""The thread that writes a member's certification log: outbox in, files out.

The rule it keeps: it is never in the way. What it takes from the outbox is on the member's disk and
committed; it works in small steps, with as much rest between them; and a folder that takes nothing
stops nobody: the outbox keeps everything until it does.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from certifier.errors import GroupcertError
from certifier.history import Cursor, Row
from members.certification_log import prepare, remove_unfinished, write_file
from members.outbox import Outbox

POLL_SECONDS = 0.2
RETRY_SECONDS = 5.0
STEP_ROWS = 256
FILE_SHARE = 0.4
"""What a byte of the outbox takes in a file, before one was written."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificationLogOptions:
    """Where files go, and when one ends; see the settings of a member."""

    folder: Path
    file_bytes: int
    file_seconds: int


class CertificationLogWriter:
    """Writes the files of one member. `written_rows` are those since the start; `error` is why the
    last try failed, empty where it did not.
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
        self.outbox = outbox
        self.written_rows = 0
        self.last_file = ""
        self.error = ""
        self._options = options
        self._committed_version = committed_version
        self._on_written = on_written
        self._on_error = on_error
        self._share = FILE_SHARE
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="certification-log-writer", daemon=True
        )

    def start(self) -> None:
        """Begins to write, from where an earlier process was."""
        if self.outbox.cursor.number:
            self._on_written(self.outbox.cursor)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Writes all that is committed, if the folder takes it, and ends."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                log.warning("certification_log_not_written", member=self.outbox.observer)

    def _run(self) -> None:
        try:
            prepare()
            while not self._stopping.wait(RETRY_SECONDS if self.error else POLL_SECONDS):
                if self._is_due:
                    self._try()
            self._try()
        except Exception as error:
            self._on_error(error)

    @property
    def _is_due(self) -> bool:
        outbox, options = self.outbox, self._options
        waited_seconds = time.monotonic() - outbox.waits_since
        is_old = outbox.waiting_rows > 0 and waited_seconds >= options.file_seconds
        return is_old or self._is_file_full

    @property
    def _is_file_full(self) -> bool:
        return self.outbox.waiting_bytes * self._share >= self._options.file_bytes

    def _try(self) -> None:
        """Writes what there is, file by file; what fails is tried again later."""
        try:
            while self._write_file() and (self._is_file_full or self._stopping.is_set()):
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
        """Whether there was anything for a file."""
        outbox = self.outbox
        taken = outbox.take(self._committed_version())
        outbox.store.flush()
        folder = self._options.folder
        remove_unfinished(folder, taken.history)
        rows = self._at_leisure(taken.rows())
        file = write_file(folder, rows, taken.cursor, self._options.file_bytes)
        if file is None:
            outbox.waits_since = time.monotonic()
            return False
        if outbox.written(taken, file.cursor):
            self._on_written(file.cursor)
        self.written_rows += file.rows
        self.last_file = file.path.name
        self._share = max(file.path.stat().st_size / max(taken.bytes, 1), 0.01)
        return True

    def _at_leisure(self, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows; after some of them it rests for as long as they took."""
        began = time.thread_time()
        for number, row in enumerate(rows, 1):
            yield row
            if number % STEP_ROWS == 0:
                self._stopping.wait(time.thread_time() - began)
                began = time.thread_time()
