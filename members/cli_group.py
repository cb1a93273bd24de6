"""The verbs below `groupcert group`: what operators change while a group runs."""

from enum import StrEnum
from typing import Annotated

import typer

from members.cli_options import Json
from members.connect_flags import ConnectFlags, connecting

ADDRESS = "127.0.0.1:7101"


class Mode(StrEnum):
    """Who may write."""

    SINGLE_PRIMARY = "single-primary"
    MULTI_PRIMARY = "multi-primary"


class Part(StrEnum):
    """Which processes of a group."""

    ALL = "all"
    LOG_SERVERS = "log-servers"
    MEMBERS = "members"


group = typer.Typer(help="Change a group, or a member's part in it.", no_args_is_help=True)

Address = Annotated[str, typer.Option(help="A member of the group, host:port.")]


@group.command()
@connecting
def settings(connect: ConnectFlags, address: Address = ADDRESS, as_json: Json = False) -> None:
    """Show the settings that all members agree on."""
    from members.group_admin import Operator, show_settings

    show_settings(Operator(address, connect.credentials()), as_json=as_json)


@group.command(name="set")
@connecting
def change(
    connect: ConnectFlags,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    address: Address = ADDRESS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
) -> None:
    """Change settings from one place in the group's log on, at all members alike."""
    from members.group_admin import Operator, change_settings

    change_settings(Operator(address, connect.credentials()), assignments, dry_run=dry_run)


@group.command()
@connecting
def mode(
    connect: ConnectFlags,
    to: Annotated[Mode, typer.Argument(help="Who may write.")],
    primary: Annotated[str, typer.Option(help="Who shall be it; else one is elected.")] = "",
    address: Address = ADDRESS,
) -> None:
    """Switch between single-primary and multi-primary mode."""
    from members.group_admin import Operator, switch_mode

    switch_mode(
        Operator(address, connect.credentials()),
        single_primary=to is Mode.SINGLE_PRIMARY,
        primary=primary,
    )


@group.command()
@connecting
def primary(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    address: Address = ADDRESS,
) -> None:
    """Make another member the primary, in single-primary mode."""
    from members.group_admin import Operator, set_primary

    set_primary(Operator(address, connect.credentials()), member)


@group.command()
@connecting
def expel(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="A member of the view.")],
    address: Address = ADDRESS,
) -> None:
    """Put a member out of the view; if it runs, it rejoins."""
    from members.group_admin import Operator
    from members.group_admin import expel as expel_member

    expel_member(Operator(address, connect.credentials()), member)


@group.command()
@connecting
def forget(
    connect: ConnectFlags,
    member: Annotated[str, typer.Argument(help="One that left, or was expelled.")],
    address: Address = ADDRESS,
) -> None:
    """Name a member that has departed no more: it is not expected back."""
    from members.group_admin import Operator
    from members.group_admin import forget as forget_member

    forget_member(Operator(address, connect.credentials()), member)


@group.command()
@connecting
def leave(connect: ConnectFlags, address: Address = ADDRESS) -> None:
    """Have the member at the address leave its group and go on answering reads."""
    from members.group_admin import Operator
    from members.group_admin import leave as leave_group

    leave_group(Operator(address, connect.credentials()))


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
    """Have the member at the address begin anew, whatever keeps it out of its group."""
    from members.group_admin import Operator
    from members.group_admin import rejoin as rejoin_group

    rejoin_group(
        Operator(address, connect.credentials()),
        unfence=unfence,
        discard_state=discard_state,
        trust_log=trust_log,
    )


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
    from members.rolling_restart import Commands, restart_group

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
    """Have members skip a message of the log that none of them can read and all are fenced at."""
    from members.group_admin import Operator
    from members.group_admin import skip as skip_message

    skip_message(Operator(address, connect.credentials()), log_sequence)
