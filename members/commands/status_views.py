"""Prints a status, once or again and again: that of a group, an applier or a member.

The rule that `groupcert status` keeps: the view comes from the member that was asked; every member
of it is asked at its own address. One that does not answer is UNREACHABLE, as nothing more is known
of it here. `members/services/group_problems.py` lists the problems; any makes the exit code 1.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.json_format import MessageToDict
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from groupcert.v1 import applier_pb2, applier_pb2_grpc
from groupcert.v1.group_pb2 import GroupStatus, MemberStatus
from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ...certifier.errors import InvalidRequest, Unavailable
from ..client.client import Client
from ..client.direct_calls import DirectMember
from ..core.recovery_progress import readable
from ..errors.transactions import MemberFailed
from ..security.credentials import ANONYMOUS, Credentials
from ..services.group_problems import problems_of_all, since
from ..wire.status_documents import (
    JsonObject,
    comparison_document,
    fields_of,
    log_document,
    recovery_document,
    role_name,
)
from .verb_options import FINDING, FINE

Status = TypeVar("Status")
TIMEOUT_MS = 3_000
APPLIER_SECONDS = 5.0
UNBROKEN_COLUMNS = 10_000
"""The width where no terminal shows it: a program that reads lines finds each word whole."""
COUNTS = {
    "position": "position",
    "certified": "certified",
    "conflicts": "conflicts",
    "items": "certification_info_items",
    "queued": "relay_queue_length",
}
"""Headings of the tables, and the names of the counters below them."""
UNTOLD = ("name", "stages", "run_verdicts", "commit_durations")
"""Fields of a member's status that its row has already, or that metrics tell better."""
STATE_STYLES = {"ONLINE": "green", "RECOVERING": "yellow", "JOINING": "yellow"}
RUNNING = "running"
WORKER_COLUMNS = {
    "worker": "worker",
    "state": "state",
    "waits for": "waits_for",
    "transaction": "gtid",
    "queued": "queued_transactions",
    "executed": "executed_transactions",
    "retried": "retried_transactions",
}


def show(
    ask: Callable[[], Status],
    table: Callable[[Status], RenderableType],
    document: Callable[[Status], Mapping[str, object]],
    *,
    as_json: bool,
    watch: bool,
    period_ms: int,
) -> Status:
    """Prints what `ask` returns, as a table or as JSON; returns it unless it goes on watching."""
    if watch and not as_json and sys.stdout.isatty():
        with Live(table(ask()), auto_refresh=False) as live:
            while True:
                time.sleep(period_ms / 1000)
                live.update(table(ask()), refresh=True)
    while True:
        status = ask()
        if as_json:
            sys.stdout.write(json.dumps(document(status)) + "\n")
            sys.stdout.flush()
        else:
            width = None if sys.stdout.isatty() else UNBROKEN_COLUMNS
            Console(width=width).print(table(status))
        if not watch:
            return status
        time.sleep(period_ms / 1000)


class FirstThatFits:
    """Shows the first of several renderables that fits the width, else the last."""

    def __init__(self, *renderables: RenderableType) -> None:
        self._renderables = renderables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields it."""
        *others, last = self._renderables
        unbroken = options.update(max_width=UNBROKEN_COLUMNS)
        widths = ((form, Measurement.get(console, unbroken, form).maximum) for form in others)
        yield next((form for form, width in widths if width <= options.max_width), last)


def _named_values(title: str, values: Mapping[str, str]) -> Table:
    """Returns a table with a row for each value that says something."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in values.items():
        if value:
            table.add_row(name, value)
    return table


def show_status(
    address: str,
    credentials: Credentials = ANONYMOUS,
    *,
    as_json: bool,
    watch: bool,
    period_ms: int,
) -> int:
    """Prints the group's status, once or again and again; returns 1 if anything is wrong.

    Raises:
        NotServing: The member at the address does not answer.
    """
    document = show(
        partial(group_document, address, credentials),
        status_table,
        lambda document: document,
        as_json=as_json,
        watch=watch,
        period_ms=period_ms,
    )
    return FINDING if document["problems"] else FINE


