"""Repetitions that nobody can tell from new transactions: of those whose outcome is forgotten.

A client that got no answer sends its transaction again. Once its outcome is forgotten, the
repetition is decided anew: with a write set it conflicts with its own first attempt, without one it
passes a second time. The log's decisions stay what they are, and members agree on them; what
follows from one is not told as the transaction's own outcome. Pure.
"""

from ...certifier.core import Certifier
from ...certifier.outcomes import Doubtful, OutcomeTable
from ...certifier.records import Outcome, Verdict
from .log_records import LoggedTransaction


def remembered(
    certifier: Certifier,
    table: OutcomeTable,
    logged: LoggedTransaction,
    outcome: Outcome,
    *,
    is_whole: bool = True,
) -> Outcome:
    """Returns the decision on a transaction with an id as its client may take it: `Doubtful` if the
    transaction may be a repetition. Adds it to the table, unless its fragments are not whole.
    """
    if _is_of_a_first_attempt(logged, outcome, is_whole) or not _may_be_forgotten(
        certifier, table, logged
    ):
        answer = outcome
    else:
        answer = Doubtful(*outcome)
    if is_whole:
        table.remember(logged.transaction_id, answer)
    return answer


def passes_again(certifier: Certifier, table: OutcomeTable, logged: LoggedTransaction) -> bool:
    """Returns whether a transaction that is not in the log yet may be a repetition, and would be
    certified a second time: it has no write set, and no GTID of its own.
    """
    return not (
        logged.write_set or logged.gtid is not None or table.get(logged.transaction_id)
    ) and _may_be_forgotten(certifier, table, logged)


def _is_of_a_first_attempt(logged: LoggedTransaction, outcome: Outcome, is_whole: bool) -> bool:
    """Returns whether a decision alone says that its transaction was not certified before."""
    if outcome.version:  # A second time, a row or the GTID would be there already.
        return bool(logged.write_set) or logged.gtid is not None
    if outcome.verdict is Verdict.REFUSED and is_whole:  # For its snapshot, as at first.
        return logged.gtid is None
    return False


def _may_be_forgotten(certifier: Certifier, table: OutcomeTable, logged: LoggedTransaction) -> bool:
    """Returns whether an earlier outcome of a transaction, certified, may be forgotten. It came
    after the snapshot, and what came after the forgotten version is known.
    """
    if not logged.transaction_id or not table.forgotten_version:
        return False
    if logged.gtid is not None:
        if not certifier.has_executed(logged.gtid):
            return False
        if not isinstance(logged.snapshot, int):
            return True  # It may have itself in its snapshot.
    return certifier.version_of(logged.snapshot) < table.forgotten_version
