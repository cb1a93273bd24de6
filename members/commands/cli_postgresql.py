"""The verbs below `groupcert postgresql`: what a server needs that keeps a member's rows."""

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..core.recovery_progress import readable
from ..errors.usage import InvalidUsage, MissingOption
from .connect_flags import ConnectFlags, connecting, parsed
from .verb_options import FINDING, FINE, Json, example

SHOWN_ROWS_MAX = 10


class NewTables(StrEnum):
    """What happens where a table is made at one server alone."""

    WARN = "warn"
    REFUSE = "refuse"


SHOP = "postgresql://postgres@127.0.0.1/shop"
postgresql = typer.Typer(
    help="Make a PostgreSQL server the store of a member, by its setting postgresql.",
    epilog=example(f"postgresql attach --dsn {SHOP}"),
    no_args_is_help=True,
)
Offset = Annotated[
    int | None,
    typer.Option("--sequence-offset", help="This server's number, from 1 on: what its ids have."),
]
Increment = Annotated[
    int | None,
    typer.Option("--sequence-increment", help="The servers that the group may ever have."),
]
Socket = Annotated[
    Path | None, typer.Option(help="The member's socket; by default in the data directory.")
]
Members = Annotated[
    list[str] | None,
    typer.Option(help="Members of the group, host:port. Repeatable, or with commas."),
]
Dsn = Annotated[str | None, typer.Option(help="The server, as libpq takes it; of a superuser.")]


