"""`groupcert status --applier`: prints the coordinator and the workers of an applier as tables."""

from collections.abc import Iterable
from contextlib import closing
from functools import partial

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Group, RenderableType
from rich.table import Table

from groupcert.v1 import applier_pb2, applier_pb2_grpc

from ..client.direct_calls import DirectMember
from ..security.credentials import ANONYMOUS, Credentials
from .watching import FirstThatFits, show

TIMEOUT_SECONDS = 5.0
_FINE = "running"


def show_applier(
    address: str,
    credentials: Credentials = ANONYMOUS,
    *,
    as_json: bool,
    watch: bool,
    period_ms: int,
) -> int:
    """Prints the status of the applier at a member or replica, once or again and again; returns 1
    if it does not run.

    Raises MemberFailed if no applier answers there.
    """
    remote = DirectMember(address, credentials)
    with closing(remote.channel) as channel:
        stub = applier_pb2_grpc.ApplierServiceStub(channel)
        status = show(
            partial(_ask, stub, remote),
            render,
            partial(
                MessageToDict,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            ),
            as_json=as_json,
            watch=watch,
            period_ms=period_ms,
        )
        return 0 if status.coordinator.state == _FINE else 1


def _ask(
    stub: applier_pb2_grpc.ApplierServiceStub, remote: DirectMember
) -> applier_pb2.GetApplierStatusResponse:
    request = applier_pb2.GetApplierStatusRequest()
    try:
        return stub.GetApplierStatus(request, timeout=TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise remote.failure(error) from error


def render(status: applier_pb2.GetApplierStatusResponse) -> RenderableType:
    """Returns the coordinator's table over the workers' table."""
    lines = Group(*(line for worker in status.workers for line in _lines(worker)))
    return Group(_coordinator(status.coordinator), FirstThatFits(_workers(status), lines))


def _coordinator(one: applier_pb2.Coordinator) -> Table:
    table = Table(title=f"applier of {one.channel}, {one.state}", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    place = f"{one.low_water_mark_file}:{one.low_water_mark_sequence_number}"
    mark = f"{one.low_water_mark_gtid} at {place}" if one.low_water_mark_gtid else "-"
    lag = f"{one.lag_seconds:.1f} s, {one.behind_transactions} transactions"
    rows = {
        "source": one.source or "-",
        "scheme": f"{one.scheme} ({one.consistency} consistency)",
        "waits for": one.waits_for or "-",
        "mode": "sequential" if one.is_sequential else "parallel",
        "behind": lag,
        "low-water mark": mark + (", gaps above it" if one.has_gaps else ""),
        "executed": one.gtid_executed.replace(",", ", ") or "-",
        "pending": f"{one.pending_transactions} transactions, {one.pending_bytes} bytes",
        "committed": f"{one.committed_transactions} in {one.committed_groups} groups",
        "skipped": str(one.skipped_transactions),
        "parallelism": f"{one.parallelism_mean:.2f}",
        "held by": _causes(one.holds),
        "sequential because of": _causes(one.fallbacks),
        "domains": ", ".join(f"{domain}: {gtid}" for domain, gtid in one.domain_gtids.items()),
        "recovery": one.last_recovery,
        "error": one.error,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def _workers(status: applier_pb2.GetApplierStatusResponse) -> Table:
    table = Table()
    for heading in ("worker", "state", "waits for", "transaction", "executed", "retried"):
        table.add_column(heading, no_wrap=True)
    for one in status.workers:
        table.add_row(
            str(one.worker),
            one.state,
            one.waits_for,
            one.gtid or "-",
            str(one.executed_transactions),
            str(one.retried_transactions),
        )
    return table


def _lines(one: applier_pb2.ApplierWorker) -> tuple[str, str]:
    """Returns a worker as lines, none of which is wide."""
    waits = f", waits for {one.waits_for}" if one.waits_for else ""
    return (
        f"worker {one.worker}: {one.state}{waits}",
        f"  {one.gtid or '-'}, {one.executed_transactions} executed, "
        f"{one.retried_transactions} retried",
    )


def _causes(counts: Iterable[applier_pb2.CauseCount]) -> str:
    return ", ".join(f"{one.cause} {one.count}" for one in counts)
