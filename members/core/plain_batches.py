"""What a member keeps of plain transactions that were certified together: outcomes, and entries for
the relay queue, as columns. Pure.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter

from ...applier.queue.relay_group import RelayGroup
from ...certifier.core import Certifier
from ...certifier.outcomes import OutcomeTable
from ...certifier.plain_runs import PlainTransactions
from ...certifier.records import Outcome
from .log_records import LoggedTransaction, PlainColumns
from .repetitions import remembered

_version_of = attrgetter("version")


def new_columns(
    transactions: Sequence[LoggedTransaction], table: OutcomeTable
) -> PlainColumns | None:
    """Returns the transactions of a message that can be certified together: in columns, and none
    decided before, or twice in the message. Else None.
    """
    if not isinstance(transactions, PlainColumns):
        return None
    named = [each for each in transactions.ids if each]
    is_new = len(set(named)) == len(named) and not table.knows_any(named)
    return transactions if is_new else None


def remember(
    certifier: Certifier, table: OutcomeTable, columns: PlainColumns, outcomes: list[Outcome]
) -> list[Outcome]:
    """Adds to the table the outcomes of the transactions that have an id; returns all of them as
    their clients may take them.
    """
    is_known = min(columns.snapshots, default=0) >= table.forgotten_version
    is_certified = all(map(_version_of, outcomes)) and all(columns.write_sets)
    if is_certified or (is_known and len(columns) <= table.room):
        named = zip(columns.ids, outcomes, strict=True)
        table.remember_all({each: outcome for each, outcome in named if each})
        return outcomes
    return [
        remembered(certifier, table, logged, outcome) if logged.transaction_id else outcome
        for logged, outcome in zip(columns, outcomes, strict=True)
    ]


def entries_of(
    plain: PlainTransactions,
    columns: PlainColumns,
    outcomes: Sequence[Outcome],
    locked: Iterable[int],
    applied_version: int,
) -> RelayGroup:
    """Returns the entries of those transactions that were certified.

    Args:
        locked: Of each the version that was visible when its commit was asked for here; 0:
            elsewhere.
        applied_version: Version that is visible here now.
    """
    group = RelayGroup()
    certified = [outcome for outcome in outcomes if outcome.version]
    if not certified:
        return group
    positions: Iterable[int] = range(plain.position, plain.position + len(outcomes))
    since: Iterable[int] = map(max, locked, plain.snapshots)
    write_sets: Iterable[Sequence[int]] = plain.write_sets
    payloads: Iterable[bytes] = columns.payloads
    if len(certified) < len(outcomes):
        kept = [outcome.version > 0 for outcome in outcomes]
        positions, since = compress(positions, kept), compress(since, kept)
        payloads, write_sets = compress(payloads, kept), compress(write_sets, kept)
    _, gtids, versions, committed, numbers, _, _ = zip(*certified, strict=True)
    count = len(certified)
    group.positions, group.versions = list(positions), list(versions)
    group.sources, group.numbers = map(list, zip(*gtids, strict=True))
    group.last_committed = [0] * count if plain.local else list(committed)
    group.sequence_numbers = [0] * count if plain.local else list(numbers)
    group.local, group.payloads = [plain.local] * count, list(payloads)
    group.parents, group.domains = [applied_version] * count, [0] * count
    group.views, group.locked, group.items = [0] * count, list(since), list(write_sets)
    return group
