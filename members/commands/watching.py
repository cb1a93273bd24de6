"""Prints a status once, or again and again."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

Status = TypeVar("Status")


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
