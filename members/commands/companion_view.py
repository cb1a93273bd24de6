"""`groupcert postgresql status`: prints the status of a companion as a table."""

from functools import partial

from rich.console import RenderableType
from rich.table import Table

from groupcert.v1.companion_pb2 import CompanionStatus

from ..postgresql.status import ask_companion
from ..wire.status_documents import fields_of
from .options import FINDING, FINE
from .watching import show


def show_companion(dsn: str, *, as_json: bool, watch: bool, period_ms: int) -> int:
    """Prints the status of a server's companion, once or again and again; returns 1 if the server
    takes no writes.

    Raises NotServing if it has no companion.
    """
    status = show(
        partial(ask_companion, dsn),
        render,
        fields_of,
        as_json=as_json,
        watch=watch,
        period_ms=period_ms,
    )
    return FINDING if status.out_of_group else FINE


def render(status: CompanionStatus) -> RenderableType:
    """Returns the table."""
    table = Table(title=f"companion of {status.server}", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    counts = sorted(status.refused_transactions.items())
    refused = ", ".join(f"{state} {count}" for state, count in counts if count)
    backends = (
        f"{status.certifying_transactions} certifying, {status.waiting_transactions} waiting for"
        f" their turn, {status.granted_transactions} committing"
    )
    waits = f"{status.waits_for}, for {status.waits_seconds:.1f} s" if status.waits_for else ""
    rows = {
        "takes writes": f"no: {status.out_of_group}" if status.out_of_group else "yes",
        "member": status.member or "none answers",
        "version": str(status.version),
        "behind": f"{status.behind_transactions} transactions",
        "pending": f"{status.pending_transactions} transactions of others",
        "backends": backends,
        "left out": f"{status.skipped_transactions} transactions"
        * bool(status.skipped_transactions),
        "sequences astray": ", ".join(status.astray_sequences),
        "rows outside": str(status.rows_outside) if status.rows_outside else "",
        "waits for": waits,
        "certified": str(status.certified_transactions),
        "refused": refused,
        "committed": f"{status.committed_transactions} transactions of others",
        "executed for backends": str(status.executed_for_backends),
        "cancelled sessions": str(status.cancelled_sessions),
        "skipped rows": str(status.skipped_rows),
        "oldest transaction": f"{status.oldest_transaction_seconds:.1f} s",
        "held snapshot": str(status.held_snapshot_version),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table
