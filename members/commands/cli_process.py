"""The verbs of processes that run until SIGTERM, `groupcert member` and `groupcert replica`; and
`groupcert bootstrap`, which makes a group for them.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors.usage import InvalidOption
from .connect_flags import ConnectFlags, connecting
from .extras import check_extras
from .options import Json, LogServers, load_settings


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

    raise typer.Exit(run_member(settings))


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
    from ..process.serve import log_options
    from .bootstrap import bootstrap as make_group

    options = log_options(settings, settings.log_servers, settings.log_monitors)
    made = make_group(options, if_absent=if_absent)
    sys.stdout.write(f"{json.dumps(made._asdict()) if as_json else made}\n")


@connecting(help=None)
def replica(
    context: typer.Context,
    connect: ConnectFlags,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ADDRESS...", help="Members to follow, host:port; the next if one is gone."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
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
    from ..settings.replica import load_replica_config

    flags = {
        name: value for name, value in context.params.items() if name not in {"config", "verbose"}
    }
    flags["sources"] = sources or None
    settings = load_settings(lambda: load_replica_config(config, flags), verbose=verbose)
    from ..replica.replica_process import run_replica

    raise typer.Exit(run_replica(settings))
