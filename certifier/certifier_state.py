"""The certifier's state as plain values: a small document, and the window's rows beside it.

A restored certifier gives every later record the same verdict, GTID, version and stamps as the one
that was dumped.
"""

from collections.abc import Iterable, Mapping
from typing import TypedDict

from .certified_window import CertifiedWindow
from .core import Certifier
from .gtid_blocks import BlocksState
from .gtid_set import GtidSet
from .logical_clock import LogicalClock


class Blocks(TypedDict):
    """`BlocksState` with lists for tuples."""

    used: list[list[int]]
    unreserved_first: int
    assigned_count: int
    blocks: list[tuple[str, int, int]]


class CertifierState(TypedDict):
    """The state of a certifier that JSON can carry; `first_version` is where its window begins."""

    first_version: int
    newest_version: int
    stable_version: int
    unstamped_version: int
    purged_total: int
    window_closed: bool
    last_committed_global: int
    sequence_number: int
    digest: str
    executed_elsewhere: str
    blocks: Blocks
    names: list[str]


def dump(certifier: Certifier) -> CertifierState:
    """Returns the state without the window's rows. Cost: O(members + GTID intervals)."""
    assert not certifier.collected_beyond, (
        "only traces collect beyond a version, and they are not stored"
    )
    return CertifierState(
        first_version=certifier.window.first_version,
        newest_version=certifier.window.newest_version,
        stable_version=certifier.stable_version,
        unstamped_version=certifier.unstamped_version,
        last_committed_global=certifier.clock.last_committed_global,
        sequence_number=certifier.clock.sequence_number,
        purged_total=certifier.purged_total,
        window_closed=certifier.window_closed,
        digest=certifier.digest().hex(),
        executed_elsewhere=str(certifier.executed_elsewhere),
        blocks=_dump_blocks(certifier.blocks.state()),
        names=certifier.window.names,
    )


def restore(
    certifier: Certifier,
    state: CertifierState,
    pieces: Iterable[tuple[int, bytes, Mapping[str, Mapping[str, str]]]],
) -> None:
    """Brings a new certifier to a state that was dumped.

    Args:
        pieces: ascending (first version, rows, GTID sets by kind and version), from at or before
            the window's beginning up to the newest version, or none if the window is empty.

    Raises:
        ValueError: certified transactions are missing among the pieces.
    """
    ordered = list(pieces)
    begin = ordered[0][0] if ordered else state["newest_version"] + 1
    window = certifier.window = CertifiedWindow(begin - 1)
    window.load_names(state["names"])
    for first_version, rows, sets in ordered:
        _check_next(window, first_version)
        window.load(first_version, rows)
        for kind, known in (("read", window.snapshot_sets), ("elsewhere", window.elsewhere)):
            known.update({int(v): GtidSet.parse(text) for v, text in sets.get(kind, {}).items()})
    _check_next(window, state["newest_version"] + 1)
    # A piece may begin before the window: items of those versions were purged, and stay so.
    for items, versions in window.items_with_versions(state["first_version"]):
        certifier.info.record_versions(items, versions)
    window.drop_before(state["first_version"])
    certifier.stable_version = state["stable_version"]
    # It is above the stable version only with `collected_beyond`, which is not stored.
    certifier.oldest_snapshot_version = state["stable_version"]
    certifier.unstamped_version = state["unstamped_version"]
    certifier.purged_total = state["purged_total"]
    certifier.window_closed = state["window_closed"]
    certifier.clock = LogicalClock(state["last_committed_global"], state["sequence_number"])
    certifier.restore_digest(bytes.fromhex(state["digest"]))
    certifier.executed_elsewhere = GtidSet.parse(state["executed_elsewhere"])
    certifier.blocks.restore(_load_blocks(state["blocks"]))


def _check_next(window: CertifiedWindow, version: int) -> None:
    if window.newest_version + 1 != version:
        raise ValueError(f"it has version {version} next after {window.newest_version}")


def _dump_blocks(state: BlocksState) -> Blocks:
    return Blocks(
        used=[[first, last] for first, last in state.used],
        unreserved_first=state.unreserved_first,
        assigned_count=state.assigned_count,
        blocks=list(state.blocks),
    )


def _load_blocks(blocks: Blocks) -> BlocksState:
    return BlocksState(
        used=tuple((first, last) for first, last in blocks["used"]),
        unreserved_first=blocks["unreserved_first"],
        assigned_count=blocks["assigned_count"],
        blocks=tuple((member, first, stop) for member, first, stop in blocks["blocks"]),
    )
