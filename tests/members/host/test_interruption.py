"""Ctrl-C and SIGTERM: what is done is kept, what was started ends, and the second one is final."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from groupcert.members.host.interruption import INTERRUPTED, Course, held_back, interruptible


def test_a_course_that_goes_through_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []
    with Course("ab", str.upper) as course:
        done.extend(course)
    assert done == ["a", "b"]
    assert (course.document(), course.text(), course.exit_code(1)) == ({}, "", 1)
    assert capsys.readouterr().err == "[1/2] A\n[2/2] B\n"


def test_a_course_keeps_what_was_done_before_an_interrupt() -> None:
    done = []
    with Course("abc") as course:
        for part in course:
            if part == "b":
                raise KeyboardInterrupt
            done.append(part)
    assert done == ["a"]
    assert course.document() == {"interrupted": True, "not_run": ["b", "c"]}
    assert course.text() == "interrupted; not run: b; c\n"
    assert course.exit_code(0) == INTERRUPTED


def test_a_course_that_never_began_has_run_nothing() -> None:
    with Course("ab") as course:
        raise KeyboardInterrupt
    assert course.not_run == ["a", "b"]


def test_a_course_hides_no_error() -> None:
    with pytest.raises(ZeroDivisionError), Course("a"):
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
