"""The certifier: takes the records of the total order and returns their outcomes.

It implements the rule of `members/how-a-group-works.md` (WL#8440 with its examples): the same
records in the same order give the same verdicts, GTIDs and versions on every member, whatever
batches they come in. Only the stamps (`last_committed`, `sequence_number`) differ by observer,
because local transactions have none. Pure: no I/O, no clock, no threads.

The conflict rule is a subset test (WL#8440, certification info): a writer is included in a snapshot
if the writer's own snapshot and its GTID are a subset of it. With ordered commits nearly every
snapshot is "everything up to a version", and comparing two integers answers the same; `place` and
`includes` do the other cases, snapshots given as GTID sets.

Other systems tell the client only that certification failed. Here the outcome names the row, the
transaction that wrote it first, and both positions in the total order (`explain`).
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from .certification_info import CertificationInfo
from .certified_window import NAMES_MAX, CertifiedWindow
from .errors import InvalidSetting, quoted
from .gtid import Gtid
from .gtid_blocks import GtidBlocks
from .gtid_set import GtidSet
from .logical_clock import LogicalClock
from .position import log_sequence_of
from .records import (
    VIEW_CHANGE_STAMPS,
    Collected,
    Conflict,
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Record,
    Transaction,
    Verdict,
    ViewChange,
)

GC_WINDOWS = ("close", "tight")
STEP_ITEMS: Final = 4_096
"""Items that one step looks up, records or purges; a step takes a few milliseconds."""
_CERTIFIED, _CONFLICT, _TOO_OLD, _REFUSED = Verdict
_new_gtid = partial(tuple.__new__, Gtid)
_new_outcome = partial(tuple.__new__, Outcome)
"""Make a value from a tuple of all fields, once for each transaction: a named tuple's own
constructor is a Python function and takes twice the time.
"""

Deciding: TypeAlias = Generator[None, None, Outcome]
"""The steps of a decision; the generator's return value is the outcome."""

_DIGEST_MASK: Final = (1 << 64) - 1
_DIGEST_MULTIPLIER: Final = 0x9E3779B97F4A7C15
BEFORE_WINDOW = -1
"""The version of a snapshot that lacks a transaction which the window no longer holds."""


class ForeignSnapshot(NamedTuple):
    """A GTID set that includes all versions up to `version`, not the next one, and perhaps later
    ones.
    """

    version: int
    gtid_set: GtidSet


def place(window: CertifiedWindow, missing: GtidSet, lag_max: int) -> int:
    """Returns the newest version before all `missing` GTIDs, which are executed but not in a
    snapshot.

    Returns: `BEFORE_WINDOW` where it is not in the window, or more than `lag_max` versions back.
    Cost: O(versions between it and the newest one), at most `lag_max`.
    """
    if not missing:
        return window.newest_version
    return window.first_missing(missing, lag_max) - 1


def includes(window: CertifiedWindow, writer: int, snapshot: ForeignSnapshot) -> bool:
    """Returns whether the writer's snapshot and its own GTID are a subset of the snapshot.

    A writer's reads were executed before the writer, so a writer up to the snapshot's version is
    included whole.
    """
    if writer <= snapshot.version:
        return True
    if window.gtid(writer) not in snapshot.gtid_set:
        return False
    # The subset test of WL#8440 for a writer beyond the version: its own snapshot has to be
    # included, too. The set says so exactly; without one the version does.
    read = window.snapshot_sets.get(writer)
    if read is not None:
        return read <= snapshot.gtid_set
    return window.snapshot(writer) <= snapshot.version


def explain(
    window: CertifiedWindow, item: int, winner: int, snapshot_version: int, position: int
) -> Conflict:
    """Returns the conflict of a transaction at `position` over `item`, last written by the version
    `winner`.
    """
    return Conflict(
        item=item,
        winner_version=winner,
        winner_gtid=window.gtid(winner),
        winner_origin=window.origin(winner),
        winner_position=window.position(winner),
        snapshot_version=snapshot_version,
        position=position,
    )


