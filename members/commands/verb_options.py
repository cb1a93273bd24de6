"""Shared parts of the command's verbs: options, exit codes, settings, examples."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

if TYPE_CHECKING:
    from ...certifier.core import CertifierOptions

Settings = TypeVar("Settings")
FINE, FINDING, USAGE, UNAVAILABLE = range(4)
GROUP_UUID = UUID("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
"""Source of the GTIDs assigned in traces; MySQL's manual uses it, too."""


class GcWindow(StrEnum):
    """The effect of a garbage collection on the applier's window."""

    CLOSE = "close"
    TIGHT = "tight"


Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long the load runs.")]
LogServers = Annotated[
    list[str] | None,
    typer.Option(
        "--log-server", help="A log server, nats://host:port or etcd://host:port. Repeatable."
    ),
]
BlockSize = Annotated[
    int, typer.Option(min=1, help="GTID numbers that a member reserves at a time.")
]
Window = Annotated[GcWindow, typer.Option(help="What a collection does to the applier's window.")]


def trace_options(group_uuid: UUID, block_size: int, gc_window: GcWindow) -> "CertifierOptions":
    """Returns the options for a trace: GTIDs in snapshots are executed, collections complete."""
    from ...certifier.core import CertifierOptions
    from .replay import SNAPSHOT_LAG_MAX

    return CertifierOptions(
        group_source=str(group_uuid),
        gtid_assignment_block_size=block_size,
        gc_window=gc_window.value,
        collection_period_transactions=0,
        learn_snapshots=True,
        snapshot_lag_max=SNAPSHOT_LAG_MAX,
    )


def load_settings(load: Callable[[], Settings], *, verbose: bool) -> Settings:
    """Returns loaded settings, and configures logs. Raises InvalidConfig: They are wrong."""
    from ..host.logs import configure_logs

    settings = load()
    configure_logs(verbose=verbose)
    return settings


def example(line: str) -> str:
    """Returns the end of a verb's help; where an option is missing, the error has it, too.

    >>> example("status 127.0.0.1:7101")
    'Example: groupcert status 127.0.0.1:7101'
    """
    return f"Example: groupcert {line}"