def group_document(address: str, credentials: Credentials = ANONYMOUS) -> JsonObject:
    """Returns the group as JSON: the view of the member at an address, its members' statuses."""
    seen = _status_at(address, credentials)
    others = {
        member.name: member.address for member in seen.members if member.name != seen.observer.name
    }
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        asked = pool.map(partial(answer_at, credentials), others.values())
        answers = dict(zip(others, asked, strict=True))
    own = next(
        (member.address for member in seen.members if member.name == seen.observer.name), address
    )
    addresses = {**others, seen.observer.name: own}
    answers[seen.observer.name] = seen
    return {
        "group": seen.group,
        "view_id": seen.view_id,
        "primary": seen.primary,
        "format_version": seen.format_version,
        "view": [
            fields_of(member) | {"role": role_name(seen, member.name)} for member in seen.members
        ],
        "departed": [
            fields_of(member) | {"since": since(member) or None} for member in seen.departed
        ],
        "log": log_document(seen.observer),
        "comparison": comparison_document(seen),
        "members": [_row(name, addresses[name], answers[name]) for name in sorted(answers)],
        "problems": [problem._asdict() for problem in problems_of_all(seen, answers)],
    }


def member_document(status: MemberStatus) -> JsonObject:
    """Returns a member's own status, under the names that `status --json` has."""
    fields = {name: value for name, value in fields_of(status).items() if name not in UNTOLD}
    return fields | {
        "parallelism_mean": round(status.parallelism_mean, 2),
        "recovery": recovery_document(status),
        "cpu_seconds": round(status.cpu_seconds, 2),
    }


def status_table(document: JsonObject) -> RenderableType:
    """Returns a group's document as a table, or as lines where that is too wide; the log and the
    problems are below it.
    """
    members = _rows(document, "members")
    notes = [*_log_line(document["log"]), *(row["text"] for row in _rows(document, "problems"))]
    notes += [f"{row['name']}: {row['flow_control']}" for row in members if row.get("flow_control")]
    notes += sorted({_words(row) for row in members if row.get("skipped_last")})
    notes += [f"{row['name']}: RECOVERING {_copied(row)}" for row in members if _copied(row)]
    notes += _formats(document, members)
    notes += [
        f"{row['name']} keeps no rows" for row in _rows(document, "view") if row["without_rows"]
    ]
    primary = f", primary {document['primary']}" if document["primary"] else ""
    releases = {str(row["release"]) for row in members if row.get("release")}
    alike = f", release {releases.pop()}" if len(releases) == 1 else ""
    title = Text(f"group {document['group']}, view {document['view_id']}{primary}{alike}\n")
    rows = FirstThatFits(
        _table(members, not alike), Group(*(_lines(row, not alike) for row in members))
    )
    return Group(title, rows, *(Text(str(note)) for note in ("", *notes)))


