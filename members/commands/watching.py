"""Prints a status once, or again and again."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement

Status = TypeVar("Status")
UNBROKEN_COLUMNS = 10_000
"""The width where no terminal shows it: a program that reads lines finds each word whole."""


class FirstThatFits:
    """Shows the first of several renderables that fits the width, else the last."""

    def __init__(self, *renderables: RenderableType) -> None:
        self._renderables = renderables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields it."""
        *others, last = self._renderables
        unbroken = options.update(max_width=UNBROKEN_COLUMNS)
        widths = ((each, Measurement.get(console, unbroken, each).maximum) for each in others)
        yield next((each for each, width in widths if width <= options.max_width), last)


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
            width = None if sys.stdout.isatty() else UNBROKEN_COLUMNS
            Console(width=width).print(table(status))
        if not watch:
            return status
        time.sleep(period_ms / 1000)
