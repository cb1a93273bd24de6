"""The verbs of processes: `groupcert member` and `groupcert replica` run until SIGTERM, `groupcert
bootstrap` makes a group for them, and `groupcert health` asks whether one serves.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..errors.membership import AlreadyBootstrapped
from ..errors.usage import InvalidOption
from .connect_flags import ONE, ConnectFlags, connecting
from .extras import check_extras
from .verb_options import FINE, UNAVAILABLE, Json, LogServers, load_settings

if TYPE_CHECKING:
    from ..security.credentials import Credentials
    from ..total_order.log_options import LogOptions

HEALTH_SECONDS = 2.0


def member(
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    name: Annotated[str | None, typer.Option("--member", help="This member's name.")] = None,
    address: Annotated[str | None, typer.Option(help="Where it serves, host:port.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Where it keeps its data.")] = None,
    log_server: Annotated[
        list[str] | None,
        typer.Option(
            help="A log server, nats://host:port or etcd://host:port; or: embedded. Repeatable."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Run one member until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from ..settings.member import load_config

    flags = {
        "group": group,
        "member": name,
        "address": address,
        "data_folder": data_folder,
        "log_server": "embedded" if log_server == ["embedded"] else None,
        "log_servers": log_server if log_server and log_server != ["embedded"] else None,
    }
    settings = load_settings(lambda: load_config(config, flags), verbose=verbose)
    if settings.writes_certification_log:
        check_extras("certification-log")
    from ..process.serve import run_member

    if settings.postgresql is None:
        raise typer.Exit(run_member(settings))
    check_extras("postgresql")
    from ..postgresql.server import RowsServer

    raise typer.Exit(run_member(settings, partial(RowsServer.open, settings.postgresql)))


def bootstrap(
    config: Annotated[Path | None, typer.Option(help="A member's TOML file.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    log_server: LogServers = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="No mistake if the group is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a group, once: its log. Its first member brings the group's settings.

    Exits with 2 if the group was made before; nothing is changed then.
    """
    from ..settings.member import load_config

    flags = {"group": group, "member": "bootstrap", "log_servers": log_server}
    settings = load_settings(lambda: load_config(config, flags), verbose=False)
    if not settings.log_servers:
        expected = "log servers; an embedded one makes its group itself"
        raise InvalidOption(name="log_server", value=settings.log_server, expected=expected)
    import asyncio

    from ..process.serve import log_options

    options = log_options(settings, settings.log_servers, settings.log_monitors)
    made = asyncio.run(_make_log(options))
    if not made.is_new and not if_absent:
        raise AlreadyBootstrapped(group=made.group, created=made.created)
    sys.stdout.write(f"{json.dumps(made._asdict()) if as_json else made}\n")


class _Made(NamedTuple):
    """A group's log. `created`: when, as its servers say; `is_new`: by this call."""

    group: str
    created: str
    is_new: bool

    def __str__(self) -> str:
        how = "bootstrapped" if self.is_new else "was bootstrapped before"
        return f"group {self.group} {how}, at {self.created}: start its members"


async def _make_log(options: "LogOptions") -> _Made:
    from ..total_order.log_options import make_order

    asking, making = make_order(options), make_order(options)
    try:
        is_new = not await asking.exists()
        state = await making.open(create=is_new)
    finally:
        await asking.close()
        await making.close()
    return _Made(options.group, state.identity.created, is_new)


@connecting(help=None)
def replica(
    context: typer.Context,
    connect: ConnectFlags,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ADDRESS...",
            help="Members, host:port, or servers, mysql://...; the next if one is gone.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    replica: Annotated[str | None, typer.Option(help="This replica's name.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="rocksdb:FOLDER, postgresql://... or mysql://user@host/database."),
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="TOML: rows to SQL tables.")] = None,
    copy_first: Annotated[
        bool | None, typer.Option("--copy", help="Make and fill the tables of a server first.")
    ] = None,
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
    skip_gtids: Annotated[
        str | None, typer.Option(help="A GTID set that counts as executed, and is not.")
    ] = None,
    on_error: Annotated[str | None, typer.Option(help="stop, or stay and try again.")] = None,
    retry_s: Annotated[int | None, typer.Option(help="Seconds between two tries.")] = None,
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
        str | None, typer.Option(help="Where it answers to status and readers, host:port.")
    ] = None,
    metrics_address: Annotated[str | None, typer.Option(help="For metrics, host:port.")] = None,
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
) -> None:
    """Follow a member or a server and execute its binary log on a target, until SIGTERM.

    Every setting has a name in the file, and GROUPCERT_<NAME> in the environment; flags win.
    """
    from ..settings.replica import load_replica_config

    flags = {
        name: value for name, value in context.params.items() if name not in {"config", "verbose"}
    }
    flags["sources"] = sources or None
    settings = load_settings(lambda: load_replica_config(config, flags), verbose=verbose)
    from ..replica.replica_process import run_replica

    raise typer.Exit(run_replica(settings))


@connecting(
    help=f"{ONE[:-1]}; or a log server's monitoring, http://host:port.",
    in_environment=False,  # It asks for the member on this machine, by no name.
    schemes=("http://", "https://"),
)
def health(connect: ConnectFlags, as_json: Json = False) -> None:
    """Ask whether a member or a log server serves, as containers do.

    Exits with 3 if it does not.
    """
    raise typer.Exit(show_health(connect.address, connect.credentials(), as_json=as_json))


def show_health(address: str, credentials: "Credentials", *, as_json: bool = False) -> int:
    """Prints the health of `address`; returns 0 if it serves, else 3.

    Args:
        address: A member, `host:port`, or a log server: NATS's monitoring, `http://host:port`, or
            the page at which etcd says that it is healthy, `http://host:port/health`.
        credentials: Credentials to show, with the authority to trust.
    """
    if address.startswith(("http://", "https://")):
        is_serving, text = _health_of_log_server(address, credentials)
    else:
        is_serving, text = _health_of_member(address, credentials)
    document = {"address": address, "serving": is_serving, "state": text}
    sys.stdout.write(f"{json.dumps(document) if as_json else f'{address} {text}'}\n")
    return FINE if is_serving else UNAVAILABLE


def _health_of_member(address: str, credentials: "Credentials") -> tuple[bool, str]:
    # Here, as all that is not needed for a log server: containers ask often.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from ..wire.channels import open_channel

    with open_channel(address, credentials) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=HEALTH_SECONDS
            )
        except grpc.RpcError as error:
            return False, f"UNREACHABLE: {error.details()}"
    states = health_pb2.HealthCheckResponse.ServingStatus
    return answer.status == states.SERVING, states.Name(answer.status)


def _health_of_log_server(address: str, credentials: "Credentials") -> tuple[bool, str]:
    import urllib.request

    context = credentials.tls.client_context() if credentials.tls else None
    page = address if address.endswith("/health") else f"{address}/healthz"
    try:
        with urllib.request.urlopen(page, timeout=HEALTH_SECONDS, context=context):
            return True, "SERVING"
    except OSError as error:
        return False, f"UNREACHABLE: {error}"
