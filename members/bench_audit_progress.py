"""Where a benchmark of long steps is: a bar for each on a terminal, else a line now and then.

The rule it keeps: it is told on standard error, as standard output has the answer alone; and
seldom, because what is measured meanwhile has the same processors.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS = 10.0
REFRESHES_A_SECOND = 2.0


class Steps(Protocol):
    """Takes what is known of the steps, one after another."""

    def begin(self, name: str, total: int | None = None) -> None:
        """The next step begins; `total`: how much it has to do, if that is known."""

    def tell(self, state: str, done: int = 0) -> None:
        """Where the step is, as often as the caller likes."""

    def end(self, result: str) -> None:
        """The step is done."""


@contextmanager
def shown(steps: int, stream: TextIO | None = None) -> Iterator[Steps]:
    """Shows so many steps; on standard error by default."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Lines(stream, steps)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    console = Console(file=stream)
    with Progress(*columns, console=console, refresh_per_second=REFRESHES_A_SECOND) as bars:
        yield Bars(bars)


class Lines:
    """Writes a line when a step begins, every few seconds, and when it is done."""

    def __init__(self, stream: TextIO, steps: int, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds."""
        self._stream = stream
        self._steps = steps
        self._clock = clock
        self._number = 0
        self._name = ""
        self._begun = self._written = 0.0

    def begin(self, name: str, total: int | None = None) -> None:
        """Writes that it begins."""
        self._number += 1
        self._name = name
        self._begun = self._written = self._clock()
        self._write("begins")

    def tell(self, state: str, done: int = 0) -> None:
        """Writes the state, if nothing was written for a while."""
        now = self._clock()
        if now - self._written >= LINE_SECONDS:
            self._written = now
            self._write(f"{state}, {now - self._begun:.0f} s")

    def end(self, result: str) -> None:
        """Writes the result."""
        self._write(result)

    def _write(self, text: str) -> None:
        self._stream.write(f"[{self._number}/{self._steps}] {self._name}: {text}\n")
        self._stream.flush()


class Bars:
    """Draws a bar for each step that has begun."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = TaskID(0)

    def begin(self, name: str, total: int | None = None) -> None:
        """Draws another one."""
        self._task = self._bars.add_task(name, total=total, state="")

    def tell(self, state: str, done: int = 0) -> None:
        """Moves it; it is drawn with the next refresh."""
        self._bars.update(self._task, completed=done, state=state)

    def end(self, result: str) -> None:
        """Fills it."""
        self._bars.update(self._task, total=1, completed=1, state=result)
        self._bars.stop_task(self._task)
