"""Ctrl-C and SIGTERM: the first one ends a program in good order, the second one at once.

What has been measured when somebody has enough of it is worth something: a program keeps it, stops
the processes that it has started, and removes its folders. That may take seconds; who does not
wait for it asks again.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.resource_tracker import ensure_running
from types import FrameType
from typing import Self

INTERRUPTED = 130
"""The exit code of what was interrupted, as shells give it."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Has the first Ctrl-C or SIGTERM raise KeyboardInterrupt, and the second one end the process.

    A signal that is ignored, as Ctrl-C by what a shell has put into the background, stays ignored.
    Outside of the main thread, which alone gets signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _raise) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if _Held.depth:
        _Held.is_due = True
    else:
        raise KeyboardInterrupt


class _Held:
    """How many blocks hold back what the first signal raises, and whether it has come."""

    depth = 0
    is_due = False


@contextmanager
def held_back() -> Iterator[None]:
    """Has the first Ctrl-C or SIGTERM wait for the end of the block, which starts something and
    keeps what ends it: `with held_back(): self.process = Popen(...)`.

    What is started and not kept would go on, and write into folders that are removed meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Held.depth += 1
    try:
        yield
    finally:
        _Held.depth -= 1
        if _Held.is_due and not _Held.depth:
            _Held.is_due = False
            raise KeyboardInterrupt


@contextmanager
def beginning_undisturbed() -> Iterator[None]:
    """Has the processes that are started in the block never get Ctrl-C, which a terminal sends to
    all of them: who has started them ends them.

    Here it waits for the end of the block, or a process that has begun would miss what it is told.
    """
    ensure_running()  # The first process would start it, and then let Ctrl-C through.
    with held_back():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Course:
    """A long piece of work, which keeps what is done when it is interrupted.

    with Course() as course, servers():  # What has been started ends before the block.
        work()
    document |= course.document()
    return course.exit_code(0)
    """

    def __init__(self) -> None:
        self.is_interrupted = False

    def document(self) -> dict[str, object]:
        """Returns the fields of a result that say of it: none unless it was interrupted."""
        return {"interrupted": True} if self.is_interrupted else {}

    def exit_code(self, code: int) -> int:
        """Returns an exit code, or the one of what was interrupted."""
        return INTERRUPTED if self.is_interrupted else code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _from: object) -> bool:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        self.is_interrupted |= is_interrupt
        return is_interrupt
