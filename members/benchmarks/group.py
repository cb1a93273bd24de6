"""`groupcert bench group`: three members, the log server and the clients on this machine.

Two loads: streams with batches (throughput), and commits of one row each from tasks of the
asynchronous client (latency). A rate counts what every member has certified and applied; the clock
stops when the slowest member has committed the last transaction.

With `--galera` a Galera Cluster of three nodes takes the commits of as many clients in turns with
the group, as durable, on the same machine.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import psutil
import typer
import uvloop

from groupcert.members.benchmarks.clients import (
    BATCH_TRANSACTIONS,
    ROWS,
    VALUE_BYTES,
    Load,
    change,
    commit_rows,
    stream_batches,
)
from groupcert.members.benchmarks.galera import galera_cluster, run_clients
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.database_servers import MariaDbServer
from groupcert.members.host.interruption import Course
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.channels import open_aio_channel
from groupcert.v1.transaction_pb2 import Changes

CLIENTS = (8, 32)
STREAM = "stream"
STREAMS = 3
RATE = "commits_per_second"
SETTLE_SECONDS = 60.0
Comparison = dict[str, dict[str, dict[str, float]]]
"""By system, or `ratios`, then by number of clients: the numbers by name."""
Clients = Callable[[LocalGroup, int, float, Load], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """One load, measured.

    `cpu_cores`: processor time by part of the system, per second of load; `cpu_us`: of all of them,
    for each commit.
    """

    load: str
    clients: int
    seconds: float
    commits_per_second: float
    rejected: int
    p50_ms: float
    p99_ms: float
    cpu_cores: Mapping[str, float]
    cpu_us: float
    microseconds_per_stage: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBench:
    """What is run, and how.

    `workers`: of each member's applier. 0: rows of the embedded store are written under Python's
    interpreter lock, so that threads only cost. `settings`: of each member, beside that.
    `credentials`: what the clients show. `certification_log`: members write what an audit reads.
    `rounds`: turns of Galera and the group, of which the median counts.
    """

    seconds: float = 10.0
    workers: int = 0
    settings: Mapping[str, object] | None = None
    credentials: Credentials = ANONYMOUS
    certification_log: bool = False
    galera: bool = False
    rounds: int = 1


def main(bench: GroupBench, *, as_json: bool, output: Path | None) -> int:
    """Runs all loads on one group and prints what came out.

    Raises:
        ServerMissing: Galera is to be measured and not installed.
    """
    results: list[GroupResult] = []
    turns: list[Turn] = []
    with (
        Course(_parts(bench), lambda part: part.name) as course,
        tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
        ExitStack() as stack,
    ):
        servers: list[MariaDbServer] = []
        if bench.galera:
            servers = stack.enter_context(galera_cluster(Path(folder) / "galera"))
        group = stack.enter_context(_group(Path(folder), bench))
        for part in course:
            if part.clients:
                results.append(part.measure(group, bench.seconds))
            else:
                turns.append(_turn(group, servers, bench))
    results += [ours for turn in turns for ours, _ in turn]
    document: dict[str, object] = {"machine": machine()}
    comparison = _compared(turns) if turns else {}
    if comparison:
        rates = {each: found[RATE] for each, found in comparison["ratios"].items()}
        document |= {**comparison, "ratio": rates, "rounds": len(turns)}
    document |= {"results": [asdict(result) for result in results], **course.document()}
    if not answer(document, as_json=as_json, output=output):
        for result in results:
            typer.echo(_sentence(result))
        if comparison:
            typer.echo(_table(comparison))
        typer.echo(course.text(), nl=False)
    return course.exit_code(0)


def run(bench: GroupBench) -> list[GroupResult]:
    """Measures streams of batches of 64, then commits of 8 and of 32 clients."""
    with tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder:
        with _group(Path(folder), bench) as group:
            return [part.measure(group, bench.seconds) for part in _LOADS]


def tls_settings(credentials: Credentials) -> dict[str, object]:
    """Returns settings of members that speak TLS with a client's own files, which name this
    machine.
    """
    if credentials.tls is None:
        return {}
    parts = ("authority", "certificate", "key")
    return {f"tls_{part}": str(getattr(credentials.tls, part)) for part in parts}


def _group(folder: Path, bench: GroupBench) -> LocalGroup:
    settings = {"applier_workers": bench.workers, **tls_settings(bench.credentials)}
    return LocalGroup(
        folder / "group",
        certification_logs=folder / "certification-logs" if bench.certification_log else None,
        settings={**settings, **(bench.settings or {})},
        credentials=bench.credentials,
    )


Turn = list[tuple[GroupResult, GroupResult]]
"""The group and Galera, under the load of each number of clients."""


def _turn(group: LocalGroup, servers: Sequence[MariaDbServer], bench: GroupBench) -> Turn:
    return [
        (_commits(group, clients, bench.seconds), _galera(servers, clients, bench.seconds))
        for clients in CLIENTS
    ]


def _galera(servers: Sequence[MariaDbServer], clients: int, seconds: float) -> GroupResult:
    """Measures the clients of a Galera Cluster."""
    nodes = [psutil.Process(server.pid) for server in servers]

    def spent() -> dict[str, float]:
        return {"nodes": sum(map(_cpu, nodes)), "clients": _cpu(psutil.Process())}

    before, started = spent(), time.perf_counter()
    load = run_clients(servers, clients, seconds)
    elapsed = time.perf_counter() - started
    return _result("galera", clients, load, load.certified, elapsed, before, spent(), {})


class _Part(NamedTuple):
    """A load of the group alone; without clients, a turn of it and Galera under all loads."""

    name: str
    clients: int = 0

    def measure(self, group: LocalGroup, seconds: float) -> GroupResult:
        """Runs the load."""
        if self.name == STREAM:
            return _measure(group, STREAM, _stream, self.clients, seconds)
        return _commits(group, self.clients, seconds)


_LOADS = (_Part(STREAM, STREAMS), *(_Part(f"commits of {each} clients", each) for each in CLIENTS))


def _parts(bench: GroupBench) -> Sequence[_Part]:
    if not bench.galera:
        return _LOADS
    return (_LOADS[0], *(_Part(f"round {number + 1}") for number in range(bench.rounds)))


def _commits(group: LocalGroup, clients: int, seconds: float) -> GroupResult:
    return _measure(group, "commits", commit, clients, seconds)


def _measure(
    group: LocalGroup, kind: str, run_clients: Clients, clients: int, seconds: float
) -> GroupResult:
    _settle(group)
    stages_before, versions_before = _stages(group), _versions(group)
    cpu_before, load = _cpu_seconds(group), Load()
    started = time.perf_counter()
    uvloop.run(run_clients(group, clients, started + seconds, load))  # type: ignore[arg-type]
    _settle(group)
    elapsed = time.perf_counter() - started
    applied = min(_versions(group).values()) - min(versions_before.values())
    stages = _stage_means(stages_before, _stages(group))
    spent = cpu_before, _cpu_seconds(group)
    return _result(kind, clients, load, applied, elapsed, *spent, stages)


def _result(
    kind: str,
    clients: int,
    load: Load,
    commits: int,
    elapsed: float,
    cpu_before: Mapping[str, float],
    cpu_after: Mapping[str, float],
    stages: Mapping[str, float],
) -> GroupResult:
    latencies = load.latencies()
    spent = {part: cpu_after[part] - cpu_before[part] for part in cpu_after}
    return GroupResult(
        load=kind,
        clients=clients,
        seconds=round(elapsed, 2),
        commits_per_second=round(commits / elapsed, 1),
        rejected=load.rejected,
        p50_ms=latencies["p50"],
        p99_ms=latencies["p99"],
        cpu_cores={part: round(seconds / elapsed, 3) for part, seconds in spent.items()},
        cpu_us=round(sum(spent.values()) / commits * 1e6, 1),
        microseconds_per_stage=stages,
    )


async def commit(group: LocalGroup, clients: int, deadline: float, load: Load) -> None:
    """Runs tasks that commit one row at a time, over one connection to each member."""
    picker = random.Random()
    tls, token = group.credentials.tls, group.credentials.token
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(AsyncClient(address, tls=tls, token=token))
            for address in group.addresses.values()
        ]

        def row() -> KeyAndValue:
            return _key(picker), picker.randbytes(VALUE_BYTES)

        goes_on = partial(_is_before, deadline)
        tasks = (connections[number % len(connections)] for number in range(clients))
        await asyncio.gather(*(commit_rows(client, row, goes_on, load) for client in tasks))


async def _stream(group: LocalGroup, clients: int, deadline: float, load: Load) -> None:
    """Streams batches to each member."""
    picker = random.Random()
    channels = [open_aio_channel(each, group.credentials) for each in group.addresses.values()]

    def changes() -> Changes:
        return change(_key(picker), picker.randbytes(VALUE_BYTES))

    def batches() -> list[Changes]:
        return [changes() for _ in range(BATCH_TRANSACTIONS)]

    def goes_on(_: list[Changes]) -> bool:
        return _is_before(deadline) or not load.certified

    made = takewhile(goes_on, iter(batches, None))
    try:
        streams = (channels[number % len(channels)] for number in range(clients))
        await asyncio.gather(*(stream_batches(channel, made, load) for channel in streams))
    finally:
        for channel in channels:
            await channel.close(None)


def _key(picker: random.Random) -> bytes:
    return b"row/%d" % picker.randrange(ROWS)


def _is_before(deadline: float) -> bool:
    return time.perf_counter() < deadline


def _settle(group: LocalGroup) -> None:
    """Returns when every member has committed all that any of them has certified."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        observed = [group.status(name).observer for name in group.names]
        newest = max(status.certified_version for status in observed)
        if all(status.committed_version == newest for status in observed):
            return
        time.sleep(0.02)


