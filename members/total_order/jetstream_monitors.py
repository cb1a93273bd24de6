"""Asks NATS servers over HTTP for what no client is told: whether they sync every write, how much
they have room for, and whether one of them can write no more.

A server whose disk is full answers a message with nothing at all, and goes on so when there is
space again, until it is restarted: only its monitoring says it.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ..security.credentials import Tls

TIMEOUT_MS = 2_000
NO_SPACE_WORDS = ("no space left", "quota exceeded", "file too large")
"""Words of the system for a disk that takes no more, as in an error of a write."""


class Promises(NamedTuple):
    """The promises of the servers of a log."""

    syncs_always: bool | None = None
    """Whether all sync every write; None: one does not say."""
    room_bytes: int | None = None
    """Bytes that the fullest of them has room for; None: none says."""


def promises_of(monitors: tuple[str, ...], tls: Tls | None = None) -> Promises:
    """Reads the promises of servers at these addresses, `http://host:port`."""
    syncs: list[bool] = []
    rooms: list[int] = []
    for page in _pages(monitors, "varz", tls):
        jetstream = page.get("jetstream", {})
        config, stored = jetstream.get("config", {}), jetstream.get("stats", {}).get("storage")
        syncs.append(bool(config.get("sync_always", False)))
        if config.get("max_storage", -1) >= 0 and stored is not None:
            rooms.append(max(config["max_storage"] - stored, 0))
    # One that does not answer may be the one that does not sync.
    all_sync = True if syncs and len(syncs) == len(monitors) else None
    return Promises(False if False in syncs else all_sync, min(rooms, default=None))


def write_error(monitors: tuple[str, ...], tls: Tls | None = None) -> str:
    """Returns the error of a server that cannot write for want of space; empty if none says so."""
    errors = (str(page.get("error", "")) for page in _pages(monitors, "healthz", tls))
    return next((each for each in errors if has_no_space(each)), "")


def has_no_space(text: str) -> bool:
    """Returns whether an error's text says that a disk takes no more."""
    return any(words in text.lower() for words in NO_SPACE_WORDS)


def _pages(monitors: tuple[str, ...], name: str, tls: Tls | None) -> Iterator[dict[str, Any]]:
    """Yields a page of each server that answers; one that is ill says why under an error status."""
    context = tls.client_context() if tls is not None else None
    for monitor in monitors:
        with suppress(OSError, ValueError):
            try:
                with urllib.request.urlopen(
                    f"{monitor}/{name}", timeout=TIMEOUT_MS / 1000, context=context
                ) as page:
                    yield json.load(page)
            except urllib.error.HTTPError as answer:
                yield json.load(answer)
