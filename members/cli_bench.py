"""The verbs below `groupcert bench`: each prints one table, and its numbers as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from members.cli_options import Json, Output, Seconds
from members.connect_flags import ConnectFlags, connecting

bench = typer.Typer(help="Run the benchmarks.", no_args_is_help=True)


@bench.command("certify")
def bench_certify(as_json: Json = False, output: Output = None) -> None:
    """Certify on one thread, with small and large certification info."""
    from members.bench_certify import main

    raise typer.Exit(main(json=as_json, output=output))


@bench.command("group")
@connecting
def bench_group(
    connect: ConnectFlags,
    as_json: Json = False,
    seconds: Seconds = 10.0,
    certification_log: Annotated[
        bool, typer.Option("--certification-log", help="Members write what an audit reads.")
    ] = False,
    output: Output = None,
) -> None:
    """Run three members, a log server and clients on this machine.

    With TLS files members and clients use them; they must name 127.0.0.1.
    """
    from members.bench_group import main

    code = main(
        as_json=as_json,
        seconds=seconds,
        output=output,
        credentials=connect.credentials(),
        certification_log=certification_log,
    )
    raise typer.Exit(code)


@bench.command("recovery")
def bench_recovery(
    as_json: Json = False,
    size: Annotated[int, typer.Option(min=1, help="Bytes of rows that are copied.")] = 550_000_000,
    transactions: Annotated[int, typer.Option(min=1, help="Read from the log.")] = 400_000,
    output: Output = None,
) -> None:
    """Bring a member back by a donor's copy, and one by the log."""
    from members.bench_recovery import main

    code = main(as_json=as_json, size=size, transactions=transactions, output=output)
    raise typer.Exit(code)


@bench.command("applier")
def bench_applier(
    as_json: Json = False,
    scheme: Annotated[
        list[str] | None, typer.Option(help='Only this scheme, or as "jobs graph". Repeatable.')
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="rocksdb, postgresql, mariadb or slow. Repeatable. All by default."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "0,1,2,4,8,16",
    transactions: Annotated[int, typer.Option(min=1, help="Of one row each.")] = 50_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    postgresql: Annotated[str | None, typer.Option(help="Where a server runs, a DSN.")] = None,
    mariadb: Annotated[
        str | None, typer.Option(help="Where a server runs, mysql://user@host:port.")
    ] = None,
    start_servers: Annotated[
        bool, typer.Option("--start-servers", help="Start those that are not given, on loopback.")
    ] = False,
    mariadb_replica: Annotated[
        bool, typer.Option("--mariadb-replica", help="Also measure MariaDB's own replica.")
    ] = False,
    slow_commit_ms: Annotated[
        float, typer.Option(min=0.1, help="How long a commit of the slow target waits.")
    ] = 5.0,
    slow_transactions: Annotated[
        int, typer.Option(min=1, help="How many of them the slow target takes.")
    ] = 2_000,
    output: Output = None,
) -> None:
    """Execute one stream under every scheme, on each target.

    Exits with 1 if rows are not those of serial execution.
    """
    from members.bench_applier import TARGETS, BenchOptions, main, parse_counts

    options = BenchOptions(
        transactions=transactions,
        workers=parse_counts(workers),
        schemes=tuple(scheme or ()),
        targets=tuple(target or TARGETS),
        repeat=repeat,
        slow_commit_ms=slow_commit_ms,
        slow_transactions=slow_transactions,
        postgresql=postgresql,
        mariadb=mariadb,
        start_servers=start_servers,
        mariadb_replica=mariadb_replica,
    )
    raise typer.Exit(main(options, as_json=as_json, output=output))


@bench.command("audit")
def bench_audit(
    as_json: Json = False,
    transactions: Annotated[
        list[int] | None,
        typer.Option(help="Of a history. Repeatable. By default 1, 3 and 10 million."),
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(help="uniform, zipf or hot. Repeatable. By default uniform and zipf."),
    ] = None,
    memory: Annotated[str, typer.Option(help="Heap of Spark's Java.")] = "4g",
    folder: Annotated[
        Path | None, typer.Option(help="Where histories are kept, so that each is made once.")
    ] = None,
    output: Output = None,
) -> None:
    """Verify long histories with Spark, and their stamps with DuckDB.

    Exits with 1 if an answer was wrong.
    """
    from members.bench_audit import BenchOptions, main

    default = BenchOptions()
    chosen = BenchOptions(
        transactions=tuple(transactions or default.transactions),
        items=tuple(items or default.items),
        memory=memory,
        folder=folder,
    )
    raise typer.Exit(main(chosen, as_json=as_json, output=output))
