"""The verbs below `groupcert group`: changes that operators make while a group runs.

The rule it keeps: each answer says what has changed, and what to do next if something is left.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from ...certifier.errors import InvalidSetting
from .connect_flags import ONE, SEVERAL, ConnectFlags, connecting, parsed
from .verb_options import Json, example


class Mode(StrEnum):
    """The members that may write."""

    SINGLE_PRIMARY = "single-primary"
    MULTI_PRIMARY = "multi-primary"


class Part(StrEnum):
    """Kinds of a group's processes."""

    ALL = "all"
    LOG_SERVERS = "log-servers"
    MEMBERS = "members"


group = typer.Typer(help="Change a group, or a member's part in it.", no_args_is_help=True)


@group.command(epilog=example("group settings 127.0.0.1:7101"))
@connecting()
def settings(connect: ConnectFlags, as_json: Json = False) -> None:
    """Show the settings that all members agree on."""
    answer = _ask(connect, "GetSettings")
    settings = dict(sorted(answer.settings.items()))
    document = {"settings_version": answer.settings_version, "settings": settings}
    lines = (f"{name} = {value}" for name, value in settings.items())
    _tell(document, as_json, f"version {answer.settings_version}", *lines)


@group.command(name="set", epilog=example("group set flow_control_lag_max=10000 127.0.0.1:7101"))
@connecting(help=None, is_last_word=True, changes=True)
def change(
    connect: ConnectFlags,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE... [ADDRESS]", help=f"Settings. Behind them: {ONE.lower()}"
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Change settings on all members, from one position in the group's log on."""
    *assignments, last = words
    if "=" not in last and assignments:
        connect = connect._replace(given=parsed([last], several=False))
    else:
        assignments = words
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidSetting(name=assignment, value="", expected="NAME=VALUE")
        settings[name] = value
    answer = _change(connect, "ChangeSettings", settings=settings, dry_run=dry_run)
    text = f"settings have version {answer.settings_version}"
    text = f"valid; nothing was changed, {text}" if dry_run else f"{text} at all members"
    document = {"settings_version": answer.settings_version, "changed": not dry_run}
    _tell(document, as_json, text)


@group.command(epilog=example("group mode single-primary --primary m1 127.0.0.1:7101"))
@connecting(changes=True)
def mode(
    connect: ConnectFlags,
    to: Annotated[Mode, typer.Argument(help="Who may write.")],
    primary: Annotated[str, typer.Option(help="Who shall be it; else one is elected.")] = "",
    as_json: Json = False,
) -> None:
    """Switch between single-primary and multi-primary mode."""
    single = to is Mode.SINGLE_PRIMARY
    answer = _change(connect, "SwitchMode", single_primary=single, primary=primary)
    text = f"{to} mode, primary {answer.primary}" if single else f"{to} mode"
    _tell({"mode": to.value, "primary": answer.primary if single else ""}, as_json, text)


@group.command(epilog=example("group primary m2 127.0.0.1:7101"))
@connecting(changes=True)
def primary(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    as_json: Json = False,
) -> None:
    """Make another member the primary, in single-primary mode."""
    _change(connect, "SetPrimary", primary=member)
    _tell({"primary": member}, as_json, f"primary {member}")


@group.command(epilog=example("group expel m3 127.0.0.1:7101"))
@connecting(changes=True)
def expel(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    as_json: Json = False,
) -> None:
    """Remove a member from the view; if it runs, it rejoins."""
    answer = _change(connect, "ExpelMember", member=member)
    text = f"view {answer.view_id} is without {member}; if it runs, it rejoins"
    _tell({"expelled": member, "view_id": answer.view_id}, as_json, text)


@group.command(epilog=example("group forget m3 127.0.0.1:7101"))
@connecting(changes=True)
def forget(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="One that left, or was expelled.")],
    as_json: Json = False,
) -> None:
    """Remove a member from the list of the departed: it is not expected back."""
    _change(connect, "ForgetMember", member=member)
    text = f"{member} is forgotten; if it comes back, it is a member as before"
    _tell({"forgotten": member}, as_json, text)


