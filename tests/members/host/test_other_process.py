"""Another process: it yields what a generator of it yields, and ends with who asks."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from groupcert.members.host.other_process import OtherProcess
from tests.integration.waiting import wait_for

ASKING = """
import os
from itertools import count
from groupcert.members.host.other_process import OtherProcess
other = OtherProcess()
for _ in other.ask(count):
    print(other.pid, flush=True)
"""


@pytest.fixture
def other() -> Iterator[OtherProcess]:
    """A process that ends with the test."""
    other = OtherProcess()
    yield other
    other.end()


def test_a_process_answers_one_question_after_the_other(other: OtherProcess) -> None:
    assert [*other.ask(range, 1_000)] == [*range(1_000)]
    found = other.ask(map, int, ["1", "x", "2"])
    assert next(found) == 1
    with pytest.raises(ValueError, match="'x'"):
        next(found)
    assert [*other.ask(iter, [b"1"])] == [b"1"]


def test_who_ends_it_ends_a_question(other: OtherProcess) -> None:
    numbers = other.ask(count)
    assert next(numbers) == 0
    ending = threading.Timer(0.0, other.end)
    ending.start()
    with pytest.raises(ChildProcessError, match="has ended with -9"):
        for _ in numbers:
            pass
    ending.join()


def test_a_question_that_is_left_ends_it(other: OtherProcess) -> None:
    numbers = other.ask(count)
    next(numbers)
    numbers.close()
    with pytest.raises(ChildProcessError):
        next(other.ask(count))


def test_it_ends_with_a_process_that_is_killed() -> None:
    asking = subprocess.Popen([sys.executable, "-c", ASKING], stdout=subprocess.PIPE, text=True)
    with asking:
        assert asking.stdout
        pid = int(asking.stdout.readline())
        asking.kill()
    wait_for("the other process has ended", lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
