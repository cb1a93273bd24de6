"""The command `groupcert`: verbs, flags and exit codes; what a verb does is in its own module.

The rule it keeps: answers go to standard output, everything else to standard error. The exit code
is 0 for fine, 1 for a finding, 2 for wrong usage or input, 3 for what is not available. A verb
imports what it needs itself, so that the command starts quickly.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar
from uuid import UUID

import typer

from certifier.errors import GroupcertError, InvalidRequest, InvalidSetting, Unavailable
from members.failures import MemberFailed, TransactionFailed

if TYPE_CHECKING:
    from certifier.core import CertifierOptions

Settings = TypeVar("Settings")
FINE, FINDING, USAGE, UNAVAILABLE = range(4)
GROUP_UUID = UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
"""Source of GTIDs in traces that do not matter elsewhere; MySQL's manual uses it, too."""


class GcWindow(StrEnum):
    """What a garbage collection does to the applier's window."""

    CLOSE = "close"
    TIGHT = "tight"


class WorkloadName(StrEnum):
    """The workloads of `load`."""

    BANK = "bank"
    UPDATE = "update"
    APPEND = "append"


app = typer.Typer(
    help="Multi-primary, certification-based replication as a service.",
    epilog="Exit codes: 0 fine, 1 finding, 2 wrong usage or input, 3 not available.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Run the benchmarks.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Output = Annotated[Path | None, typer.Option(help="Also write the results to this file.")]
BlockSize = Annotated[
    int, typer.Option(min=1, help="GTID numbers that a member reserves at a time.")
]
Window = Annotated[GcWindow, typer.Option(help="What a collection does to the applier's window.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long the load runs.")]


@app.command()
def demo(
    members: Annotated[int, typer.Option(min=1, max=9, help="Members of the group.")] = 3,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Clients, at all members.")] = 6,
    seconds: Seconds = 10.0,
    as_json: Json = False,
) -> None:
    """Run a whole group on this machine, then check what it did.

    Exits with 1 if a check fails.
    """
    from members.demo import main

    raise typer.Exit(main(members=members, clients=clients, seconds=seconds, as_json=as_json))


@app.command()
def member(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    name: Annotated[str | None, typer.Option("--member", help="This member's name.")] = None,
    address: Annotated[str | None, typer.Option(help="Where it serves, host:port.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where it keeps its data.")] = None,
    log_server: Annotated[
        list[str] | None, typer.Option(help="nats://host:port, or: embedded. Repeatable.")
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Run one member until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from members.config import load_config

    flags = {
        "group": group,
        "member": name,
        "address": address,
        "data_folder": data_folder,
        "log_server": "embedded" if log_server == ["embedded"] else None,
        "log_servers": log_server if log_server and log_server != ["embedded"] else None,
    }
    settings = _settings(lambda: load_config(config, flags), verbose=verbose)
    from members.serve import run_member

    raise typer.Exit(run_member(settings))


@app.command()
def status(
    address: Annotated[str, typer.Argument(help="A member, host:port.")] = "127.0.0.1:7101",
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again.")] = False,
    period_ms: Annotated[int, typer.Option(min=100, help="How often with --watch.")] = 1_000,
    applier: Annotated[
        bool, typer.Option("--applier", help="The applier there, a member's or a replica's.")
    ] = False,
) -> None:
    """Show the group as a member sees it, and each member as it sees itself.

    Exits with 1 if a member of the view is not ONLINE; with --applier if it does not run.
    """
    from members.applier_view import show_applier
    from members.group_view import show_status

    with suppress(KeyboardInterrupt):
        if applier:
            raise typer.Exit(
                show_applier(address, as_json=as_json, watch=watch, period_ms=period_ms)
            )
        code = show_status(address, as_json=as_json, watch=watch, period_ms=period_ms)
        raise typer.Exit(code)


@app.command()
def replica(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="A member to follow, host:port. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--replica", help="This replica's name.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="rocksdb:FOLDER, postgresql://... or mysql://user@host/database."),
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="TOML: rows to SQL tables.")] = None,
    scheme: Annotated[str | None, typer.Option(help="The scheme of parallel execution.")] = None,
    conflicts: Annotated[
        str | None, typer.Option(help="With jobs: ignore, ordered, barrier, graph or merge.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="With logical-clock: at-most-one or first-available.")
    ] = None,
    job_transactions_max: Annotated[
        int | None, typer.Option(help="With logical-clock: so many are committed as one.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="0 to 1024; 0: alone, in order.")] = None,
    preserve_commit_order: Annotated[
        bool | None, typer.Option(help="Commit in the source's order.")
    ] = None,
    delay_s: Annotated[int | None, typer.Option(help="Execute so many seconds later.")] = None,
    until_after_gtids: Annotated[str | None, typer.Option(help="A GTID set.")] = None,
    until_before_gtids: Annotated[str | None, typer.Option(help="A GTID set.")] = None,
    until_position: Annotated[
        str | None, typer.Option(help="FILE:NUMBER in the source's binary log.")
    ] = None,
    until_view: Annotated[int | None, typer.Option(help="A view's id.")] = None,
    until_after_gaps: Annotated[bool, typer.Option(help="Stop when gaps are filled.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Where it answers to status --applier, host:port.")
    ] = None,
    metrics_address: Annotated[str | None, typer.Option(help="For metrics, host:port.")] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Follow a member's binary log and execute it on a target, until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from members.replica_config import load_replica_config

    flags = {
        "sources": source,
        "replica": name,
        "target": target,
        "mapping": mapping,
        "scheme": scheme,
        "conflicts": conflicts,
        "policy": policy,
        "job_transactions_max": job_transactions_max,
        "workers": workers,
        "preserve_commit_order": preserve_commit_order,
        "delay_s": delay_s,
        "until_after_gtids": until_after_gtids,
        "until_before_gtids": until_before_gtids,
        "until_position": until_position,
        "until_view": until_view,
        "until_after_gaps": until_after_gaps or None,
        "address": address,
        "metrics_address": metrics_address,
    }
    settings = _settings(lambda: load_replica_config(config, flags), verbose=verbose)
    from members.replica_process import run_replica

    raise typer.Exit(run_replica(settings))


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")],
    as_json: Json = False,
    observer: Annotated[
        str | None,
        typer.Option(help="The member whose stamps to give; its transactions are local."),
    ] = None,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
) -> None:
    """Certify a trace offline; with --json, print what becomes of each line."""
    from members.replay import replay as replay_trace

    options = _trace_options(group_uuid, gtid_assignment_block_size, gc_window)
    replay_trace(trace, options, observer, as_json=as_json)


@app.command()
def whatif(
    trace: Annotated[
        str | None, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")
    ] = None,
    binlog: Annotated[
        list[Path] | None, typer.Option(help="A binary log in place of a trace. Repeatable.")
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,2,4,8,16",
    scheme: Annotated[list[str] | None, typer.Option(help="Only this scheme. Repeatable.")] = None,
    execute_us: Annotated[
        int, typer.Option(min=0, help="A transaction's time, where the stream does not say.")
    ] = 100,
    row_us: Annotated[int, typer.Option(min=0, help="And that of each of its rows.")] = 20,
    commit_us: Annotated[int, typer.Option(min=0, help="A group commit's time.")] = 500,
    commit_group_transactions: Annotated[
        int, typer.Option(min=1, help="Size of group commits, where the stream does not say.")
    ] = 1,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
    processes: Annotated[
        int | None, typer.Option(min=1, help="At the same time, for long streams; all by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the curves.")] = None,
    as_json: Json = False,
) -> None:
    """Schedule a stream under every scheme, and compare them."""
    from applier.whatif.comparison import chosen_lines, parse_workers
    from applier.whatif.workload import Costs
    from members.whatif import WhatIfOptions, whatif_binary_log, whatif_trace

    options = WhatIfOptions(
        lines=chosen_lines(scheme or ()),
        workers=parse_workers(workers),
        costs=Costs(execute_us=execute_us, row_us=row_us, commit_us=commit_us),
        commit_group_transactions=commit_group_transactions,
        processes=processes or os.cpu_count() or 1,
    )
    if (trace is None) == (not binlog):
        expected = "either a trace or --binlog FILE"
        raise InvalidSetting(name="TRACE", value=trace or "none", expected=expected)
    if trace is None:
        whatif_binary_log(binlog or (), options, as_json=as_json, html=html)
    else:
        certifier = _trace_options(group_uuid, gtid_assignment_block_size, gc_window)
        whatif_trace(trace, certifier, options, as_json=as_json, html=html)


@app.command()
def load(
    member: Annotated[list[str], typer.Option(help="A member, host:port. Repeatable.")],
    workload: Annotated[
        WorkloadName, typer.Option(help="Transfers, updates of single rows, or new rows.")
    ] = WorkloadName.BANK,
    clients: Annotated[int, typer.Option(min=1, max=1_024, help="At the same time.")] = 8,
    seconds: Seconds = 10.0,
    rows: Annotated[int, typer.Option(min=2, help="Accounts, or rows that exist.")] = 1_000,
    as_json: Json = False,
) -> None:
    """Run a workload against running members.

    Exits with 1 if the workload `bank` finds another sum of all balances than before.
    """
    from members.load import show_load

    code = show_load(
        workload.value, member, clients=clients, seconds=seconds, rows=rows, as_json=as_json
    )
    raise typer.Exit(code)


@bench.command("certify")
def bench_certify(as_json: Json = False, output: Output = None) -> None:
    """Certify on one thread, with small and large certification info."""
    from members.bench_certify import main

    raise typer.Exit(main(json=as_json, output=output))


@bench.command("group")
def bench_group(as_json: Json = False, seconds: Seconds = 10.0, output: Output = None) -> None:
    """Run three members, a log server and clients on this machine."""
    from members.bench_group import main

    raise typer.Exit(main(as_json=as_json, seconds=seconds, output=output))


@bench.command("applier")
def bench_applier(
    as_json: Json = False,
    scheme: Annotated[
        list[str] | None, typer.Option(help='Only this scheme, or as "jobs graph". Repeatable.')
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="rocksdb, postgresql, mariadb or slow. Repeatable. All by default."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "0,1,2,4,8,16",
    transactions: Annotated[int, typer.Option(min=1, help="Of one row each.")] = 50_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    postgresql: Annotated[str | None, typer.Option(help="Where a server runs, a DSN.")] = None,
    mariadb: Annotated[
        str | None, typer.Option(help="Where a server runs, mysql://user@host:port.")
    ] = None,
    start_servers: Annotated[
        bool, typer.Option("--start-servers", help="Start those that are not given, on loopback.")
    ] = False,
    mariadb_replica: Annotated[
        bool, typer.Option("--mariadb-replica", help="Also measure MariaDB's own replica.")
    ] = False,
    slow_commit_ms: Annotated[
        float, typer.Option(min=0.1, help="How long a commit of the slow target waits.")
    ] = 5.0,
    slow_transactions: Annotated[
        int, typer.Option(min=1, help="How many of them the slow target takes.")
    ] = 2_000,
    output: Output = None,
) -> None:
    """Execute one stream under every scheme, on each target.

    Exits with 1 if rows are not those of serial execution.
    """
    from members.bench_applier import TARGETS, BenchOptions, main, parse_counts

    options = BenchOptions(
        transactions=transactions,
        workers=parse_counts(workers),
        schemes=tuple(scheme or ()),
        targets=tuple(target or TARGETS),
        repeat=repeat,
        slow_commit_ms=slow_commit_ms,
        slow_transactions=slow_transactions,
        postgresql=postgresql,
        mariadb=mariadb,
        start_servers=start_servers,
        mariadb_replica=mariadb_replica,
    )
    raise typer.Exit(main(options, as_json=as_json, output=output))


def _settings(load: Callable[[], Settings], *, verbose: bool) -> Settings:
    """Settings that were loaded, and logs from here on; or the end, if they are wrong."""
    from members.config import InvalidConfig
    from members.logs import configure_logs

    try:
        settings = load()
    except InvalidConfig as error:
        _fail(error, USAGE)
    configure_logs(verbose=verbose)
    return settings


def main() -> None:
    """The command."""
    if not __debug__:
        sys.stderr.write("groupcert: python -O removes the checks it relies on: start it without\n")
        raise SystemExit(USAGE)
    try:
        app(prog_name="groupcert")
    except (InvalidRequest, OSError) as error:
        _fail(error, USAGE)
    except (Unavailable, MemberFailed) as error:
        _fail(error, UNAVAILABLE)
    except (GroupcertError, TransactionFailed) as error:
        _fail(error, FINDING)


def _trace_options(group_uuid: UUID, block_size: int, gc_window: GcWindow) -> "CertifierOptions":
    """How a trace is certified: what its snapshots name was executed, collections are whole."""
    from certifier.core import CertifierOptions
    from members.replay import SNAPSHOT_LAG_MAX

    return CertifierOptions(
        group_source=str(group_uuid),
        gtid_assignment_block_size=block_size,
        gc_window=gc_window.value,
        collection_period_transactions=0,
        learn_snapshots=True,
        snapshot_lag_max=SNAPSHOT_LAG_MAX,
    )


def _fail(error: Exception, code: int) -> NoReturn:
    """Ends the command with one line about an error."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    sys.stderr.write(f"groupcert: {' '.join(text.split())}\n")
    raise SystemExit(code) from None