def in_words(conflict: Conflict, key: str | None = None) -> str:
    """Returns one sentence for people; `key` is the row's readable name if it is known."""
    row = key if key else f"item {conflict.item:016x}"
    return (
        f"{row} was written first by {conflict.winner_gtid} from {conflict.winner_origin} "
        f"(version {conflict.winner_version}, log {log_sequence_of(conflict.winner_position)}); "
        f"this transaction read version {conflict.snapshot_version} "
        f"and would have passed from version {conflict.winner_version} on"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifierOptions:
    """Settings that must be equal on all members, because their decisions depend on them.

    `group_source`: the UUID that assigned GTIDs have. `gtid_assignment_block_size`: GTID numbers
    that a member reserves at a time (1: the next free number, whoever asks). `gc_window`: what a
    collection does to `last_committed_global`: "close" raises it to the last assigned sequence
    number (WL#8440), "tight" to the largest one that was purged. `snapshot_lag_max`: how many
    versions a snapshot given as a GTID set may lie behind before it is TOO_OLD (finding its version
    costs that many steps). `learn_snapshots`: take GTIDs that a snapshot names but that were never
    certified here for transactions executed elsewhere (traces) instead of refusing them.
    `collection_period_transactions` and `collection_step_transactions`: after how many certified
    transactions a pending collection makes a step, and how many transactions one step looks at;
    with a period of 0 a collection is completed where it stands in the order.
    """

    group_source: str
    gtid_assignment_block_size: int = 1
    gc_window: str = "close"
    snapshot_lag_max: int = 65_536
    learn_snapshots: bool = False
    collection_period_transactions: int = 64
    collection_step_transactions: int = 256

    def __post_init__(self) -> None:
        if self.gc_window not in GC_WINDOWS:
            raise InvalidSetting(
                name="gc_window", value=self.gc_window, expected=" or ".join(GC_WINDOWS)
            )
        for name, least in (
            ("gtid_assignment_block_size", 1),
            ("snapshot_lag_max", 1),
            ("collection_period_transactions", 0),
            ("collection_step_transactions", 1),
        ):
            value = getattr(self, name)
            if value < least:
                raise InvalidSetting(name=name, value=value, expected=f"{least} or more")


class Certifier:
    """Decides each transaction at its position in the total order."""

    def __init__(self, options: CertifierOptions) -> None:
        self.options = options
        self.info = CertificationInfo()
        self.window = CertifiedWindow()
        self.clock = LogicalClock()
        self.blocks = GtidBlocks(options.group_source, options.gtid_assignment_block_size)
        self.executed_elsewhere = GtidSet()
        self.stable_version = 0
        self.collected_beyond = GtidSet()
        self.oldest_snapshot_version = 0
        self.unstamped_version = 0
        self.purged_total = 0
        self.window_closed = True
        self._digest = 0
        self._group_source = options.group_source

    def deliver(self, record: Record) -> Outcome | Collected | tuple[int, int] | None:
        """Takes the next record of the total order and returns its outcome.

        Returns: an `Outcome` for a transaction, `Collected` for a garbage collection, the stamps
            (0, 0) for a view change, None for transactions executed elsewhere.
        Cost: O(items), whatever the size of the certification info.
        """
        if isinstance(record, Transaction):
            return self.certify(record)
        if isinstance(record, GarbageCollection):
            return self._garbage_collect(record)
        if isinstance(record, ViewChange):
            return self._change_view(record)
        self._admit_elsewhere(record)
        return None

    def certify(self, transaction: Transaction) -> Outcome:
        """Decides a transaction and returns its outcome; `deliver` for transactions only."""
        deciding = self.certify_in_steps(transaction)
        while True:
            try:
                next(deciding)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome

    def certify_in_steps(self, transaction: Transaction) -> Deciding:
        """Decides a transaction in steps of `STEP_ITEMS` items, so that the driver can do other
        work between two steps. No other record may be delivered until it ends.
        """
        snapshot, write_set, read_set = transaction[2:5]
        if not isinstance(snapshot, int):
            outcome = yield from self._certify_foreign(transaction, snapshot)
        # Nobody can have read a state that is not there yet. Taken for complete, such a snapshot
        # would pass every conflict check.
        elif snapshot > self.window.newest_version:
            return self._refuse(f"snapshot version {snapshot} is not certified yet")
        # Without items nothing can conflict, so that no collected writer is missed, however old the
        # snapshot is.
        elif snapshot < self.oldest_snapshot_version and (write_set or read_set):
            return self._too_old()
        elif len(write_set) + len(read_set) > STEP_ITEMS:
            outcome = yield from self._certify_large(transaction, snapshot)
        else:
            newest = self.info.newest_writer(write_set)
            if newest > snapshot or (read_set and self.info.newest_writer(read_set) > snapshot):
                # Only a conflict asks which item it is: the newest writer alone decides that there
                # is one.
                newer = (found for found in self._writers(transaction) if found[1] > snapshot)
                return self._conflict(transaction, snapshot, *next(newer))
            # Older writers have numbers of a clock that was reset since. All of them are committed
            # here: the view change that reset it ran alone.
            known = newest > self.unstamped_version
            dependency = self.dependency(write_set, newest) if known else 0
            outcome = self._admit(transaction, snapshot, dependency)
        version = outcome.version
        if version:
            if len(write_set) <= STEP_ITEMS:
                self.info.record(write_set, version)
            else:
                for part in _parts(write_set):
                    self.info.record(part, version)
                    yield
            # Counted by version, not by call or time: all members purge at the same places of the
            # order, however the log was cut into batches.
            if self.collection_is_due:
                yield from self.collect_in_steps()
        return outcome

    def refuse(self, reason: str) -> Outcome:
        """Returns REFUSED with `reason` for a transaction that the group cannot take, whatever its
        items are. The reason is stored: at most `REASON_CHARACTERS_MAX` of `certifier/outcomes.py`.
        """
        return self._refuse(reason)

    def change_options(self, options: CertifierOptions) -> None:
        """Replaces the options from the next record on; GTID numbers that members have reserved and
        not used become free.
        """
        assert options.group_source == self.options.group_source, "a group keeps its source"
        self.options = options
        self.blocks.resize(options.gtid_assignment_block_size)

    def digest(self) -> bytes:
        """Returns 8 bytes, little-endian, that cover every decision so far, equal on all members at
        the same position.

        Covers verdicts, versions, GTID numbers and write sets; not stamps, which are each
        observer's own.
        """
        return self._digest.to_bytes(8, "little")

    def restore_digest(self, digest: bytes) -> None:
        """Restores a digest that `digest` returned."""
        self._digest = int.from_bytes(digest, "little")

    def executed(self) -> GtidSet:
        """Returns all GTIDs executed so far: certified ones and those from elsewhere."""
        executed = self.executed_elsewhere.copy()
        for first, last in self.blocks.used_intervals():
            executed.add_interval(self.options.group_source, first, last)
        return executed

    def has_executed(self, gtid: Gtid) -> bool:
        """Returns whether a GTID is used."""
        if gtid.source == self.options.group_source:
            return self.blocks.is_used(gtid.number)
        return gtid in self.executed_elsewhere

    def version_of(self, snapshot: int | GtidSet) -> int:
        """Returns the newest version up to which a snapshot has every transaction."""
        if isinstance(snapshot, int):
            return snapshot
        missing = self.executed() - snapshot
        return place(self.window, missing, self.options.snapshot_lag_max)

    def collect(self) -> None:
        """Makes one step of a pending collection.

        Cost: at most `collection_step_transactions` transactions' items.
        """
        deque(self.collect_in_steps(), maxlen=0)

    def collect_in_steps(self) -> Iterator[None]:
        """Makes one step of a pending collection, in steps of `STEP_ITEMS` items."""
        step = self.options.collection_step_transactions
        return self._purge_through(min(self.stable_version, self.window.first_version + step - 1))

    @property
    def collection_pending(self) -> bool:
        """True while stable transactions are left whose items were not purged yet."""
        return self.window.first_version <= self.stable_version

    @property
    def collection_is_due(self) -> bool:
        """True if a pending collection makes its next step after the newest version."""
        period = self.options.collection_period_transactions
        is_step = period > 0 and self.window.newest_version % period == 0
        return is_step and self.collection_pending

    def _certify_large(self, transaction: Transaction, snapshot: int) -> Deciding:
        """Applies rule 1 to a transaction of more than `STEP_ITEMS` items, in steps."""
        dependency = 0
        for items in (transaction.write_set, transaction.read_set):
            for part in _parts(items):
                newest = self.info.newest_writer(part)
                if newest > snapshot:
                    newer = (found for found in self.info.writers(part) if found[1] > snapshot)
                    return self._conflict(transaction, snapshot, *next(newer))
                # What a transaction has only read is not executed again, so it orders nothing for
                # appliers.
                if items is transaction.write_set and newest > self.unstamped_version:
                    dependency = max(dependency, self.dependency(part, newest))
                yield
        return self._admit(transaction, snapshot, dependency)

    def _admit(self, transaction: Transaction, snapshot_version: int, dependency: int) -> Outcome:
        """Numbers and stamps a transaction that passed (rule 2 to 4), and adds it to the window.

        `dependency`: the largest sequence number recorded for any of its items.
        """
        position, origin, _, write_set, _, gtid, local = transaction
        if gtid is None:
            gtid = _new_gtid((self._group_source, self.blocks.next_number(origin)))
        # Before the claim, which would mark the GTID as used for a transaction that is refused.
        elif not self.window.takes_gtids_of(gtid.source):
            return self._refuse(
                f"GTID {gtid} would be of one source more than the {NAMES_MAX} that a group takes: "
                "use one that it knows"
            )
        elif not self._claim(gtid):
            return self._refuse(f"GTID {gtid} was already used")
        last_committed: int | None = None
        sequence_number: int | None = None
        if not local:
            if write_set:
                last_committed, sequence_number = self.clock.stamp(dependency)
            else:
                last_committed, sequence_number = self.clock.stamp_alone()
        version = self.window.append(
            write_set, sequence_number or 0, snapshot_version, gtid, origin, position
        )
        # A sum modulo 2^64, as `plain_runs` gets it from columns: the order of decisions counts,
        # that of items does not.
        self.fold(_CERTIFIED, sum(write_set, gtid.number), version)
        return _new_outcome((_CERTIFIED, gtid, version, last_committed, sequence_number, None, ""))

    def dependency(self, write_set: Sequence[int], newest: int) -> int:
        """Returns the largest sequence number among the items' last writers; 0 if all of these were
        local. `newest` is the newest writer, which this observer would have stamped.
        """
        sequence_number = self.window.sequence_number(newest)
        # Numbers ascend with versions, so a stamped newest writer has the largest one. Only where
        # it was local, an older remote writer of another item may be what to wait for.
        if sequence_number:
            return sequence_number
        writers = {writer for _, writer in self.info.writers(write_set)}
        stamped = (writer for writer in writers if writer > self.unstamped_version)
        return max(map(self.window.sequence_number, stamped))

    def _certify_foreign(self, transaction: Transaction, gtid_set: GtidSet) -> Deciding:
        """Decides a transaction whose snapshot is a GTID set. Sets are compared only where the
        snapshot's version alone does not decide.
        """
        executed = self.executed()
        unknown = gtid_set - executed
        if transaction.gtid is not None and transaction.gtid in unknown:
            unknown -= GtidSet.of(transaction.gtid)
        if unknown:
            if not self.options.learn_snapshots:
                return self._refuse(
                    f"snapshot names GTIDs that the group did not execute: {quoted(str(unknown))}"
                )
            self._admit_elsewhere(ExecutedElsewhere(transaction.position, unknown))
            executed |= unknown
        snapshot = ForeignSnapshot(
            place(self.window, executed - gtid_set, self.options.snapshot_lag_max), gtid_set
        )
        if transaction.write_set or transaction.read_set:
            # Purged writers are not found below, so the snapshot has to have all of them.
            if snapshot.version < self.stable_version or not self.collected_beyond <= gtid_set:
                return self._too_old(self._is_lagging(snapshot.version))
        dependency = 0
        for items in (transaction.write_set, transaction.read_set):
            for part in _parts(items):
                newest = 0
                for item, writer in self.info.writers(part):
                    if not includes(self.window, writer, snapshot):
                        return self._conflict(transaction, snapshot.version, item, writer)
                    newest = max(newest, writer)
                if items is transaction.write_set and newest > self.unstamped_version:
                    dependency = max(dependency, self.dependency(part, newest))
                yield
        # Asked before the admission adds a version. A complete snapshot needs no set: its version
        # says the same.
        complete = snapshot.version == self.window.newest_version
        # One without items may lie before the window (-1), and the row's field is unsigned.
        outcome = self._admit(transaction, max(snapshot.version, 0), dependency)
        if outcome.verdict is _CERTIFIED and not complete:
            self.window.snapshot_sets[outcome.version] = gtid_set
        return outcome

    def _claim(self, gtid: Gtid) -> bool:
        """Marks a transaction's own GTID as used; returns False if it was used before."""
        if self.has_executed(gtid):
            return False
        if gtid.source == self.options.group_source:
            self.blocks.use(gtid.number)
        else:
            self.executed_elsewhere.add(gtid)
        return True

    def _admit_elsewhere(self, record: ExecutedElsewhere) -> None:
        """Records GTIDs as executed elsewhere, all in one new version; known GTIDs are skipped."""
        new = record.gtid_set - self.executed()
        if not new:
            return
        for source in new.sources():
            for first, last in new.intervals(source):
                if source == self.options.group_source:
                    self.blocks.use_interval(first, last)
                else:
                    self.executed_elsewhere.add_interval(source, first, last)
        # Without items: what they wrote is not known, so they conflict with nothing.
        version = self.window.append_elsewhere(new, record.position)
        self.fold(_CERTIFIED, new.count(), version)

    def _change_view(self, record: ViewChange) -> tuple[int, int]:
        """Applies a view change (rule 7): frees reserved GTID blocks, and resets the clock if the
        observer is the joiner.
        """
        self.blocks.release_all()
        if record.resets_clock:
            self.clock.reset()
            # Numbers up to here were given by the clock before: a later transaction that took one
            # for its dependency would wait for another transaction, or for none.
            self.unstamped_version = self.window.newest_version
        return VIEW_CHANGE_STAMPS

    def _garbage_collect(self, record: GarbageCollection) -> Collected:
        """Applies a stable set (rule 6): purges at once if `collection_period_transactions` is 0,
        else in steps between later transactions.
        """
        before = self.purged_total
        if isinstance(record.stable, int):
            self._set_stable(record.stable)
        else:
            missing = self.executed() - record.stable
            # Not limited by `snapshot_lag_max`: a stable set that lags far behind is no error.
            self._set_stable(place(self.window, missing, self.window.newest_version))
            self._purge_beyond(record.stable)
        if not self.options.collection_period_transactions:
            deque(self._purge_through(self.stable_version), maxlen=0)
        return Collected(self.purged_total - before, self.clock.last_committed_global)

    def _set_stable(self, version: int) -> None:
        assert version <= self.window.newest_version, "stable before it was certified"
        if version > self.stable_version:
            self.stable_version = version
            # At once, though the items are purged in steps: else the verdict on an old snapshot
            # would depend on how far the steps are.
            self.oldest_snapshot_version = max(self.oldest_snapshot_version, version)
            self.window_closed = False

    def _purge_through(self, last: int) -> Iterator[None]:
        """Purges the items of all versions up to `last`, in steps."""
        first = self.window.first_version
        for items in self.window.items_between(first, last):
            for part in _parts(items):
                self._purge(part, last)
                yield
        # Last, as the steps still read the sequence numbers of these versions.
        self.window.drop_before(max(first, last + 1))

    def _purge_beyond(self, stable: GtidSet) -> None:
        """Purges the stable transactions that lie behind one that is not stable yet.

        Cost: O(versions in the window); only traces have such sets.
        """
        for version in range(self.stable_version + 1, self.window.newest_version + 1):
            collected = self.window.executed(version) & stable
            if collected:
                self.collected_beyond |= collected
                self.oldest_snapshot_version = max(self.oldest_snapshot_version, version)
                self.window_closed = False
                self._purge(self.window.items(version), version)

    def _purge(self, items: Sequence[int], last: int) -> None:
        """Removes the items last written at or before version `last`. Later transactions can no
        longer find these writers, so `last_committed_global` is raised: to the largest purged
        sequence number ("tight"), or to the last one assigned ("close").
        """
        purged = self.info.purge(items, last)
        self.purged_total += len(purged)
        if self.options.gc_window == "tight":
            stamped = {writer for writer in purged if writer > self.unstamped_version}
            self.clock.raise_window(max(map(self.window.sequence_number, stamped), default=0))
        # Once for each stable set: whatever its later steps purge was stamped before it came, so
        # the edge of the first step covers it. Again, it would hold back more and protect nothing.
        elif purged and not self.window_closed:
            self.clock.close_window()
            self.window_closed = True

    def _writers(self, transaction: Transaction) -> Iterator[tuple[int, int]]:
        yield from self.info.writers(transaction.write_set)
        yield from self.info.writers(transaction.read_set)

    def _conflict(
        self, transaction: Transaction, snapshot_version: int, item: int, winner: int
    ) -> Outcome:
        self.fold(_CONFLICT, item, winner)
        conflict = explain(self.window, item, winner, snapshot_version, transaction.position)
        return Outcome(_CONFLICT, conflict=conflict)

    def _is_lagging(self, snapshot_version: int) -> bool:
        """Returns whether the search for a set's version ended at `snapshot_lag_max`."""
        versions = self.window.newest_version - self.window.first_version
        return snapshot_version == BEFORE_WINDOW and versions >= self.options.snapshot_lag_max

    def _too_old(self, lagging: bool = False) -> Outcome:
        self.fold(_TOO_OLD, 0, self.oldest_snapshot_version)
        cause = f"some of version {self.oldest_snapshot_version}, whose items were collected"
        if lagging:
            cause = f"something more than {self.options.snapshot_lag_max} versions old"
        return Outcome(
            _TOO_OLD,
            reason=f"the snapshot lacks {cause}: take a new snapshot and run the transaction again",
        )

    def _refuse(self, reason: str) -> Outcome:
        self.fold(_REFUSED, 0, self.window.newest_version)
        return Outcome(_REFUSED, reason=reason)

    def fold(self, verdict: Verdict, what: int, version: int) -> None:
        """Adds a decision to the digest: a polynomial over 64 bits, so that order counts."""
        self._digest = (
            self._digest * _DIGEST_MULTIPLIER + what + (version << 3 | verdict)
        ) & _DIGEST_MASK

    def fold_certified(self, whats: Iterable[int], versions: Iterable[int]) -> None:
        """Adds transactions that were certified one after the other to the digest, as `fold`."""
        digest = self._digest
        for what, version in zip(whats, versions, strict=True):
            each = what + (version << 3 | _CERTIFIED)
            digest = (digest * _DIGEST_MULTIPLIER + each) & _DIGEST_MASK
        self._digest = digest

    def check_invariants(self) -> None:
        """Asserts the invariants between two records. Cost: O(items)."""
        self.info.check_invariants()
        self.window.check_invariants()
        self.clock.check_invariants()
        self.blocks.check_invariants()
        assert self.stable_version <= self.oldest_snapshot_version <= self.window.newest_version
        assert self.window.first_version <= self.window.newest_version + 1
        for item, writer in self.info.entries():
            assert self.window.first_version <= writer <= self.window.newest_version
            assert item in self.window.items(writer)


def _parts(items: Sequence[int]) -> Iterator[Sequence[int]]:
    """Returns the items in order, in slices of `STEP_ITEMS`."""
    return (items[begin : begin + STEP_ITEMS] for begin in range(0, len(items), STEP_ITEMS))
