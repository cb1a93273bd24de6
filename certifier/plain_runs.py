"""Certifies the plain transactions of a message together: those with a snapshot version and a write
set, and nothing else.

Nearly all transactions are plain, and certifying one by itself is mostly calls and objects: of a
message of 64 it takes three times as long. The rule it keeps: outcomes and state are those of
`Certifier.certify_in_steps` for one transaction after the other.
"""

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Final, NamedTuple

import numpy as np

from .certification_info import TOGETHER_MIN, Items
from .core import STEP_ITEMS, Certifier
from .gtid import Gtid
from .records import Outcome, Transaction, Verdict

RUN_MAX: Final = 256
"""Transactions that are certified in one step; members' own messages have fewer."""
RUN_MIN: Final = 8
"""Transactions that pass one after the other; where fewer do, each of the rest is certified by
itself, which then is faster."""
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
    runs = True
    together = True
    while len(outcomes) < len(snapshots):
        done = len(outcomes)
        if runs:
            outcomes += _certify_run(certifier, plain, done, together=together)
        if count := len(outcomes) - done:
            # A run that a collection's step has cut short does not say how many would have passed.
            runs = certifier.collection_is_due or count >= RUN_MIN
            if certifier.collection_is_due:
                yield from certifier.collect_in_steps()
            elif count >= RUN_MAX:
                yield
        else:  # It does not pass, or is large: the next ones are looked up one by one.
            together = False
            snapshot, write_set = snapshots[done], write_sets[done]
            one = Transaction(position + done, origin, snapshot, write_set, (), None, local)
            outcomes.append((yield from certifier.certify_in_steps(one)))
    return outcomes


def _certify_run(
    certifier: Certifier, plain: PlainTransactions, start: int, *, together: bool
) -> list[Outcome]:
    """Certifies transactions from index `start` on, as long as they pass, up to the next step of a
    collection: rules 1, 3 and 5 of each, then 2 of all. `together`: looks all items up at once.
    """
    stop = min(len(plain.snapshots), start + RUN_MAX)
    period = certifier.options.collection_period_transactions
    if period and certifier.collection_pending:
        # The next step of a collection is due at that version, as if each were certified by itself.
        stop = min(stop, start + period - certifier.window.newest_version % period)
    snapshots, write_sets = plain.snapshots[start:stop], plain.write_sets[start:stop]
    sizes = list(map(len, write_sets))
    items = np.fromiter(chain.from_iterable(write_sets), np.uint64, sum(sizes))
    dependencies = None
    if together:
        dependencies = _passed_together(certifier, snapshots, write_sets, items, sizes)
    if dependencies is None:
        dependencies = _passed(certifier, snapshots, write_sets)
    count = len(dependencies)
    run = PlainTransactions(
        plain.position + start, plain.origin, plain.local, snapshots[:count], write_sets[:count]
    )
    return _record_run(certifier, run, dependencies, items, sizes[:count]) if count else []


def _passed_together(
    certifier: Certifier,
    snapshots: Sequence[int],
    write_sets: Sequence[Sequence[int]],
    items: Items,
    sizes: Sequence[int],
) -> list[int] | None:
    """Records the items of all transactions if all of them pass, and returns the sequence numbers
    that they depend on. Returns None, and does nothing, if they are few, one may not pass, or two
    write the same item.
    """
    # A transaction without items is stamped as a barrier (EX4), and `reduceat` below would give it
    # the items of the next one.
    if len(items) < TOGETHER_MIN or not all(sizes) or max(sizes) > STEP_ITEMS:
        return None
    # Of two writers of one item the second has to see the first, which the look-up of all before
    # any is recorded cannot. And 0 stands for a free slot of the table.
    if len(set(chain.from_iterable(write_sets))) < len(items) or not items.all():
        return None
    newest_before = certifier.window.newest_version
    # A snapshot may name a version that this run is about to assign. That is no error, but only one
    # after the other shows it.
    if min(snapshots) < certifier.oldest_snapshot_version or max(snapshots) > newest_before:
        return None
    found = certifier.info.look_up(items)
    dependencies = [0] * len(sizes)
    if found.writers.any():
        newest = np.maximum.reduceat(found.writers, _starts(sizes))
        # Somebody loses. Nothing is recorded yet, so all are decided again, one after the other.
        if (newest > np.array(snapshots, np.uint64)).any():
            return None
        # As no item occurs twice, all writers are from before the run: the window has their rows.
        for index in (newest > certifier.unstamped_version).nonzero()[0].tolist():
            dependencies[index] = certifier.dependency(write_sets[index], int(newest[index]))
    versions = np.arange(newest_before + 1, newest_before + 1 + len(sizes), dtype=np.uint64)
    certifier.info.record_all(found, versions.repeat(sizes))
    return dependencies


def _passed(
    certifier: Certifier, snapshots: Sequence[int], write_sets: Sequence[Sequence[int]]
) -> list[int]:
    """Records the items of the first transactions that pass, one after the other; returns the
    sequence numbers that they depend on.
    """
    info, newest_before = certifier.info, certifier.window.newest_version
    oldest, unstamped = certifier.oldest_snapshot_version, certifier.unstamped_version
    dependencies: list[int] = []
    for snapshot, write_set in zip(snapshots, write_sets, strict=True):
        newest = info.newest_writer(write_set)
        # A writer of this run is above every snapshot that passes here, so the loop ends before it
        # asks the window for a row that is added only at the end.
        if newest > snapshot or not oldest <= snapshot <= newest_before:
            break
        if not 0 < len(write_set) <= STEP_ITEMS:
            break
        dependencies.append(certifier.dependency(write_set, newest) if newest > unstamped else 0)
        # At once: the next transaction may write the same item, and then loses.
        info.record(write_set, newest_before + len(dependencies))
    return dependencies


def _record_run(
    certifier: Certifier,
    run: PlainTransactions,
    dependencies: Sequence[int],
    items: Items,
    sizes: Sequence[int],
) -> list[Outcome]:
    """Stamps and numbers transactions that have passed, and adds them to the window; returns their
    outcomes. `items` begins with theirs.
    """
    count, source = len(sizes), certifier.options.group_source
    numbers = certifier.blocks.next_numbers(run.origin, count)
    first_version = certifier.window.newest_version + 1
    versions = range(first_version, first_version + count)
    committed: Iterable[int | None] = repeat(None)
    stamped: Iterable[int | None] = repeat(None)
    sequence_numbers: Sequence[int] = [0] * count
    if not run.local:
        committed, stamped = certifier.clock.stamp_all(dependencies)
        sequence_numbers = stamped
    ends = list(accumulate(sizes))
    items = items[: ends[-1]]
    gtids = (source, numbers)
    certifier.window.extend(
        items.tobytes(), ends, sequence_numbers, run.snapshots, gtids, run.origin, run.position
    )
    # Wraps at 2^64; `Certifier.fold` masks its own sums to the same.
    sums = np.add.reduceat(items, _starts(sizes)).tolist()
    certifier.fold_certified(map(sum, zip(sums, numbers, strict=True)), versions)
    fields = zip(
        repeat(Verdict.CERTIFIED),
        map(_new_gtid, zip(repeat(source), numbers)),
        versions,
        committed,
        stamped,
        repeat(None),
        repeat(""),
    )
    return list(map(_new_outcome, fields))


def _starts(sizes: Sequence[int]) -> list[int]:
    """Returns the index of each transaction's first item; `sizes`: items of each transaction."""
    return [0, *accumulate(sizes[:-1])]
