"""The verb of traces: `groupcert replay` certifies one."""

from typing import Annotated
from uuid import UUID

import typer

from .verb_options import GROUP_UUID, BlockSize, GcWindow, Json, Window, trace_options


def replay(
    trace: Annotated[str, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")],
    as_json: Json = False,
    observer: Annotated[
        str | None,
        typer.Option(help="The member whose stamps to give; its transactions are local."),
    ] = None,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
) -> None:
    """Certify a trace offline; with --json, print what becomes of each line."""
    from .replay import replay as replay_trace

    options = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
    replay_trace(trace, options, observer, as_json=as_json)