def _versions(group: LocalGroup) -> dict[str, int]:
    return {name: group.status(name).observer.committed_version for name in group.names}


def _cpu_seconds(group: LocalGroup) -> dict[str, float]:
    members = [psutil.Process(process.pid) for process in group.processes.values()]
    return {
        "members": sum(map(_cpu, members)),
        "log_server": _cpu(psutil.Process(group.log_server.pid)),
        "clients": _cpu(psutil.Process()),
    }


def _cpu(process: psutil.Process) -> float:
    """Returns the seconds of processor time that a process has spent."""
    return sum(process.cpu_times()[:2])


def _stages(group: LocalGroup) -> dict[str, tuple[float, int]]:
    """Returns for each stage of own commits the microseconds spent, and how many passed it."""
    totals: dict[str, tuple[float, int]] = {}
    for name in group.names:
        for stage in group.status(name).observer.stages:
            spent, count = totals.get(stage.name, (0.0, 0))
            totals[stage.name] = (spent + stage.total_us, count + stage.count)
    return totals


def _stage_means(
    before: Mapping[str, tuple[float, int]], after: Mapping[str, tuple[float, int]]
) -> dict[str, float]:
    means = {}
    for stage, (spent, count) in after.items():
        spent_before, count_before = before.get(stage, (0.0, 0))
        if count > count_before:
            means[stage] = round((spent - spent_before) / (count - count_before), 1)
    return means


