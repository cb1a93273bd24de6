"""The thread that writes a member's certification log: outbox in, files out.

The rule it keeps: it is not in the way. What it takes from the outbox is on the member's disk and
committed; it works in small steps, with as much rest between them until too much waits; and a
folder that takes nothing stops nobody: the outbox keeps what there is, up to a limit.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from certifier.errors import GroupcertError
from certifier.history import Cursor, Row
from members.certification_log import (
    Abandoned,
    prepare,
    remove_unfinished,
    rows_beyond,
    write_file,
)
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
        self._left_bytes = 0
        self._found_rows = outbox.waiting_rows
        self._has_looked = self._is_abandoned = False
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

    def stop(self, timeout_seconds: float) -> None:
        """Writes all that is committed, if the folder takes it in time, and ends; after that it
        touches neither store nor folder. What is not written waits in the store.
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
        """Ends after the step that is under way, or after the time; what waits gets no file."""
        self._is_abandoned = True
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            prepare()
            while not self._stopping.wait(RETRY_SECONDS if self.error else POLL_SECONDS):
                if self._is_due or not self._has_looked:
                    self._try()
            self._try()
        except Exception as error:
            if not self._is_abandoned:  # Else the store may be closed.
                self._on_error(error)

    @property
    def _is_due(self) -> bool:
        outbox, options = self.outbox, self._options
        waited_seconds = time.monotonic() - outbox.waits_since
        is_old = outbox.waiting_rows > 0 and waited_seconds >= options.file_seconds
        return is_old or self._is_file_full

    @property
    def _is_file_full(self) -> bool:
        """What the last file left, as it was not committed, waits for the next one's time."""
        waiting_bytes = self.outbox.waiting_bytes
        more_bytes = waiting_bytes - min(self._left_bytes, waiting_bytes)
        is_full = more_bytes * self._share >= self._options.file_bytes
        return is_full or self.outbox.is_filling(more_bytes)

    def _try(self) -> None:
        """Writes what there is, file by file; what fails is tried again later."""
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
        """Whether there was anything for a file."""
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
            self._left_bytes = outbox.waiting_bytes
            outbox.waits_since = time.monotonic()
            return False
        self._check_wanted()
        if outbox.written(taken, file.cursor):
            self._on_written(file.cursor)
        self.written_rows += file.rows
        self.last_file = file.path.name
        size = file.path.stat().st_size
        self._left_bytes = outbox.waiting_bytes if size < options.file_bytes else 0
        self._share = min(max(size / max(taken.bytes, 1), 0.01), 1.0)
        return True

    def _look(self) -> None:
        """Removes what was left unfinished. A member that was killed has left one file more than
        its store knows of, with rows that still wait there; other files tell that the store was put
        back to an earlier state.
        """
        outbox, folder = self.outbox, self._options.folder
        remove_unfinished(folder, outbox.observer)
        beyond = rows_beyond(folder, outbox.observer, outbox.history, outbox.cursor.place)
        outbox.is_superseded = len(beyond) > 1 or sum(beyond) > self._found_rows
        self._has_looked = True

    def _check_wanted(self) -> None:
        """Raises Abandoned if nobody waits for this thread any more: the store may be closed."""
        if self._is_abandoned:
            raise Abandoned

    def _at_leisure(self, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows; after some of them it rests for as long as they took. It does not while more
        comes in than it writes like that: what does not fit into the outbox is lost.
        """
        began = time.thread_time()
        for number, row in enumerate(rows, 1):
            self._check_wanted()
            yield row
            if number % STEP_ROWS == 0:
                if not self.outbox.is_filling(self.outbox.waiting_bytes):
                    self._stopping.wait(time.thread_time() - began)
                began = time.thread_time()