@group.command(epilog=example("group leave 127.0.0.1:7103"))
@connecting(changes=True)
def leave(connect: ConnectFlags, as_json: Json = False) -> None:
    """Make the member at the address leave its group and go on answering reads."""
    view_id = _change(connect, "Leave").view_id
    text = "it has left its group, and answers reads"
    if view_id:
        text = (
            f"view {view_id}, the last that it knows, has it until the log takes that it leaves, "
            "or the others expel it; it takes no more transactions, and answers reads"
        )
    document = {"left": not view_id, "view_id": view_id or None}
    _tell(document, as_json, text, "`groupcert group rejoin` brings it back")


@group.command(epilog=example("group rejoin 127.0.0.1:7103"))
@connecting(changes=True)
def rejoin(
    connect: ConnectFlags,
    unfence: Annotated[
        bool, typer.Option("--unfence", help="What fenced the member is mended.")
    ] = False,
    discard_state: Annotated[
        bool,
        typer.Option("--discard-state", help="Set its state aside; begin from the log or a donor."),
    ] = False,
    trust_log: Annotated[
        bool,
        typer.Option("--trust-log", help="The log is whole: wait for nobody who could know more."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make the member at the address begin another run, whatever keeps it out of its group."""
    given = {"unfence": unfence, "discard_state": discard_state, "trust_log": trust_log}
    path = _change(connect, "Rejoin", **given).discarded_path
    begins = "it joins without asking others" if trust_log else "it begins anew"
    lines = [f"{begins}; `groupcert status` shows how far it is"]
    if path:
        lines.append(f"its state was set aside in {path}: remove that when it is ONLINE")
    _tell({"rejoins": True, "discarded_path": path or None}, as_json, *lines)


@group.command(
    epilog=example("group restart 127.0.0.1:7101 --run 'systemctl restart groupcert@{name}'")
)
@connecting(help=SEVERAL, several=True, changes=True)
def restart(
    connect: ConnectFlags,
    run: Annotated[
        str, typer.Option(help="The command that restarts a process; {name} is its name.")
    ],
    run_log_server: Annotated[
        str, typer.Option(help="The command for log servers, if it is another one.")
    ] = "",
    only: Annotated[Part, typer.Option(help="What to restart.")] = Part.ALL,
    limit_s: Annotated[
        float, typer.Option(min=1, help="How long a process may take until all is whole again.")
    ] = 180,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps only.")] = False,
    as_json: Json = False,
) -> None:
    """Restart log servers and members one by one; each waits until the group is whole."""
    from .rolling_restart import Commands, restart_group

    connect.tell_group()
    code = restart_group(
        connect.addresses,
        Commands(run, run_log_server or run),
        connect.credentials(),
        limit_s=limit_s,
        log_servers=only is not Part.MEMBERS,
        members=only is not Part.LOG_SERVERS,
        dry_run=dry_run,
        as_json=as_json,
    )
    raise typer.Exit(code)


@group.command(epilog=example("group skip 4711 127.0.0.1:7101"))
@connecting(changes=True)
def skip(
    connect: ConnectFlags,
    log_sequence: Annotated[int, typer.Argument(min=1, metavar="LOG_SEQUENCE")],
    as_json: Json = False,
) -> None:
    """Make members skip a message of the log that none of them can read and all are fenced at."""
    _change(connect, "SkipMessage", log_sequence=log_sequence)
    _tell(
        {"skipped_log_sequence": log_sequence},
        as_json,
        f"who cannot read message {log_sequence} of the log skips it from now on",
        "`groupcert group rejoin --unfence` brings each member back that is fenced at it",
    )


def _ask(connect: ConnectFlags, call: str, **fields: object) -> Any:
    from .group_admin import ask

    return ask(connect.address, connect.credentials(), call, **fields)


def _change(connect: ConnectFlags, call: str, **fields: object) -> Any:
    connect.tell_group()
    return _ask(connect, call, **fields)


def _tell(document: Mapping[str, object], as_json: bool, *lines: str) -> None:
    """Prints an answer: lines for people, or one document."""
    typer.echo(json.dumps(document) if as_json else "\n".join(lines))
