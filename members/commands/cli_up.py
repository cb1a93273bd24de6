"""The verbs of a lasting group on this machine: `groupcert up` and `groupcert down`."""

from pathlib import Path
from typing import Annotated

import typer

from ..demo.running_group import DEFAULT_FOLDER
from .extras import check_extras
from .options import Json

DataFolder = Annotated[Path, typer.Option(help="Where the group keeps everything.")]


def up(
    members: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Members: 3, or as many as there were."),
    ] = None,
    data_folder: DataFolder = DEFAULT_FOLDER,
    group: Annotated[str | None, typer.Option(help="The group's name: local.")] = None,
    log_server: Annotated[
        list[str] | None,
        typer.Option(
            help="A log server, nats://host:port or etcd://host:port, in place of one of its own."
            " Repeatable."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background: end when it is ready.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a lasting group on this machine: a log server, and members with their consoles.

    Members are at 7101 and up, their consoles at 7180 and up; where others listen, at the next free
    ports. Ctrl-C stops it in order. Started again, it is the same group with its data.
    """
    check_extras("member")
    from .up import up as run
    from .up import up_detached

    if not detach:
        servers = tuple(log_server or ())
        raise typer.Exit(
            run(data_folder, group=group, members=members, log_servers=servers, as_json=as_json)
        )
    flags = ["--data-folder", str(data_folder)]
    flags += ["--members", str(members)] if members else []
    flags += ["--group", group] if group else []
    for server in log_server or ():
        flags += ["--log-server", server]
    raise typer.Exit(up_detached(data_folder, flags, as_json=as_json))


def down(data_folder: DataFolder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Stop the group that `groupcert up` runs in a folder; its data stays.

    Exits with 1 if nothing was up there.
    """
    from .up import down as stop

    raise typer.Exit(stop(data_folder, as_json=as_json))
