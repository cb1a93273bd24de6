"""The command `groupcert`: verbs, flags and exit codes; what a verb does is in its own module.

The rule it keeps: answers go to standard output, everything else to standard error. The exit code
is 0 for fine, 1 for a finding, 2 for wrong usage or input, 3 for what is not available. A verb
imports what it needs itself, so that the command starts quickly.
"""

import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn
from uuid import UUID

import typer

from certifier.errors import GroupcertError, InvalidRequest, Unavailable
from members.failures import MemberFailed, TransactionFailed

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
    from members.config import InvalidConfig, load_config
    from members.logs import configure_logs

    flags = {
        "group": group,
        "member": name,
        "address": address,
        "data_folder": data_folder,
        "log_server": "embedded" if log_server == ["embedded"] else None,
        "log_servers": log_server if log_server and log_server != ["embedded"] else None,
    }
    try:
        settings = load_config(config, flags)
    except InvalidConfig as error:
        _fail(error, USAGE)
    configure_logs(verbose=verbose)
    from members.serve import run_member

    raise typer.Exit(run_member(settings))


@app.command()
def status(
    address: Annotated[str, typer.Argument(help="A member, host:port.")] = "127.0.0.1:7101",
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again.")] = False,
    period_ms: Annotated[int, typer.Option(min=100, help="How often with --watch.")] = 1_000,
) -> None:
    """Show the group as a member sees it, and each member as it sees itself.

    Exits with 1 if a member of the view is not ONLINE.
    """
    from members.group_view import show_status

    with suppress(KeyboardInterrupt):
        code = show_status(address, as_json=as_json, watch=watch, period_ms=period_ms)
        raise typer.Exit(code)


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")],
    as_json: Json = False,
    observer: Annotated[
        str | None,
        typer.Option(help="The member whose stamps to give; its transactions are local."),
    ] = None,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: Annotated[
        int, typer.Option(min=1, help="GTID numbers that a member reserves at a time.")
    ] = 1,
    gc_window: Annotated[
        GcWindow, typer.Option(help="What a collection does to the applier's window.")
    ] = GcWindow.CLOSE,
) -> None:
    """Certify a trace offline; with --json, print what becomes of each line."""
    from certifier.core import CertifierOptions
    from members.replay import SNAPSHOT_LAG_MAX
    from members.replay import replay as replay_trace

    options = CertifierOptions(
        group_source=str(group_uuid),
        gtid_assignment_block_size=gtid_assignment_block_size,
        gc_window=gc_window.value,
        collection_period_transactions=0,
        learn_snapshots=True,
        snapshot_lag_max=SNAPSHOT_LAG_MAX,
    )
    replay_trace(trace, options, observer, as_json=as_json)


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


def _fail(error: Exception, code: int) -> NoReturn:
    """Ends the command with one line about an error."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    sys.stderr.write(f"groupcert: {' '.join(text.split())}\n")
    raise SystemExit(code) from None
