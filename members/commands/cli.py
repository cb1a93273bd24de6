"""The command `groupcert`: verbs, flags and exit codes; each verb's work is in its own module.

The rule it keeps: answers go to standard output, everything else to standard error. The exit code
is 0 for fine, 1 for a finding, 2 for wrong usage or input, 3 for what is not available. A verb
imports what it needs itself, so that the command starts quickly.
"""

import os
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from groupcert.certifier.errors import GroupcertError, InvalidRequest, InvalidSetting, Unavailable
from groupcert.members.commands.cli_audit import audit, export
from groupcert.members.commands.cli_bench import bench as bench_verbs
from groupcert.members.commands.cli_group import group as group_verbs
from groupcert.members.commands.cli_postgresql import postgresql as postgresql_verbs
from groupcert.members.commands.cli_up import down, up
from groupcert.members.commands.connect_flags import ConnectFlags, connecting
from groupcert.members.commands.options import (
    FINDING,
    GROUP_UUID,
    UNAVAILABLE,
    USAGE,
    BlockSize,
    GcWindow,
    Json,
    Seconds,
    Window,
    fail,
    load_settings,
    trace_options,
)
from groupcert.members.errors.transactions import MemberFailed


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
app.add_typer(bench_verbs, name="bench")
app.add_typer(group_verbs, name="group")
app.add_typer(postgresql_verbs, name="postgresql")
app.command()(up)
app.command()(down)
app.command()(audit)
app.command()(export)


