"""Prints a status once, or again and again; and the progress of long work, on a terminal only."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

Status = TypeVar("Status")
Step = TypeVar("Step")


def show(
    ask: Callable[[], Status],
    table: Callable[[Status], RenderableType],
    document: Callable[[Status], Mapping[str, object]],
    *,
    as_json: bool,
    watch: bool,
    period_ms: int,
) -> Status:
    """Prints what `ask` returns, as a table or as JSON; returns it unless it goes on watching."""
    if watch and not as_json and sys.stdout.isatty():
        with Live(table(ask()), auto_refresh=False) as live:
            while True:
                time.sleep(period_ms / 1000)
                live.update(table(ask()), refresh=True)
    while True:
        status = ask()
        if as_json:
            sys.stdout.write(json.dumps(document(status)) + "\n")
            sys.stdout.flush()
        else:
            Console().print(table(status))
        if not watch:
            return status
        time.sleep(period_ms / 1000)


@contextmanager
def progress(steps: Iterator[Step], text: str, period: int = 1) -> Iterator[Iterator[Step]]:
    """Shows on a terminal how many steps were taken, every so many."""
    if not sys.stderr.isatty():
        yield steps
        return
    columns = (TextColumn(text), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def counted() -> Iterator[Step]:
            for number, step in enumerate(steps, 1):
                if number % period == 0:
                    bar.update(task, completed=number)
                yield step

        yield counted()


@contextmanager
def bytes_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on a terminal how many bytes are done, of about how many; it is called with both."""
    columns = (TextColumn(text), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(done, total))


@contextmanager
def counter(text: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much is done; it is called with that. `text` has it in braces, as
    `{task.completed}`.
    """
    columns = (TextColumn(text), TimeElapsedColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, completed=done)