def _table(members: Sequence[JsonObject], shows_release: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
    for heading in ("member", "address", "state", *(["release"] if shows_release else [])):
        table.add_column(heading, no_wrap=True)
    for heading in COUNTS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in members:
        release = [str(row.get("release") or "-")] if shows_release else []
        counts = (_number(row.get(name)) for name in COUNTS.values())
        table.add_row(str(row["name"]), str(row["address"]), _state(row), *release, *counts)
    return table


def _lines(row: JsonObject, shows_release: bool) -> RenderableType:
    """Returns a member as lines, none of which is wide."""
    counts = (f"{heading} {_number(row.get(name))}" for heading, name in COUNTS.items())
    first = Text.assemble(f"{row['name']}  {row['address']}  ", _state(row))
    first.append(f"  {row.get('release') or '-'}" if shows_release else "")
    return Group(first, Padding(Text(", ".join(counts)), (0, 0, 0, 2)))


def _state(row: JsonObject) -> Text:
    state = str(row["state"])
    return Text(state, STATE_STYLES.get(state, "red"))


def _words(row: JsonObject) -> str:
    """Returns a sentence on skipped messages: their number, and the last one."""
    last = row["skipped_last"]
    assert isinstance(last, dict)
    claims = f", which says it is of {last['claimed_member']}" if last["claimed_member"] else ""
    return (
        f"{row['skipped_messages']} messages of the log were skipped, the last one is "
        f"{last['log_sequence']}{claims}: {last['why']}"
    )


def _copied(row: JsonObject) -> str:
    recovery = row.get("recovery")
    return str(recovery["text"]) if isinstance(recovery, dict) else ""


def _formats(document: JsonObject, members: Sequence[JsonObject]) -> list[str]:
    """Returns as one line which format the group writes, while members could write others."""
    written = document["format_version"]
    ahead = [row for row in members if row.get("format_version") not in (None, 0, written)]
    newest = ", ".join(f"{row['name']} {row['format_version']}" for row in ahead)
    text = f"the group writes format {written} of the log: not all read what these do"
    return [f"{text}: {newest}"] if ahead else []


def _log_line(log: object) -> list[str]:
    """Returns the log's servers as one line."""
    if not isinstance(log, dict):
        return []
    servers = (f"{server['name']} {server['state']}" for server in log["servers"])
    acknowledged_ms = log["acknowledged_ms_ago"]
    took = "" if acknowledged_ms is None else f"; it took a message {acknowledged_ms:,} ms ago"
    room = f" of {readable(log['bytes_max'])}" if log["bytes_max"] else ""
    size = f"; {readable(log['bytes'])}{room}" if log["bytes"] else ""
    return [f"log: leader {log['leader'] or 'not known'}; {', '.join(servers)}{took}{size}"]


def _row(name: str, address: str, answer: GroupStatus | str) -> JsonObject:
    where: JsonObject = {"name": name, "address": address}
    if isinstance(answer, str):
        return {**where, "state": "UNREACHABLE", "reason": answer}
    return {**where, **member_document(answer.observer)}


def answer_at(
    credentials: Credentials, address: str, timeout_ms: int = TIMEOUT_MS
) -> GroupStatus | str:
    """Returns a member's status, or why it does not answer."""
    try:
        return _status_at(address, credentials, timeout_ms)
    except (Unavailable, InvalidRequest, MemberFailed) as error:
        return str(error)


def _status_at(address: str, credentials: Credentials, timeout_ms: int = TIMEOUT_MS) -> GroupStatus:
    tls, token = credentials.tls, credentials.token
    with Client(address, timeout_ms=timeout_ms, tls=tls, token=token) as client:
        return client.status()


def _rows(document: JsonObject, name: str) -> list[JsonObject]:
    rows = document[name]
    assert isinstance(rows, list)
    return rows


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


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
            partial(_ask_applier, stub, remote),
            applier_table,
            partial(
                MessageToDict,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            ),
            as_json=as_json,
            watch=watch,
            period_ms=period_ms,
        )
        return FINE if status.coordinator.state == RUNNING else FINDING


def _ask_applier(
    stub: applier_pb2_grpc.ApplierServiceStub, remote: DirectMember
) -> applier_pb2.GetApplierStatusResponse:
    request = applier_pb2.GetApplierStatusRequest()
    try:
        return stub.GetApplierStatus(request, timeout=APPLIER_SECONDS)
    except grpc.RpcError as error:
        raise remote.failure(error) from error


def applier_table(status: applier_pb2.GetApplierStatusResponse) -> RenderableType:
    """Returns the coordinator's table over the workers' table."""
    lines = Group(*(line for worker in status.workers for line in _worker_lines(worker)))
    return Group(
        _coordinator_table(status.coordinator), FirstThatFits(_workers_table(status), lines)
    )


