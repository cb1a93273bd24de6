"""The verb below `groupcert log`: a group's log, made again from what its members hold."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors.usage import InvalidOption, MissingOption
from .extras import check_extras
from .verb_options import Json, LogServers, example, load_settings

log = typer.Typer(help="Repair a group's log.", no_args_is_help=True)


@log.callback()
def verbs() -> None:
    """Repair a group's log."""


@log.command(
    epilog=example("log rebuild m1 m2 m3 --group shop --log-server nats://127.0.0.1:4222 --yes")
)
def rebuild(
    data_folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DATA_FOLDER",
            help="Of all members, which are stopped; or backups of them.",
        ),
    ],
    config: Annotated[Path | None, typer.Option(help="A member's TOML file.")] = None,
    group: Annotated[str | None, typer.Option(help="The group's name.")] = None,
    log_server: LogServers = None,
    log_folder: Annotated[
        Path | None,
        typer.Option(
            help="In place of --log-server: the folder of a log server of a member or of"
            " `groupcert up`, which does not run."
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="A member whose folder is not given; what only it has is lost. Repeatable."
        ),
    ] = None,
    certification_log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Of a member, whose data folder may be lost: it shows what that one had read."
            " Repeatable."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Make the log.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, as without --yes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new log from what members hold, where the group's log was lost or cut.

    Shows where the log would go on, and what would be lost; with --yes makes it, in the place of
    what is left of the old one. Data folders are only read. Exits with 1 if members contradict
    each other; no log is made then.
    """
    check_extras("member", *(["certification-log"] if certification_log else []))
    from ..settings.member import load_config

    if yes and dry_run:
        raise InvalidOption(name="--dry-run", value=True, expected="no --yes beside it")
    if log_folder is not None and log_server:
        raise InvalidOption(name="--log-folder", value=str(log_folder), expected="no --log-server")
    flags: dict[str, object] = {"group": group, "member": "rebuild", "log_servers": log_server}
    if log_folder is not None:
        flags["log_server"] = "embedded"
    settings = load_settings(lambda: load_config(config, flags), verbose=False)
    if log_folder is None and not settings.log_servers:
        raise MissingOption(
            name="log-server", ways="as --log-server or in the file; or --log-folder"
        )
    from .log_rebuild import Given, rebuild_log

    given = Given(data_folders, without or [], certification_log or [], log_folder)
    code = rebuild_log(given, settings, makes=yes, as_json=as_json)
    raise typer.Exit(code)
