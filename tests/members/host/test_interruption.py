"""Ctrl-C and SIGTERM: what is done is kept, what was started ends, and the second one is final."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from groupcert.members.host.interruption import INTERRUPTED, Course, held_back, interruptible


def test_a_course_that_goes_through_says_nothing_of_it() -> None:
    with Course() as course:
        pass
    assert (course.document(), course.exit_code(1)) == ({}, 1)


def test_a_course_tells_of_an_interrupt() -> None:
    with Course() as course:
        raise KeyboardInterrupt
    assert (course.document(), course.exit_code(0)) == ({"interrupted": True}, INTERRUPTED)


def test_a_course_hides_no_error() -> None:
    with pytest.raises(ZeroDivisionError), Course():
        raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_interrupt_and_handlers_are_as_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_signal_waits_until_what_was_started_is_kept() -> None:
    kept = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        with held_back():
            with held_back():
                signal.raise_signal(signal.SIGINT)
            kept.append("started")
        kept.append("too late")
    assert kept == ["started"]
    with held_back():
        kept.append("nothing is due any more")


def test_a_signal_wins_over_what_fails_meanwhile() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible(), held_back():
        signal.raise_signal(signal.SIGTERM)
        raise OSError


def test_the_second_signal_ends_a_process_that_still_cleans_up(tmp_path: Path) -> None:
    program = """
        import time
        from groupcert.members.host.interruption import interruptible
        with interruptible():
            try:
                print("ready", flush=True)
                time.sleep(600)
            finally:
                print("cleans up", flush=True)
                time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleans up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
