"""Progress of long work, on standard error: a bar on a terminal, elsewhere a line now and then.

Work that says nothing for minutes looks as if it hung: in a terminal, and as much in the log of a
pipeline or a container, where a bar cannot be drawn. Both get the same words here, and standard
output has the answer alone. What ends soon says nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

LINE_SECONDS = 10.0
Step = TypeVar("Step")
Number = Callable[[float], str]
COUNT: Number = "{:,.0f}".format


class Progress:
    """One step of some work after the other, and how far it is; threads may look at it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.step("")

    def step(self, name: str, total: float | None = None, number: Number = COUNT) -> None:
        """Begins a step.

        Args:
            total: Where it ends; None: not known.
            number: Makes text of what is done and of the total, with their unit if they have one.
        """
        self.name, self.done, self.total = name, 0.0, total
        self._number = number
        self._began = self._clock()

    def at(self, done: float, total: float | None = None) -> None:
        """Says how much is done; of how much, if that was not known or has changed."""
        self.done, self.total = done, total or self.total

    def advance(self, count: float) -> None:
        """Adds to what is done."""
        self.done += count

    def counted(self, steps: Iterator[Step], period: int = 1) -> Iterator[Step]:
        """Yields the steps of an iterator, and counts them, so many at a time."""
        for number, each in enumerate(steps, 1):
            yield each
            if number % period == 0:
                self.done = number

    def __str__(self) -> str:
        seconds = self._clock() - self._began
        text = f"{self._number(self.done)}"
        if not self.total:
            return f"{text if self.done else 'at work'}, {seconds:.0f} s"
        share = min(self.done / self.total, 1.0)
        text += f" of {self._number(self.total)} ({share:.0%}), {seconds:.0f} s"
        return f"{text}, about {seconds / share - seconds:.0f} s left" if share else text


@contextmanager
def progress(
    name: str,
    total: float | None = None,
    number: Number = COUNT,
    *,
    stream: TextIO | None = None,
    period_seconds: float = LINE_SECONDS,
) -> Iterator[Progress]:
    """Yields the progress of work, and shows it while the block runs.

    Args:
        name: Of the first step; it, `total` and `number` are those of `Progress.step`.
        stream: Is shown there; None: on standard error.
        period_seconds: Between two lines, where that is no terminal.
    """
    shown = stream or sys.stderr
    state = Progress()
    state.step(name, total, number)
    with _bar(state, shown) if shown.isatty() else _lines(state, shown, period_seconds):
        yield state


@contextmanager
def _bar(state: Progress, stream: TextIO) -> Iterator[None]:
    def row() -> Table:
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(state.total, state.done, width=24, pulse=not state.total)
        row.add_row(state.name, bar, str(state))
        return row

    with Live(get_renderable=row, console=Console(file=stream), transient=True):
        yield


@contextmanager
def _lines(state: Progress, stream: TextIO, period_seconds: float) -> Iterator[None]:
    over = threading.Event()

    def write() -> None:
        while not over.wait(period_seconds):
            stream.write(f"groupcert: {state.name}: {state}\n")
            stream.flush()

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()
