"""The verbs of certification logs: `groupcert audit` checks them, `groupcert export` makes them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from ..errors.usage import InvalidOption, MissingOption
from .extras import check_extras
from .verb_options import (
    GROUP_UUID,
    BlockSize,
    GcWindow,
    Json,
    LogServers,
    Window,
    load_settings,
    trace_options,
)

if TYPE_CHECKING:
    from .export import ExportOptions


def audit(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Folders with certification logs; any path that Spark reads."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Where the answers go; an earlier audit's are replaced.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="REPORT",
            help="The answers of an audit before: only files that are new since are read.",
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="MINUTES",
            help="Audit what is new so often, until Ctrl-C; serve the last page, and metrics.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Where --watch serves them, host:port.")
    ] = "127.0.0.1:7190",
    master: Annotated[
        str | None, typer.Option(help="A Spark cluster, spark://host:port; this machine if absent.")
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of the Java process on this machine.")] = "4g",
    job: Annotated[list[str] | None, typer.Option(help="Only this job. Repeatable.")] = None,
    spark_setting: Annotated[
        list[str] | None, typer.Option(help="A setting of Spark, name=value. Repeatable.")
    ] = None,
    make_archive: Annotated[
        Path | None, typer.Option(help="Write one file for spark-submit, and end.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove every decision of certification logs again, and report on them.

    Exits with 1 if there are findings.
    """
    check_extras("audit")
    from .audit import AuditOptions, main, write_audit_archive

    if make_archive is not None:
        raise typer.Exit(write_audit_archive(make_archive))
    options = AuditOptions(
        paths=tuple(paths or ()),
        out=out or "",
        master=master,
        memory=memory,
        jobs=tuple(job or ()),
        spark_settings=tuple(spark_setting or ()),
        since=since,
    )
    if watch is not None:
        from .audit_watch import watch_logs

        raise typer.Exit(watch_logs(options, minutes=watch, listen=listen))
    raise typer.Exit(main(options, as_json=as_json))


def export(
    out: Annotated[Path, typer.Option(help="The folder of the files.", metavar="DIR")],
    trace: Annotated[
        str | None, typer.Option(help="A trace; .gz accepted, - is standard input.")
    ] = None,
    binlog: Annotated[
        list[Path] | None,
        typer.Option(help="A binary log of MySQL or MariaDB. Repeatable, in the log's order."),
    ] = None,
    log_server: LogServers = None,
    group: Annotated[str | None, typer.Option(help="The group of that log.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A member's TOML file, which has the group, its log servers and TLS."),
    ] = None,
    observer: Annotated[
        str | None,
        typer.Option(help="Whose history it is; of a member, its transactions are local."),
    ] = None,
    first: Annotated[
        int, typer.Option(min=1, help="Message of the group's log to begin with.")
    ] = 1,
    last: Annotated[
        int | None, typer.Option(min=1, help="And to end with; by default the last one now.")
    ] = None,
    group_uuid: Annotated[
        UUID, typer.Option(help="Source of GTIDs that a trace has assigned.")
    ] = GROUP_UUID,
    gtid_assignment_block_size: BlockSize = 1,
    gc_window: Window = GcWindow.CLOSE,
    keys: Annotated[bool, typer.Option("--keys", help="Readable keys of rows go along.")] = False,
    file_rows: Annotated[int, typer.Option(min=1, help="Rows of one file.")] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Make a certification log, as members write it: of a trace, a binary log, or a group's log.

    Its files appear whole or not at all, and replace nothing.
    """
    from .export import ExportOptions, export_binary_log, export_trace

    of_log = {"log-server": log_server, "config": config, "group": group}
    given = {"trace": trace is not None, "binlog": binlog, **of_log}
    has_log = any(of_log.values())
    count = (trace is not None) + bool(binlog) + has_log
    expected = "as one of --trace TRACE, --binlog FILE, --log-server ADDRESS with --group NAME"
    if not count:
        raise MissingOption(name="source", ways=expected)
    if count > 1:
        names = [f"--{name}" for name, is_given in given.items() if is_given]
        raise InvalidOption(name="source", value=" ".join(names), expected=expected)
    of_trace = (group_uuid, gtid_assignment_block_size, gc_window.value)
    if trace is None and of_trace != (GROUP_UUID, 1, GcWindow.CLOSE.value):
        raise InvalidOption(
            name="--group-uuid, --gtid-assignment-block-size, --gc-window",
            value=", ".join(map(str, of_trace)),
            expected="not given: they decide of a trace",
        )
    options = ExportOptions(out=out, file_rows=file_rows, keys=keys, as_json=as_json)
    if has_log:
        _export_group_log(options, log_server, group, config, observer, first, last)
    elif (first, last) != (1, None):
        expected = "not given: they are messages of a group's log"
        raise InvalidOption(name="--first, --last", value=f"{first}, {last}", expected=expected)
    elif trace is not None:
        certifier = trace_options(group_uuid, gtid_assignment_block_size, gc_window)
        export_trace(trace, certifier, observer, options)
    else:
        export_binary_log(binlog or (), observer, options)


def _export_group_log(
    options: "ExportOptions",
    log_server: list[str] | None,
    group: str | None,
    config: Path | None,
    observer: str | None,
    first: int,
    last: int | None,
) -> None:
    """Exports a group's log, connected as a member with these settings would be."""
    from ..settings.member import load_config

    flags = {"group": group, "member": "export", "log_servers": log_server}
    settings = load_settings(lambda: load_config(config, flags), verbose=False)
    if not settings.log_servers:
        expected = "log servers; that of a member with an embedded one is in its log"
        raise InvalidOption(name="log_server", value=settings.log_server, expected=expected)
    from ..process.serve import log_options
    from .export_total_order import export_total_order

    log = replace(log_options(settings, settings.log_servers, settings.log_monitors), replicas=0)
    export_total_order(log, observer, options, first_sequence=first, last_sequence=last)