@app.command()
def demo(
    postgresql: Annotated[
        bool, typer.Option("--postgresql", help="Clients write at PostgreSQL servers, by SQL.")
    ] = False,
    members: Annotated[int, typer.Option(min=1, max=9, help="Members of the group.")] = 3,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Clients, at all members: 64, or 8 with --postgresql."),
    ] = None,
    seconds: Seconds = 10.0,
    certification_log: Annotated[
        Path | None,
        typer.Option(help="A new folder for the members' certification logs, with keys."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a whole group on this machine, then check what it did.

    With --postgresql each member has a PostgreSQL server, of which one is killed meanwhile. Exits
    with 1 if a check fails.
    """
    from groupcert.members.demo import demo, postgresql_demo
    from groupcert.members.host.database_servers import ServerMissing

    main = postgresql_demo.main if postgresql else demo.main
    try:
        code = main(
            members=members,
            clients=clients or (8 if postgresql else 64),
            seconds=seconds,
            as_json=as_json,
            certification_log=certification_log,
        )
    except ServerMissing as missing:
        fail(missing, UNAVAILABLE)
    raise typer.Exit(code)


@app.command()
def member(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    name: Annotated[str | None, typer.Option("--member", help="This member's name.")] = None,
    address: Annotated[str | None, typer.Option(help="Where it serves, host:port.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where it keeps its data.")] = None,
    log_server: Annotated[
        list[str] | None,
        typer.Option(help="nats://host:port or etcd://host:port, or: embedded. Repeatable."),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Run one member until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from groupcert.members.settings.member import load_config

    flags = {
        "group": group,
        "member": name,
        "address": address,
        "data_folder": data_folder,
        "log_server": "embedded" if log_server == ["embedded"] else None,
        "log_servers": log_server if log_server and log_server != ["embedded"] else None,
    }
    settings = load_settings(lambda: load_config(config, flags), verbose=verbose)
    from groupcert.members.process.serve import run_member

    raise typer.Exit(run_member(settings))


@app.command()
def bootstrap(
    config: Annotated[Path | None, typer.Option(help="A member's TOML file.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    log_server: Annotated[
        list[str] | None, typer.Option(help="nats://host:port or etcd://host:port.")
    ] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="No mistake if the group is there.")
    ] = False,
) -> None:
    """Make a group, once: its log. Its first member brings the group's settings.

    Exits with 2 if the group was made before; nothing is changed then.
    """
    from groupcert.members.settings.member import load_config

    flags = {"group": group, "member": "bootstrap", "log_servers": log_server}
    settings = load_settings(lambda: load_config(config, flags), verbose=False)
    if not settings.log_servers:
        expected = "log servers; an embedded one makes its group itself"
        raise InvalidSetting(name="log_servers", value="", expected=expected)
    from groupcert.members.commands.group_admin import bootstrap as make_group
    from groupcert.members.process.serve import log_options

    options = log_options(settings, settings.log_servers, settings.log_monitors)
    sys.stdout.write(f"{make_group(options, if_absent=if_absent)}\n")


@app.command()
@connecting
def status(
    connect: ConnectFlags,
    address: Annotated[str, typer.Argument(help="A member, host:port.")] = "127.0.0.1:7101",
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again.")] = False,
    period_ms: Annotated[int, typer.Option(min=100, help="How often with --watch.")] = 1_000,
    applier: Annotated[
        bool, typer.Option("--applier", help="The applier there, a member's or a replica's.")
    ] = False,
) -> None:
    """Show the group as a member sees it, and each member as it sees itself.

    Exits with 1 if anything is wrong with the group or its log, and says what; with --applier if
    that does not run.
    """
    from groupcert.members.commands.applier_view import show_applier
    from groupcert.members.commands.group_view import show_status

    show = show_applier if applier else show_status
    credentials = connect.credentials()
    with suppress(KeyboardInterrupt):
        code = show(address, credentials, as_json=as_json, watch=watch, period_ms=period_ms)
        raise typer.Exit(code)


@app.command()
@connecting
def health(
    connect: ConnectFlags,
    address: Annotated[
        str,
        typer.Argument(help="A member, host:port, or a log server's monitoring, http://host:port."),
    ] = "127.0.0.1:7101",
) -> None:
    """Ask whether a member or a log server serves, as containers do.

    Exits with 3 if it does not.
    """
    from groupcert.members.commands.health import show_health

    raise typer.Exit(show_health(address, connect.credentials()))


@app.command()
@connecting
def replica(
    context: typer.Context,
    connect: ConnectFlags,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", help="A member to follow, host:port. Repeatable."),
    ] = None,
    replica: Annotated[str | None, typer.Option(help="This replica's name.")] = None,
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
    until_after_gaps: Annotated[
        bool | None, typer.Option("--until-after-gaps", help="Stop when gaps are filled.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Where it answers to status --applier, host:port.")
    ] = None,
    metrics_address: Annotated[str | None, typer.Option(help="For metrics, host:port.")] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Follow a member's binary log and execute it on a target, until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from groupcert.members.settings.replica import load_replica_config

    flags = {
        name: value
        for name, value in context.params.items()
        if name not in {"config", "verbose"} and value not in ([], ())  # No --source was given.
    }
    settings = load_settings(lambda: load_replica_config(config, flags), verbose=verbose)
    from groupcert.members.replica.process import run_replica

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
    from groupcert.members.commands.replay import replay as replay_trace

    options = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
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
    from groupcert.applier.whatif.comparison import chosen_lines, parse_workers
    from groupcert.applier.whatif.workload import Costs
    from groupcert.members.commands.whatif import WhatIfOptions, whatif_binary_log, whatif_trace

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
        certifier = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
        whatif_trace(trace, certifier, options, as_json=as_json, html=html)


@app.command()
@connecting
def load(
    connect: ConnectFlags,
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
    from groupcert.members.demo.load import show_load

    code = show_load(
        *(workload.value, member),
        clients=clients,
        seconds=seconds,
        rows=rows,
        as_json=as_json,
        credentials=connect.credentials(),
    )
    raise typer.Exit(code)


@app.command()
@connecting
def backup(
    connect: ConnectFlags,
    address: Annotated[str, typer.Argument(help="A member that is ONLINE, host:port.")],
    out: Annotated[Path, typer.Option(help="The backup's folder; it must not be there.")],
    as_json: Json = False,
) -> None:
    """Take a backup of a running member: all of its state, as of one position in the log.

    The folder appears whole and verified, or not at all.
    """
    from groupcert.members.commands.backup import backup as take

    raise typer.Exit(take(address, out, credentials=connect.credentials(), as_json=as_json))


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="A folder of groupcert backup.", metavar="DIR")],
    data_folder: Annotated[Path, typer.Option(help="Of the new member; empty, or not there.")],
    member: Annotated[str, typer.Option(help="The new member's name.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the backup.")] = False,
    as_json: Json = False,
) -> None:
    """Put a backup into a data folder; the member started there reads on in the log.

    Exits with 1 if the backup is not what was written, and names the file.
    """
    from groupcert.members.commands.backup import restore as put

    code = put(folder, data_folder, member, dry_run=dry_run, as_json=as_json)
    raise typer.Exit(code)


def main() -> None:
    """Runs the command."""
    if not __debug__:
        sys.stderr.write("groupcert: python -O removes the checks it relies on: start it without\n")
        raise SystemExit(USAGE)
    try:
        app(prog_name="groupcert")
    except (InvalidRequest, OSError) as error:
        fail(error, USAGE)
    except (Unavailable, MemberFailed) as error:
        fail(error, UNAVAILABLE)
    except GroupcertError as error:
        fail(error, FINDING)
