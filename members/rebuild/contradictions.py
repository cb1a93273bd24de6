"""Compares what two members hold of one log: the first place at which they contradict each other.

Members that have read the same messages have certified the same. What they still hold shows it:
the digest of the certification state and a hash of the last message, where both have read as far;
position, GTID and changes of each transaction that both have in binary log or relay queue; and the
GTIDs up to the end of the shorter one, where those of the longer one have not been collected.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from ...applier.queue.relay_group import RelayEntry
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_sequence_of
from .holding import Holding


class Contradiction(NamedTuple):
    """Two members, and the first place at which only one of them can be right."""

    first: str
    second: str
    log_sequence: int
    what: str

    def __str__(self) -> str:
        return (
            f"{self.first} and {self.second} contradict each other at message {self.log_sequence} "
            f"of the log: {self.what}"
        )


class Comparison(NamedTuple):
    """`transactions`: how many both have whole, and were compared."""

    transactions: int
    contradiction: Contradiction | None


def compare(longer: Holding, shorter: Holding) -> Comparison:
    """Compares two members of one group; `longer` holds as many transactions, or more.

    Cost: reads both binary logs.
    """
    compared = 0
    names = (longer.name, shorter.name)
    for mine, theirs in _both(longer.entries(), shorter.entries()):
        compared += 1
        if what := _differing(longer.name, mine, shorter.name, theirs):
            at = log_sequence_of(min(mine.position, theirs.position))
            return Comparison(compared, Contradiction(*names, at, what))
    if lacking := shorter.executed - longer.executed:
        what = f"{shorter.name} has {lacking}, which {longer.name} lacks, though it has read more"
        return Comparison(compared, Contradiction(*names, shorter.reach, what))
    return Comparison(compared, _of_states(longer, shorter))


def _of_states(longer: Holding, shorter: Holding) -> Contradiction | None:
    """Compares the states where both have read as far, else the GTIDs at the shorter one's end."""
    at = shorter.log_sequence
    pair = (longer.name, shorter.name, at)
    if at == longer.log_sequence:
        mine, theirs = (each.state.certifier.digest().hex() for each in (longer, shorter))
        if mine != theirs:
            names = f"{longer.name} has {mine}, {shorter.name} {theirs}"
            return Contradiction(*pair, f"digests of their certification states: {names}")
        if _are_others(longer.last_message, shorter.last_message):
            return Contradiction(*pair, "they have read different messages there")
        return None
    window, version = longer.state.certifier.window, shorter.version
    # Farther back, transactions were collected, and nobody knows which GTIDs had been executed
    # then.
    if window.first_version - 1 <= version <= window.newest_version:
        mine_there, theirs_there = _executed(longer, version), shorter.state.certifier.executed()
        if only := (mine_there - theirs_there) | (theirs_there - mine_there):
            return Contradiction(*pair, f"only one of them has {only} as of version {version}")
    return None


def _executed(holding: Holding, version: int) -> GtidSet:
    """Returns the GTIDs executed up to a version that was not collected."""
    window = holding.state.certifier.window
    after = GtidSet()
    for each in range(version + 1, window.newest_version + 1):
        after |= window.executed(each)
    return holding.state.certifier.executed() - after


def _both(
    left: Iterator[RelayEntry], right: Iterator[RelayEntry]
) -> Iterator[tuple[RelayEntry, RelayEntry]]:
    """Yields the entries of the versions that both have."""
    mine, theirs = next(left, None), next(right, None)
    while mine and theirs:
        if mine.version == theirs.version:
            yield mine, theirs
        # Both move on behind a version that both have, so this one is noted before `mine` changes.
        before = mine.version
        if before <= theirs.version:
            mine = next(left, None)
        if theirs.version <= before:
            theirs = next(right, None)


def _differing(first: str, mine: RelayEntry, second: str, theirs: RelayEntry) -> str:
    """Returns the difference between two entries of one version, in words; empty: none."""
    if (mine.gtid, mine.position, mine.payload) == (theirs.gtid, theirs.position, theirs.payload):
        return ""
    return (
        f"as transaction {mine.version} {first} has {_named(mine)}, {second} has {_named(theirs)}"
    )


def _named(entry: RelayEntry) -> str:
    changes = blake2b(entry.payload, digest_size=8).hexdigest()
    return f"{entry.gtid} of message {log_sequence_of(entry.position)}, changes {changes}"


def _are_others(mine: bytes, theirs: bytes) -> bool:
    """Returns whether two stored hashes are of different messages; empty: of no message."""
    return bool(mine and theirs and mine != theirs)