def _compared(turns: Sequence[Turn]) -> Comparison:
    """Returns the medians of both systems by number of clients, and ours as shares of theirs."""
    names = (RATE, "p50_ms", "p99_ms", "cpu_us")
    medians: list[dict[str, dict[str, float]]] = [
        {
            str(clients): {
                name: statistics.median(getattr(turn[place][system], name) for turn in turns)
                for name in names
            }
            for place, clients in enumerate(CLIENTS)
        }
        for system in range(2)
    ]
    ours, theirs = medians
    ratios = {
        clients: {name: round(ours[clients][name] / theirs[clients][name], 3) for name in names}
        for clients in ours
    }
    return {"groupcert": ours, "galera": theirs, "ratios": ratios}


def _table(comparison: Comparison) -> str:
    """Returns the table of both systems."""
    lines = [f"{'':22} {'commits/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>8}"]
    for clients in map(str, CLIENTS):
        for system in ("galera", "groupcert", "ratios"):
            found = comparison[system][clients]
            rate, *others = found.values()
            numbers = "".join(f" {each:8.2f}" for each in others)
            rate_text = f"{rate:10.2f}" if system == "ratios" else f"{rate:10,.0f}"
            lines.append(f"{clients:>2} clients, {system:10} {rate_text}{numbers}")
    return "\n".join(lines)


def _sentence(result: GroupResult) -> str:
    cores = ", ".join(f"{part} {cores:.2f}" for part, cores in result.cpu_cores.items())
    stages = ", ".join(f"{name} {us:.0f}" for name, us in result.microseconds_per_stage.items())
    return (
        f"{result.load:7} {result.clients:3} clients: {result.commits_per_second:9,.0f} commits/s"
        f"  p50 {result.p50_ms:.2f} ms  p99 {result.p99_ms:.2f} ms"
        f"  rejected {result.rejected}  CPU {result.cpu_us:.0f} us a commit"
        f"\n        cores: {cores}\n        us a stage: {stages}"
    )