@postgresql.command(
    "attach",
    epilog=example(f"postgresql attach --dsn {SHOP} --tables 'public.*'"),
)
def attach_tables(
    dsn: Dsn = None,
    tables: Annotated[
        list[str] | None, typer.Option(help="Such as 'public.*'. Repeatable.")
    ] = None,
    socket: Socket = None,
    set_isolation: Annotated[
        bool,
        typer.Option("--set-isolation", help="Sessions of the database begin REPEATABLE READ."),
    ] = False,
    sequence_offset: Offset = None,
    sequence_increment: Increment = None,
    new_tables: Annotated[
        NewTables | None,
        typer.Option(help="Where a table is made here that matches --tables; at first: warn."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Install triggers at a server's tables, and say which are kept out and why.

    Exits with 1 if a table is kept out; the others are attached.
    """
    from ..postgresql.attachment import attach
    from ..postgresql.sequences import Numbering

    done = attach(
        _given(dsn),
        tables or ["public.*"],
        socket=socket,
        set_isolation=set_isolation,
        numbering=Numbering.checked(sequence_offset, sequence_increment),
        new_tables=new_tables or "",
    )
    if as_json:
        sys.stdout.write(json.dumps(done._asdict()) + "\n")
    else:
        if done.is_moved:
            sys.stdout.write("noted its new place: start its member anew\n")
        for name in done.attached:
            sys.stdout.write(f"attached {name}\n")
        for name, problem in done.kept_out.items():
            sys.stdout.write(f"kept out {name}: {problem}\n")
        _print_sequences(done.sequences)
        for name in done.sequences_alike:
            sys.stdout.write(
                f"sequence {name} gives the same numbers as at other servers: give each its own by"
                " --sequence-offset and --sequence-increment\n"
            )
    raise typer.Exit(FINDING if done.kept_out else FINE)


@postgresql.command(
    "join",
    epilog=example(
        "postgresql join --dsn postgresql://postgres@10.0.0.4/shop"
        " --from postgresql://postgres@10.0.0.1/shop"
    ),
)
def join_server(
    dsn: Dsn = None,
    source: Annotated[
        str | None, typer.Option("--from", help="A running server of the group, as --dsn.")
    ] = None,
    socket: Socket = None,
    sequence_offset: Offset = None,
    as_json: Json = False,
) -> None:
    """Copy a running server of the group into an empty database; start its member next.

    The running server goes on. Roles have to be there before: `pg_dumpall --roles-only`.
    """
    from ..host.progress_bar import progress
    from ..postgresql.join import join

    source_dsn = _given(source, "--from")
    with progress("copying the database", number=readable) as state:
        done = join(
            _given(dsn), source_dsn, socket=socket, sequence_offset=sequence_offset, show=state.at
        )
    if as_json:
        sys.stdout.write(json.dumps(done._asdict()) + "\n")
        return
    sys.stdout.write(f"joined as of version {done.version}, {readable(done.dump_bytes)}\n")
    _print_sequences(done.sequences)
    sys.stdout.write("start its member: groupcert member with the setting postgresql\n")


@postgresql.command(
    "ddl",
    epilog=example(f"postgresql ddl change.sql --dsn {SHOP} --member 127.0.0.1:7101"),
)
@connecting(help=None, changes=True)
def change_schema(
    file: Annotated[Path, typer.Argument(help="Statements of SQL that change the schema.")],
    connect: ConnectFlags,
    dsn: Annotated[
        list[str] | None, typer.Option(help="Each server of the group. Repeatable.")
    ] = None,
    member: Members = None,
    role: Annotated[
        str | None, typer.Option(help="Who owns what is made; by default the user of --dsn.")
    ] = None,
    search_path: Annotated[
        str | None, typer.Option(help="By default that of the first --dsn.")
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Attach new tables that match what was attached.")
    ] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Tables may be written anew: old snapshots lose them.")
    ] = False,
    approve: Annotated[
        bool, typer.Option("--approve", help="Only approve it, at a server that was not named.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only try it at each server.")] = False,
    wait_seconds: Annotated[
        float, typer.Option(min=0, help="How long to wait until servers have executed it.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Change the schema of all servers, at the same place of the order.

    It is tried at each server first, and rolled back. Exits with 1 if a server has not executed it.
    """
    from ..client.client import Client
    from ..host.progress_bar import progress
    from ..postgresql import ddl

    dsns = [_given(each) for each in dsn or [""]]
    if not member and not (approve or dry_run):
        raise MissingOption(name="member", ways="as --member")
    members = parsed(member or (), name="--member")
    if members and not dry_run:
        connect._replace(given=members).tell_group()
    change = ddl.change_for(
        dsns[0],
        file.read_text(),
        role=role,
        search_path=search_path,
        attach=attach,
        rewrite=rewrite,
    )
    newest = [ddl.try_at(each, change) for each in dsns]
    if not dry_run:
        ddl.approve_at(dsns, change)
    if dry_run or approve:
        sys.stdout.write(f"{'tried' if dry_run else 'approved'} at {len(dsns)} servers\n")
        return
    credentials = connect.credentials()
    with Client(members, tls=credentials.tls, token=credentials.token) as client:
        gtid, version = ddl.certify(dsns, client, change, newest[0])
    with progress("executing it", len(dsns), "{:.0f} servers".format) as state:
        missing = ddl.wait_for_servers(dsns, change, seconds=wait_seconds, show=state.at)
    if as_json:
        document = json.dumps({"gtid": gtid, "version": version, "missing": missing})
        sys.stdout.write(f"{document}\n")
    else:
        executed = len(dsns) - len(missing)
        lines = [f"{gtid} is version {version}, executed by {executed} servers\n"]
        lines += [f"not by {name}: {reason}\n" for name, reason in missing.items()]
        sys.stdout.write("".join(lines))
    raise typer.Exit(FINDING if missing else FINE)


@postgresql.command("status", epilog=example(f"postgresql status --dsn {SHOP}"))
def show_status(
    dsn: Dsn = None,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again.")] = False,
    period_ms: Annotated[int, typer.Option(min=100, help="How often with --watch.")] = 1_000,
) -> None:
    """Show how far a server is, what its member does there, and whose transaction holds it up.

    Exits with 1 if the server takes no writes, with 3 if no member serves it.
    """
    from .status_views import show_server

    address = _given(dsn)
    code = show_server(address, as_json=as_json, watch=watch, period_ms=period_ms)
    raise typer.Exit(code)


@postgresql.command(
    "skip",
    epilog=example(
        f"postgresql skip 3e11fa47-71ca-11e1-9e33-c80aa9429562:7 --reason 'disk of m2' --dsn {SHOP}"
    ),
)
def skip_transaction(
    gtid: Annotated[str, typer.Argument(help="As the member's reason names it.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the rows.")],
    dsn: Dsn = None,
    as_json: Json = False,
) -> None:
    """Leave out a transaction that a server cannot execute; its member goes on.

    Its rows are kept in groupcert.skipped. The server differs until `groupcert verify` finds
    otherwise.
    """
    from ..postgresql.skip import skip

    done = skip(_given(dsn), gtid, reason)
    if as_json:
        sys.stdout.write(json.dumps(done._asdict()) + "\n")
    else:
        rows = ", ".join(done.rows[:SHOWN_ROWS_MAX])
        sys.stdout.write(f"left out {done.gtid}, version {done.version}: {rows}\n")


@postgresql.command("detach", epilog=example(f"postgresql detach --dsn {SHOP}"))
def detach_tables(dsn: Dsn = None, as_json: Json = False) -> None:
    """Remove all that attach installed; the rows stay."""
    from ..postgresql.attachment import detach

    names = detach(_given(dsn))
    if as_json:
        sys.stdout.write(json.dumps({"detached": names}) + "\n")
    else:
        sys.stdout.write("".join(f"detached {name}\n" for name in names))


def _given(dsn: str | None, name: str = "--dsn") -> str:
    if not dsn:
        raise MissingOption(name=name.removeprefix("--"), ways=f"as {name}")
    import psycopg

    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # Its text may have a part of the password.
        problem = f"{name} cannot be read: expected postgresql://user@host/database, or as libpq"
        raise InvalidUsage(problem=f"{problem} takes it") from None
    return dsn


def _print_sequences(numbers: Mapping[str, int]) -> None:
    for name, number in numbers.items():
        sys.stdout.write(f"sequence {name} goes on with {number}\n")
