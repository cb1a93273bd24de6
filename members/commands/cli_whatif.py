"""The verb `groupcert whatif`: where its stream comes from, what it costs, what is compared."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from ..errors.usage import InvalidOption, MissingOption
from .connect_flags import ConnectFlags, connecting, parsed
from .extras import check_extras
from .verb_options import GROUP_UUID, BlockSize, GcWindow, Json, Window, trace_options

if TYPE_CHECKING:
    from ...applier.whatif.costs import Costs

Trace = Annotated[str | None, typer.Argument(help="JSON lines, .gz accepted; - is standard input.")]
Binlog = Annotated[
    list[Path] | None, typer.Option(help="A binary log in place of a trace. Repeatable.")
]
Keys = Annotated[
    str | None,
    typer.Option(help="A server that knows the keys of --binlog's tables: mysql://user@host/."),
]
Source = Annotated[
    str | None, typer.Option(help="A live server, mysql://user@host/, in place of a trace.")
]
Transactions = Annotated[int, typer.Option(min=1, help="Of --source, at most.")]
SourceSeconds = Annotated[float, typer.Option(min=0.1, help="Of --source, at most.")]
CertificationLog = Annotated[
    Path | None,
    typer.Option(help="A folder with a group's certification log, in place of a trace."),
]
Member = Annotated[
    str | None,
    typer.Option(help="A running member, host:port, whose binary log stands in place of a trace."),
]
Like = Annotated[
    str | None,
    typer.Option(
        help="Costs as measured: mariadb, mariadb-replica (its own), postgresql, wait, or those of "
        "an earlier report, a file."
    ),
]
Measure = Annotated[
    str | None,
    typer.Option(
        help="Measure the costs of a target: mysql://, mariadb:// or postgresql://user@host/. It "
        "takes a minute, in a database groupcert_whatif, which is made and dropped."
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(min=1, help="Processors of target and applier; with --like or --measure."),
]
ExecuteUs = Annotated[
    int | None,
    typer.Option(min=0, help="A transaction's mean, where the stream does not say; default: 100."),
]
RowUs = Annotated[
    int | None, typer.Option(min=0, help="And that of each of its rows; default: 20.")
]
SpreadPercent = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Their standard deviation, in percent; default: that of the stream's own, or 50.",
    ),
]
CommitUs = Annotated[
    int | None, typer.Option(min=0, help="A group commit's wait for the disk; default: 500.")
]
GroupSize = Annotated[
    int, typer.Option(min=1, help="Size of group commits, where the stream does not say.")
]
Whole = Annotated[
    bool, typer.Option("--whole", help="Schedule all of a long stream, not windows of it.")
]
Processes = Annotated[
    int | None, typer.Option(min=1, help="At the same time; one a processor by default.")
]
Html = Annotated[Path | None, typer.Option(help="Also write a page with the curves.")]


@connecting(help=None)
def whatif(
    connect: ConnectFlags,
    trace: Trace = None,
    binlog: Binlog = None,
    keys: Keys = None,
    source: Source = None,
    transactions: Transactions = 1_000_000,
    seconds: SourceSeconds = 60.0,
    certification_log: CertificationLog = None,
    member: Member = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "1,2,4,8,16",
    scheme: Annotated[list[str] | None, typer.Option(help="Only this scheme. Repeatable.")] = None,
    like: Like = None,
    measure: Measure = None,
    cores: Cores = None,
    execute_us: ExecuteUs = None,
    row_us: RowUs = None,
    spread_percent: SpreadPercent = None,
    commit_us: CommitUs = None,
    commit_group_transactions: GroupSize = 1,
    group_uuid: Annotated[UUID, typer.Option(help="Source of assigned GTIDs.")] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
    whole: Whole = False,
    processes: Processes = None,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Schedule a stream under every scheme, and compare them."""
    from ...applier.whatif.costs import replaced
    from ...applier.whatif.scheme_comparison import chosen_lines, parse_workers
    from . import whatif as verb

    given = {"TRACE": trace, "--binlog": binlog, "--source": source}
    _check_one({**given, "--certification-log": certification_log, "--member": member})
    costs, notes = _costs(like, measure)
    options = verb.WhatIfOptions(
        lines=chosen_lines(scheme or ()),
        workers=parse_workers(workers),
        costs=replaced(
            costs,
            cores=cores,
            execute_us=execute_us,
            row_us=row_us,
            commit_us=commit_us,
            spread_percent=spread_percent,
        ),
        notes=notes,
        commit_group_transactions=commit_group_transactions,
        processes=processes or os.cpu_count() or 1,
        whole=whole,
        as_json=as_json,
        html=html,
    )
    if keys and not binlog:
        raise InvalidOption(name="--keys", value=keys, expected="--binlog beside it")
    if binlog:
        verb.whatif_binary_log(binlog, options, keys)
    elif source:
        verb.whatif_server(source, transactions, seconds, options)
    elif certification_log:
        check_extras("certification-log")
        verb.whatif_history(certification_log, options)
    elif member:
        [address] = parsed([member], several=False, name="--member")
        verb.whatif_member(address, connect.credentials(), options)
    elif trace:
        certifier = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
        verb.whatif_trace(trace, certifier, options)


def _costs(like: str | None, measure: str | None) -> "tuple[Costs, Sequence[str]]":
    """Returns the costs of a target, and notes about them.

    Raises:
        ExtraMissing: modules for SQL servers are not installed.
        InvalidOption: two targets are named, or a file is no report.
        InvalidSetting: no target has the name, or a report has no costs.
        As `costs_at`.
    """
    from ...applier.whatif.costs import LIKE, costs_like, costs_of

    if like and measure:
        raise InvalidOption(name="--like", value=like, expected="none beside --measure")
    if measure:
        check_extras("member", "postgresql")
        from .target_costs import DATABASE, costs_at

        text = f"groupcert: measures a target in database {DATABASE}, which it makes and drops"
        typer.echo(text, err=True)
        return costs_at(measure)
    if like and like not in LIKE and Path(like).is_file():
        try:
            return costs_of(json.loads(Path(like).read_text("utf-8"))), ()
        except ValueError:
            expected = "a report of groupcert whatif --json"
            raise InvalidOption(name="--like", value=like, expected=expected) from None
    return costs_like(like), ()


_WAYS = ("--binlog FILE", "--source URL", "--certification-log DIR", "--member ADDRESS")


def _check_one(given: Mapping[str, object]) -> None:
    """Raises MissingOption or InvalidOption unless there is one stream."""
    named = [name for name, value in given.items() if value]
    if not named:
        ways = "behind the verb, or " + ", ".join(_WAYS)
        raise MissingOption(name="TRACE", ways=ways)
    if len(named) > 1:
        first, second, *_ = named
        raise InvalidOption(name=first, value=given[first], expected=f"none beside {second}")
