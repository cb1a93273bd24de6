"""The verbs of traces: `groupcert replay` certifies one, `groupcert whatif` schedules it."""

import os
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from ..errors.usage import InvalidOption, MissingOption
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


def whatif(
    trace: Annotated[
        str | None, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")
    ] = None,
    binlog: Annotated[
        list[Path] | None, typer.Option(help="A binary log in place of a trace. Repeatable.")
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,2,4,8,16",
    scheme: Annotated[list[str] | None, typer.Option(help="Only this scheme. Repeatable.")] = None,
    execute_us: Annotated[
        int, typer.Option(min=0, help="A transaction's mean, where the stream does not say.")
    ] = 100,
    row_us: Annotated[int, typer.Option(min=0, help="And that of each of its rows.")] = 20,
    spread_percent: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Their standard deviation, in percent; default: that of the stream's own, or 50.",
        ),
    ] = None,
    commit_us: Annotated[int, typer.Option(min=0, help="A group commit's time.")] = 500,
    commit_group_transactions: Annotated[
        int, typer.Option(min=1, help="Size of group commits, where the stream does not say.")
    ] = 1,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
    whole: Annotated[
        bool, typer.Option("--whole", help="Schedule all of a long stream, not windows of it.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="At the same time; one a processor by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the curves.")] = None,
    as_json: Json = False,
) -> None:
    """Schedule a stream under every scheme, and compare them."""
    from ...applier.whatif.scheme_comparison import chosen_lines, parse_workers
    from ...applier.whatif.workload import Costs
    from .whatif import WhatIfOptions, whatif_binary_log, whatif_trace

    options = WhatIfOptions(
        lines=chosen_lines(scheme or ()),
        workers=parse_workers(workers),
        costs=Costs(
            execute_us=execute_us,
            row_us=row_us,
            commit_us=commit_us,
            spread_percent=spread_percent,
        ),
        commit_group_transactions=commit_group_transactions,
        processes=processes or os.cpu_count() or 1,
        whole=whole,
    )
    if trace is None and not binlog:
        raise MissingOption(name="TRACE", ways="behind the verb, or --binlog FILE")
    if trace is not None and binlog:
        raise InvalidOption(name="TRACE", value=trace, expected="none beside --binlog")
    if trace is None:
        whatif_binary_log(binlog or (), options, as_json=as_json, html=html)
    else:
        certifier = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
        whatif_trace(trace, certifier, options, as_json=as_json, html=html)
