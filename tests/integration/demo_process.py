"""A demo as its users run it: a process, and all that it starts."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest


@contextmanager
def heard(number: signal.Signals) -> Iterator[None]:
    """Has what is started in the block hear a signal, which who runs in the background ignores."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Demo:
    """The command, running; its temporary files are in a folder of its own, whose path is short:
    those of sockets have 107 bytes at most.
    """

    def __init__(self, folder: Path, *flags: str, lacking: Sequence[str] = ()) -> None:
        """`lacking`: what it says on a machine that has not the servers."""
        self.folder = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
        self._log = folder / "stderr"
        self._lacking = lacking
        with self._log.open("wb") as log, heard(signal.SIGINT):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "groupcert.members", "demo", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TMPDIR": str(self.folder)},
            )

    def words(self) -> str:
        """What it has said of its progress."""
        return self._log.read_text()

    def has_said(self, text: str) -> bool:
        """Whether it has come so far; skips the test where the machine lacks the server."""
        words = self.words()
        if self.process.poll() is not None and any(lacking in words for lacking in self._lacking):
            assert os.environ.get("REQUIRE_DATABASES") != "1", words
            pytest.skip(words)
        assert text in words or self.process.poll() is None, words
        return text in words

    def processes(self) -> list[int]:
        """All of its processes: they have its folder in their environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("TMPDIR") == str(self.folder):
                    found.append(process.pid)
        return found

    def end(self) -> None:
        """Kills what a test has not seen ending."""
        with self.process:  # Closes what it reads from, once.
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)
