"""The verbs below `groupcert group`: changes that operators make while a group runs.

The rule it keeps: each answer says what has changed, and what to do next if something is left.
"""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.connect_flags import ConnectFlags, connecting
from groupcert.members.commands.options import Json

ADDRESS = "127.0.0.1:7101"


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

Address = Annotated[str, typer.Option(help="A member of the group, host:port.")]


@group.command()
@connecting
def settings(connect: ConnectFlags, address: Address = ADDRESS, as_json: Json = False) -> None:
    """Show the settings that all members agree on."""
    answer = _ask(connect, address, "GetSettings")
    settings = dict(sorted(answer.settings.items()))
    if as_json:
        document = {"settings_version": answer.settings_version, "settings": settings}
        typer.echo(json.dumps(document))
        return
    typer.echo(f"version {answer.settings_version}")
    for name, value in settings.items():
        typer.echo(f"{name} = {value}")


@group.command(name="set")
@connecting
def change(
    connect: ConnectFlags,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    address: Address = ADDRESS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
) -> None:
    """Change settings on all members, from one position in the group's log on."""
    settings = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidSetting(name=assignment, value="", expected="NAME=VALUE")
        settings[name] = value
    answer = _ask(connect, address, "ChangeSettings", settings=settings, dry_run=dry_run)
    if dry_run:
        typer.echo(f"valid; nothing was changed, settings have version {answer.settings_version}")
    else:
        typer.echo(f"settings have version {answer.settings_version} at all members")


@group.command()
@connecting
def mode(
    connect: ConnectFlags,
    to: Annotated[Mode, typer.Argument(help="Who may write.")],
    primary: Annotated[str, typer.Option(help="Who shall be it; else one is elected.")] = "",
    address: Address = ADDRESS,
) -> None:
    """Switch between single-primary and multi-primary mode."""
    single = to is Mode.SINGLE_PRIMARY
    answer = _ask(connect, address, "SwitchMode", single_primary=single, primary=primary)
    typer.echo(f"{to} mode, primary {answer.primary}" if single else f"{to} mode")


@group.command()
@connecting
def primary(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    address: Address = ADDRESS,
) -> None:
    """Make another member the primary, in single-primary mode."""
    _ask(connect, address, "SetPrimary", primary=member)
    typer.echo(f"primary {member}")


@group.command()
@connecting
def expel(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    address: Address = ADDRESS,
) -> None:
    """Remove a member from the view; if it runs, it rejoins."""
    answer = _ask(connect, address, "ExpelMember", member=member)
    typer.echo(f"view {answer.view_id} is without {member}; if it runs, it rejoins")


@group.command()
@connecting
def forget(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="One that left, or was expelled.")],
    address: Address = ADDRESS,
) -> None:
    """Remove a member from the list of the departed: it is not expected back."""
    _ask(connect, address, "ForgetMember", member=member)
    typer.echo(f"{member} is forgotten; if it comes back, it is a member as before")


@group.command()
@connecting
def leave(connect: ConnectFlags, address: Address = ADDRESS) -> None:
    """Make the member at the address leave its group and go on answering reads."""
    answer = _ask(connect, address, "Leave")
    if answer.view_id:
        typer.echo(
            f"it is in view {answer.view_id} until the log takes that it leaves, or the others "
            "expel it; it takes no more transactions, and answers reads"
        )
    else:
        typer.echo("it has left its group, and answers reads")
    typer.echo("`groupcert group rejoin` brings it back")


@group.command()
@connecting
def rejoin(
    connect: ConnectFlags,
    address: Address = ADDRESS,
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
) -> None:
    """Make the member at the address begin another run, whatever keeps it out of its group."""
    given = {"unfence": unfence, "discard_state": discard_state, "trust_log": trust_log}
    answer = _ask(connect, address, "Rejoin", **given)
    begins = "it joins without asking others" if trust_log else "it begins anew"
    typer.echo(f"{begins}; `groupcert status` shows how far it is")
    if answer.discarded_path:
        path = answer.discarded_path
        typer.echo(f"its state was set aside in {path}: remove that when it is ONLINE")


@group.command()
@connecting
def restart(
    connect: ConnectFlags,
    run: Annotated[
        str, typer.Option(help="The command that restarts a process; {name} is its name.")
    ],
    address: Annotated[str, typer.Option(help="Members, host:port, with commas.")] = ADDRESS,
    run_log_server: Annotated[
        str, typer.Option(help="The command for log servers, if it is another one.")
    ] = "",
    only: Annotated[Part, typer.Option(help="What to restart.")] = Part.ALL,
    limit_s: Annotated[
        float, typer.Option(min=1, help="How long a process may take until all is whole again.")
    ] = 180,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps only.")] = False,
) -> None:
    """Restart log servers and members one by one; each waits until the group is whole."""
    from groupcert.members.commands.rolling_restart import Commands, restart_group

    code = restart_group(
        address.split(","),
        Commands(run, run_log_server or run),
        connect.credentials(),
        limit_s=limit_s,
        log_servers=only is not Part.MEMBERS,
        members=only is not Part.LOG_SERVERS,
        dry_run=dry_run,
    )
    raise typer.Exit(code)


@group.command()
@connecting
def skip(
    connect: ConnectFlags,
    log_sequence: Annotated[int, typer.Argument(min=1, metavar="LOG_SEQUENCE")],
    address: Address = ADDRESS,
) -> None:
    """Make members skip a message of the log that none of them can read and all are fenced at."""
    _ask(connect, address, "SkipMessage", log_sequence=log_sequence)
    typer.echo(f"who cannot read message {log_sequence} of the log skips it from now on")
    typer.echo("`groupcert group rejoin --unfence` brings each member back that is fenced at it")


def _ask(connect: ConnectFlags, address: str, call: str, **fields: object) -> Any:
    from groupcert.members.commands.group_admin import ask

    return ask(address, connect.credentials(), call, **fields)
