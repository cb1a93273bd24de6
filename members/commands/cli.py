"""The command `groupcert`: verbs, flags and exit codes; what a verb does is in a module beside it.

The rule it keeps: answers go to standard output, everything else to standard error. The exit code
is 0 for fine, 1 for a finding, 2 for wrong usage or input, 3 for what is not available; 130 for
what was interrupted. A verb imports what it needs itself, so that the command starts quickly.
"""

import platform
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ..errors.usage import InvalidOption, MissingOption
from . import failures
from .cli_audit import audit, export
from .cli_group import group as group_verbs
from .cli_log import log as log_verbs
from .cli_postgresql import postgresql as postgresql_verbs
from .cli_process import bootstrap, health, member, replica
from .cli_traces import replay
from .cli_up import down, up
from .cli_whatif import whatif
from .connect_flags import SEVERAL, ConnectFlags, connecting
from .extras import check_extras
from .verb_options import FINE, USAGE, Json, Seconds, example


class WorkloadName(StrEnum):
    """The workloads of `load`."""

    BANK = "bank"
    UPDATE = "update"
    APPEND = "append"


app = typer.Typer(
    epilog="Exit codes: 0 fine, 1 finding, 2 wrong usage or input, 3 not available.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(group_verbs, name="group")
app.add_typer(log_verbs, name="log")
app.add_typer(postgresql_verbs, name="postgresql")
for verb, line in (
    (up, "up --detach"),
    (down, "down"),
    (
        member,
        "member --group shop --member m1 --address 127.0.0.1:7101 --log-server"
        " nats://127.0.0.1:4222 --data-folder m1",
    ),
    (bootstrap, "bootstrap --group shop --log-server nats://127.0.0.1:4222"),
    (replica, "replica 127.0.0.1:7101 --target rocksdb:replica-data --workers 8"),
    (replay, "replay trace.jsonl --json"),
    (whatif, "whatif --binlog binlog.000001 --workers 1,4,16 --html whatif.html"),
    (export, "export --trace trace.jsonl --out certification-log"),
    (audit, "audit logs/m1 logs/m2 logs/m3 --out report"),
):
    app.command(epilog=example(line))(verb)


def _show_version(asked: bool) -> None:
    if asked:
        from ..core.views import FORMAT_VERSION

        release, python = version("groupcert"), platform.python_version()
        typer.echo(
            f"groupcert {release}, log messages up to format {FORMAT_VERSION}, Python {python}"
        )
        raise typer.Exit


@app.callback()
def groupcert(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the release, the newest format of the log that it reads, and Python's.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Multi-primary, certification-based replication as a service."""


@app.command(epilog=example("demo --seconds 5"))
def demo(
    postgresql: Annotated[
        bool, typer.Option("--postgresql", help="Clients write at PostgreSQL servers, by SQL.")
    ] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Replicas of a MariaDB server, and no group.")
    ] = False,
    members: Annotated[int, typer.Option(min=1, max=9, help="Members of the group.")] = 3,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Clients: 64; 8 with --postgresql, 16 with --replicas."),
    ] = None,
    seconds: Seconds = 10.0,
    certification_log: Annotated[
        Path | None,
        typer.Option(help="A new folder for the members' certification logs, with keys."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a whole group on this machine, then check what it did.

    With --postgresql each member has a PostgreSQL server, of which one is killed meanwhile. With
    --replicas there are no members: MariaDB and PostgreSQL follow a live MariaDB server by several
    schemes, beside its own replica. Exits with 1 if a check fails.
    """
    if replicas:
        if postgresql or certification_log:
            expected = "without --postgresql and --certification-log, which are a group's"
            raise InvalidOption(name="--replicas", value=True, expected=expected)
        check_extras("member", "postgresql")
        from ..demo.replicas_demo import main as follow

        raise typer.Exit(follow(clients=clients or 16, seconds=seconds, as_json=as_json))
    check_extras(
        "member",
        *(["postgresql"] if postgresql else []),
        *(["certification-log"] if certification_log else []),
    )
    if postgresql:
        from ..demo.postgresql_demo import main
    else:
        from ..demo.demo import main
    code = main(
        members=members,
        clients=clients or (8 if postgresql else 64),
        seconds=seconds,
        as_json=as_json,
        certification_log=certification_log,
    )
    raise typer.Exit(code)


@app.command(epilog=example("status 127.0.0.1:7101"))
@connecting()
def status(
    connect: ConnectFlags,
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
    from .status_views import show_applier, show_status

    show = show_applier if applier else show_status
    credentials = connect.credentials()
    try:
        code = show(connect.address, credentials, as_json=as_json, watch=watch, period_ms=period_ms)
    except KeyboardInterrupt:
        if not watch:
            raise
        code = FINE  # A watch has no other end.
    raise typer.Exit(code)


@app.command(epilog=example("verify 127.0.0.1:7101"))
@connecting()
def verify(connect: ConnectFlags, as_json: Json = False) -> None:
    """Compare the rows of all members as they are at one position of the log.

    Exits with 1 if they are not equal, and names members, ranges of keys and the first 100 rows.
    """
    from .verify_rows import verify as compare

    raise typer.Exit(compare(connect.address, connect.credentials(), as_json=as_json))


app.command(epilog=example("health 127.0.0.1:7101"))(health)


@app.command(epilog=example("load 127.0.0.1:7101 127.0.0.1:7102 --clients 4 --seconds 5"))
@connecting(help=SEVERAL, several=True, changes=True)
def load(
    connect: ConnectFlags,
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
    from ..demo.load import show_load

    connect.tell_group()
    code = show_load(
        workload.value,
        connect.addresses,
        clients=clients,
        seconds=seconds,
        rows=rows,
        as_json=as_json,
        credentials=connect.credentials(),
    )
    raise SystemExit(code)  # Not Typer's, which also stands for an interrupt that kept nothing.


@app.command(epilog=example("backup 127.0.0.1:7101 --out backup"))
@connecting()
def backup(
    connect: ConnectFlags,
    out: Annotated[Path, typer.Option(help="The backup's folder; it must not be there.")],
    as_json: Json = False,
) -> None:
    """Take a backup of a running member: all of its state, as of one position in the log.

    The folder appears whole and verified, or not at all.
    """
    from .backup import backup as take

    code = take(connect.address, out, credentials=connect.credentials(), as_json=as_json)
    raise typer.Exit(code)


@app.command(epilog=example("restore backup --data-folder m4 --member m4"))
def restore(
    folder: Annotated[Path, typer.Argument(help="A folder of groupcert backup.", metavar="DIR")],
    data_folder: Annotated[
        Path | None, typer.Option(help="Of the new member; empty, or not there.")
    ] = None,
    member: Annotated[str | None, typer.Option(help="The new member's name.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the backup, and whether it can be put there."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the backup alone: say what it has, and all damage."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a backup into a data folder; the member started there reads on in the log.

    Exits with 1 if the backup is not what was written, and names the file; with --check, each.
    """
    from . import backup

    if check and (data_folder or member or dry_run):
        expected = "no --data-folder, --member or --dry-run beside it"
        raise InvalidOption(name="--check", value=check, expected=expected)
    if check:
        raise typer.Exit(backup.check(folder, as_json=as_json))
    if data_folder is None:
        raise MissingOption(name="data-folder", ways="as --data-folder; or only --check")
    if member is None:
        raise MissingOption(name="member", ways="as --member; or only --check")
    code = backup.restore(folder, data_folder, member, dry_run=dry_run, as_json=as_json)
    raise typer.Exit(code)


def main() -> None:
    """Runs the command."""
    if not __debug__:
        sys.stderr.write("groupcert: python -O removes the checks it relies on: start it without\n")
        raise SystemExit(USAGE)
    raise SystemExit(failures.run(app, sys.argv[1:]))