def _coordinator_table(one: applier_pb2.Coordinator) -> Table:
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
        "skipped": f"{one.skipped_transactions} executed before, "
        f"{one.operator_skipped_transactions} by skip_gtids",
        "parallelism": f"{one.parallelism_mean:.2f}",
        "held by": _causes(one.holds),
        "sequential because of": _causes(one.fallbacks),
        "domains": ", ".join(f"{domain}: {gtid}" for domain, gtid in one.domain_gtids.items()),
        "recovery": one.last_recovery,
        "last error": _last_error(one.last_error) if one.HasField("last_error") else "",
        "statement": one.last_error.statement,
    }
    return _named_values(f"applier of {one.channel}, {one.state}", rows)


def _workers_table(status: applier_pb2.GetApplierStatusResponse) -> Table:
    table = Table()
    for heading in (*WORKER_COLUMNS, "executed last"):
        table.add_column(heading, no_wrap=True)
    for one in status.workers:
        cells = (getattr(one, name) for name in WORKER_COLUMNS.values())
        table.add_row(*("-" if cell == "" else str(cell) for cell in cells), _last(one))
    return table


def _worker_lines(one: applier_pb2.ApplierWorker) -> tuple[str, ...]:
    """Returns a worker as lines, none of which is wide."""
    waits = f", waits for {one.waits_for}" if one.waits_for else ""
    return (
        f"worker {one.worker}: {one.state}{waits}",
        f"  {one.gtid or '-'}, {one.queued_transactions} queued, "
        f"{one.executed_transactions} executed, {one.retried_transactions} retried",
        f"  executed last: {_last(one)}",
    )


def _last(one: applier_pb2.ApplierWorker) -> str:
    return f"{one.last_gtid or '-'} at {_moment(one.last_seconds)}" if one.last_seconds else "-"


def _last_error(one: applier_pb2.LastError) -> str:
    worker = f" in worker {one.worker}" if one.HasField("worker") else ""
    gtid = f" {one.gtid}" if one.gtid else ""
    return f"{_moment(one.at_seconds)}, {one.stage}{gtid}{worker}: {one.cause}"


def _moment(seconds: float) -> str:
    """Returns a time of UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _causes(counts: Iterable[applier_pb2.CauseCount]) -> str:
    return ", ".join(f"{one.cause} {one.count}" for one in counts)


def show_server(dsn: str, *, as_json: bool, watch: bool, period_ms: int) -> int:
    """Prints the status of a server's member, once or again and again; returns 1 if the server
    takes no writes.

    Raises NotServing if it has no member.
    """
    from ..postgresql.status import ask_member  # It needs psycopg.

    status = show(
        partial(ask_member, dsn),
        server_table,
        fields_of,
        as_json=as_json,
        watch=watch,
        period_ms=period_ms,
    )
    return FINDING if status.out_of_group else FINE


def server_table(status: PostgresqlStatus) -> RenderableType:
    """Returns the table."""
    counts = sorted(status.refused_transactions.items())
    refused = ", ".join(f"{state} {count}" for state, count in counts if count)
    backends = (
        f"{status.certifying_transactions} certifying, {status.waiting_transactions} waiting for"
        f" their turn, {status.granted_transactions} committing"
    )
    waits = f"{status.waits_for}, for {status.waits_seconds:.1f} s" if status.waits_for else ""
    oldest = f"{status.oldest_transaction_seconds:.1f} s"
    if status.oldest_transaction:
        oldest = f"{oldest}, {status.oldest_transaction}"
    rows = {
        "takes writes": f"no: {status.out_of_group}" if status.out_of_group else "yes",
        "member": status.member,
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
        "oldest transaction": oldest,
        "held snapshot": str(status.held_snapshot_version),
    }
    return _named_values(f"member of {status.server}", rows)
