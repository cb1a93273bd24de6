"""`groupcert demo --postgresql` as its users run it: the whole of it, and ended in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.waiting import SECONDS_MAX, wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database]

FINE, INTERRUPTED = 0, 130
LACKING = ("no PostgreSQL server here", "it has no plpython3u")


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

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="demo-", dir="/tmp"))
        self._log = folder / "stderr"
        with self._log.open("wb") as log, heard(signal.SIGINT):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "groupcert.members", "demo", "--postgresql", *flags],
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
        if self.process.poll() is not None and any(lacking in words for lacking in LACKING):
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


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    """Kills the demos that a test has not seen ending."""
    started: list[Demo] = []
    yield started
    for demo in started:
        with demo.process:  # Closes what it reads from, once.
            for pid in demo.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(demo.folder)


def test_the_document_has_what_the_checks_found(tmp_path: Path, demos: list[Demo]) -> None:
    demo = Demo(tmp_path, "--seconds", "6", "--json")
    demos.append(demo)
    output, _ = demo.process.communicate()
    demo.has_said("clients stopped")
    document = json.loads(output)
    assert demo.process.returncode == FINE, demo.words()
    assert document["findings"] == []
    verdicts = ("converged", "invariant_ok", "exactly_once", "stamps_valid")
    assert [document[name] for name in verdicts] == [True] * 4
    assert (document["members"], document["lost"]) == (3, 0)
    assert document["certified"] >= document["acknowledged"] > 0
    assert document["unknown"] >= document["unknown_committed"]
    assert document["retried"] >= document["conflicts"] > 0
    for conflict in document["conflict_examples"]:
        assert conflict["sqlstate"] == "40001"
        assert " was written by " in conflict["detail"]
        assert conflict["hint"].startswith("Run the transaction again")
    assert document["conflict_examples"]
    assert document["killed"]["server"] == "m2"
    assert document["killed"]["back_seconds"] > 0
    assert list(demo.folder.iterdir()) == [], "its folder is removed"
    assert demo.processes() == []


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "clients transfer money"), (signal.SIGTERM, "starting 3 PostgreSQL servers")],
    ids=["Ctrl-C under load", "SIGTERM while it starts"],
)
def test_one_that_is_ended_leaves_nothing(
    tmp_path: Path, demos: list[Demo], number: signal.Signals, moment: str
) -> None:
    demo = Demo(tmp_path, "--seconds", "60")
    demos.append(demo)
    wait_for(moment, lambda: demo.has_said(moment))
    demo.process.send_signal(number)
    assert demo.process.wait(SECONDS_MAX) == INTERRUPTED, demo.words()
    assert list(demo.folder.iterdir()) == []
    wait_for("the end of all processes", lambda: not demo.processes())
    assert "Traceback" not in demo.words()
