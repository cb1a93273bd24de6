"""Certifies the plain transactions of a message together: those with a snapshot version and a write
set, and nothing else.

Nearly all transactions are plain, and certifying one by itself is mostly calls and objects: of a
message of 64 it takes three times as long. The rule it keeps: outcomes and state are those of
`Certifier.certify_in_steps` for one transaction after the other.
"""

from collections.abc import Generator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from groupcert.certifier.certification_info import SHARD_MASK
from groupcert.certifier.core import STEP_ITEMS, Certifier
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.records import Outcome, Transaction, Verdict

_new_gtid = partial(tuple.__new__, Gtid)
_new_outcome = partial(tuple.__new__, Outcome)


class PlainTransactions(NamedTuple):
    """Plain transactions of one member, at consecutive positions of the total order: a snapshot
    version and a write set of each.
    """

    position: int
    origin: str
    local: bool
    snapshots: Sequence[int]
    write_sets: Sequence[Sequence[int]]


def certify_plain(
    certifier: Certifier, plain: PlainTransactions
) -> Generator[None, None, list[Outcome]]:
    """Decides plain transactions, in steps as `Certifier.certify_in_steps`; the generator's return
    value has their outcomes.
    """
    position, origin, local, snapshots, write_sets = plain
    outcomes: list[Outcome] = []
    while len(outcomes) < len(snapshots):
        done = len(outcomes)
        outcomes += _certify_run(certifier, plain, done)
        if len(outcomes) > done:
            period = certifier.options.collection_period_transactions
            newest = certifier.window.newest_version
            if period and newest % period == 0 and certifier.collection_pending:
                yield from certifier.collect_in_steps()
        else:  # It does not pass, or is large.
            snapshot, write_set = snapshots[done], write_sets[done]
            one = Transaction(position + done, origin, snapshot, write_set, (), None, local)
            outcomes.append((yield from certifier.certify_in_steps(one)))
    return outcomes


def _certify_run(certifier: Certifier, plain: PlainTransactions, start: int) -> list[Outcome]:
    """Certifies transactions from index `start` on, as long as they pass, up to the next step of a
    collection: rules 1, 3 and 5 of each, then 2 of all.
    """
    snapshots, write_sets = plain.snapshots[start:], plain.write_sets[start:]
    shards, clock, local = certifier.info.shards, certifier.clock, plain.local
    newest_before = version = certifier.window.newest_version
    oldest, unstamped = certifier.oldest_snapshot_version, certifier.unstamped_version
    period = certifier.options.collection_period_transactions * certifier.collection_pending
    committed: list[int] = []
    for snapshot, write_set in zip(snapshots, write_sets, strict=True):
        newest = 0
        for item in write_set:
            writer = shards[item & SHARD_MASK].get(item, 0)
            if writer > newest:
                newest = writer
        if newest > snapshot or not oldest <= snapshot <= newest_before:
            break
        if not 0 < len(write_set) <= STEP_ITEMS:
            break
        version += 1
        if not local:
            dependency = certifier.dependency(write_set, newest) if newest > unstamped else 0
            committed.append(clock.stamp(dependency)[0])
        for item in write_set:
            shards[item & SHARD_MASK][item] = version
        if period and version % period == 0:
            break
    return _record_run(certifier, plain, start, version - newest_before, committed)


def _record_run(
    certifier: Certifier, plain: PlainTransactions, start: int, count: int, committed: list[int]
) -> list[Outcome]:
    """Numbers `count` transactions from index `start` on, which have passed, and adds them to the
    window; returns their outcomes. `committed`: `last_committed` of each, empty for local ones.
    """
    if not count:
        return []
    part, source = slice(start, start + count), certifier.options.group_source
    write_sets = plain.write_sets[part]
    numbers = certifier.blocks.next_numbers(plain.origin, count)
    first_version = certifier.window.newest_version + 1
    versions = range(first_version, first_version + count)
    next_number = certifier.clock.sequence_number
    sequence_numbers = range(next_number - count, next_number)
    certifier.window.extend(
        write_sets,
        [0] * count if plain.local else sequence_numbers,
        plain.snapshots[part],
        (source, numbers),
        plain.origin,
        plain.position + start,
    )
    certifier.fold_certified(write_sets, numbers, versions)
    fields = zip(
        repeat(Verdict.CERTIFIED),
        map(_new_gtid, zip(repeat(source), numbers)),
        versions,
        repeat(None) if plain.local else committed,
        repeat(None) if plain.local else sequence_numbers,
        repeat(None),
        repeat(""),
    )
    return list(map(_new_outcome, fields))
