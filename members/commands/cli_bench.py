"""The verbs below `groupcert bench`: each prints one table, and its numbers as JSON."""

from pathlib import Path
from typing import Annotated

import typer

from groupcert.members.commands.connect_flags import ConnectFlags, connecting
from groupcert.members.commands.extras import check_extras
from groupcert.members.commands.options import Json, Output, Seconds, example

bench = typer.Typer(help="Run the benchmarks.", no_args_is_help=True)


@bench.command("certify", epilog=example("bench certify --json"))
def bench_certify(as_json: Json = False, output: Output = None) -> None:
    """Certify on one thread, with small and large certification info."""
    from groupcert.members.benchmarks.certify import main

    raise SystemExit(main(as_json=as_json, output=output))


@bench.command("group", epilog=example("bench group --seconds 5"))
@connecting(help=None)
def bench_group(
    connect: ConnectFlags,
    as_json: Json = False,
    seconds: Seconds = 10.0,
    certification_log: Annotated[
        bool, typer.Option("--certification-log", help="Members write what an audit reads.")
    ] = False,
    galera: Annotated[
        bool, typer.Option("--galera", help="In turns with a Galera Cluster, started here.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 1,
    output: Output = None,
) -> None:
    """Run three members, a log server and clients on this machine.

    With TLS files members and clients use them; they must name 127.0.0.1.
    """
    from groupcert.members.benchmarks.group import GroupBench, main

    bench = GroupBench(
        seconds=seconds,
        credentials=connect.credentials(),
        certification_log=certification_log,
        galera=galera,
        rounds=rounds,
    )
    raise SystemExit(main(bench, as_json=as_json, output=output))


@bench.command("order", epilog=example("bench order --kills 3"))
def bench_order(
    as_json: Json = False,
    seconds: Seconds = 5.0,
    kills: Annotated[int, typer.Option(min=0, help="Of the leader of each.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Where the servers write; by default temporary files.")
    ] = None,
    output: Output = None,
) -> None:
    """Compare JetStream and etcd as the total order, with three servers each.

    Needs an etcd (Debian's etcd-server).
    """
    from groupcert.members.benchmarks.order import OrderBench, main

    bench = OrderBench(seconds=seconds, kills=kills, rounds=rounds, folder=folder)
    raise SystemExit(main(bench, as_json=as_json, output=output))


@bench.command("postgresql", epilog=example("bench postgresql --rounds 1"))
def bench_postgresql(
    as_json: Json = False,
    seconds: Annotated[int, typer.Option(min=1, help="How long each load runs.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 3,
    galera: Annotated[bool, typer.Option(help="Also a Galera Cluster, started here.")] = True,
    output: Output = None,
) -> None:
    """Commit at a PostgreSQL server of a group, at the same server alone, and at Galera.

    Needs PostgreSQL with pgbench and PL/Python, and for --galera MariaDB with Galera.
    """
    from groupcert.members.benchmarks.postgresql import PostgreSqlBench, main

    bench = PostgreSqlBench(seconds=seconds, rounds=rounds, galera=galera)
    raise SystemExit(main(bench, as_json=as_json, output=output))


@bench.command("recovery", epilog=example("bench recovery"))
def bench_recovery(
    as_json: Json = False,
    size: Annotated[int, typer.Option(min=1, help="Bytes of rows that are copied.")] = 550_000_000,
    transactions: Annotated[int, typer.Option(min=1, help="Read from the log.")] = 400_000,
    output: Output = None,
) -> None:
    """Bring a member back by a donor's copy, and one by the log."""
    from groupcert.members.benchmarks.recovery import main

    code = main(as_json=as_json, size=size, transactions=transactions, output=output)
    raise SystemExit(code)


@bench.command("applier", epilog=example("bench applier --scheme logical-clock --workers 1,4"))
def bench_applier(
    as_json: Json = False,
    scheme: Annotated[
        list[str] | None, typer.Option(help='Only this scheme, or as "jobs graph". Repeatable.')
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="rocksdb, slow, postgresql or mariadb. Repeatable. All by default."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers.")] = "0,1,2,4,8,16",
    transactions: Annotated[int, typer.Option(min=1, help="Of one row each.")] = 50_000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 3,
    start_servers: Annotated[
        bool, typer.Option("--start-servers", help="Also those that need one, on loopback.")
    ] = False,
    mariadb_replica: Annotated[
        bool, typer.Option("--mariadb-replica", help="Also measure MariaDB's own replica.")
    ] = False,
    output: Output = None,
) -> None:
    """Execute one stream under every scheme, on each target.

    Exits with 1 if rows are not those of serial execution.
    """
    from groupcert.members.benchmarks.applier import BenchOptions, main, parse_counts

    options = BenchOptions(
        transactions=transactions,
        workers=parse_counts(workers),
        schemes=tuple(scheme or ()),
        targets=tuple(target or ()),
        repeat=repeat,
        start_servers=start_servers,
        mariadb_replica=mariadb_replica,
    )
    raise SystemExit(main(options, as_json=as_json, output=output))


@bench.command("audit", epilog=example("bench audit --transactions 1000000"))
def bench_audit(
    as_json: Json = False,
    transactions: Annotated[
        list[int] | None,
        typer.Option(help="Of a history. Repeatable. By default 1, 3 and 10 million."),
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(help="uniform, zipf or hot. Repeatable. By default all."),
    ] = None,
    file_rows: Annotated[
        int, typer.Option(min=1_000, help="Of each file of a history.")
    ] = 1_000_000,
    memory: Annotated[str, typer.Option(help="Heap of Spark's Java.")] = "4g",
    folder: Annotated[
        Path | None, typer.Option(help="Where histories are kept, so that each is made once.")
    ] = None,
    output: Output = None,
) -> None:
    """Verify long histories with Spark, and their stamps with DuckDB.

    Exits with 1 if an answer was wrong.
    """
    check_extras("audit", "bench")
    from groupcert.members.benchmarks.audit import BenchOptions, main

    default = BenchOptions()
    chosen = BenchOptions(
        transactions=tuple(transactions or default.transactions),
        items=tuple(items or default.items),
        file_rows=file_rows,
        memory=memory,
        folder=folder,
    )
    raise SystemExit(main(chosen, as_json=as_json, output=output))
