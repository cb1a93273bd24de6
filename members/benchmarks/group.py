"""`groupcert bench group`: three members, the log server and the clients on this machine, over
gRPC.

Two loads: streams with batches (throughput), and unary commits of one row (latency). A rate counts
what every member has certified and applied; the clock stops when the slowest member has committed
the last transaction.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import grpc.aio
import psutil
import typer
import uvloop

from groupcert.members.benchmarks.clients import (
    BATCH_TRANSACTIONS,
    Load,
    change,
    commit_rows,
    stream_batches,
)
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.channels import open_aio_channel
from groupcert.v1 import store_pb2, store_pb2_grpc
from groupcert.v1.transaction_pb2 import Changes

BenchClient = Callable[[grpc.aio.Channel, int, float, Load], Awaitable[None]]
UNARY_CLIENTS = (8, 32)
ROWS = 100_000
VALUE_BYTES = 100
SETTLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """One load, measured.

    `cpu_cores`: processor time by part of the system, per second of load. `calls_bound`: what the
    same clients reach with calls of the same service that do nothing, per second; a commit a call
    cannot be faster than that.
    """

    load: str
    clients: int
    seconds: float
    commits_per_second: float
    rejected: int
    p50_ms: float
    p99_ms: float
    cpu_cores: Mapping[str, float]
    microseconds_per_stage: Mapping[str, float]
    calls_bound: float | None = None


def main(
    *,
    as_json: bool,
    seconds: float,
    output: Path | None,
    credentials: Credentials = ANONYMOUS,
    certification_log: bool = False,
) -> int:
    """Runs all loads on one group and prints what came out."""
    results = run(
        seconds,
        settings=tls_settings(credentials),
        credentials=credentials,
        certification_log=certification_log,
    )
    document = {"machine": machine(), "results": [asdict(result) for result in results]}
    if not answer(document, as_json=as_json, output=output):
        for result in results:
            typer.echo(_sentence(result))
    return 0


def run(
    seconds: float,
    *,
    workers: int = 0,
    settings: Mapping[str, object] | None = None,
    credentials: Credentials = ANONYMOUS,
    certification_log: bool = False,
) -> list[GroupResult]:
    """Streams of batches of 64, then unary commits from 8 and from 32 clients.

    Args:
        workers: Of each member's applier. 0 by default: rows of the embedded store are written
            under Python's interpreter lock, so that threads only cost.
        settings: Of each member, beside that.
        credentials: What the clients show.
        certification_log: Whether members write what an audit reads.
    """
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
        LocalGroup(
            Path(folder),
            certification_logs=Path(folder) / "certification-logs" if certification_log else None,
            settings={"applier_workers": workers, **(settings or {})},
            credentials=credentials,
        ) as group,
    ):
        results = [_measure(group, "stream", clients=3, seconds=seconds)]
        for clients in UNARY_CLIENTS:
            bound = _calls_per_second(group, clients, seconds / 2)
            result = _measure(group, "unary", clients=clients, seconds=seconds)
            results.append(replace(result, calls_bound=bound))
        return results


def tls_settings(credentials: Credentials) -> dict[str, object]:
    """Returns settings of members that speak TLS with a client's own files, which name this
    machine.
    """
    if credentials.tls is None:
        return {}
    parts = ("authority", "certificate", "key")
    return {f"tls_{part}": str(getattr(credentials.tls, part)) for part in parts}


def _calls_per_second(group: LocalGroup, clients: int, seconds: float) -> float:
    """Returns the rate of unary calls that do nothing, from so many clients."""
    load = uvloop.run(_run_load(group, _idle_calls, clients, seconds))
    return round(load.certified / seconds, 1)


def _measure(group: LocalGroup, kind: str, *, clients: int, seconds: float) -> GroupResult:
    _settle(group)
    stages_before = _stages(group)
    cpu_before = _cpu_seconds(group)
    versions_before = _versions(group)
    started = time.perf_counter()
    client = _stream if kind == "stream" else _unary
    load = uvloop.run(_run_load(group, client, clients, seconds))
    _settle(group)
    elapsed = time.perf_counter() - started
    cpu_after = _cpu_seconds(group)
    applied = min(_versions(group).values()) - min(versions_before.values())
    latencies = load.latencies()
    return GroupResult(
        load=kind,
        clients=clients,
        seconds=round(elapsed, 2),
        commits_per_second=round(applied / elapsed, 1),
        rejected=load.rejected,
        p50_ms=latencies["p50"],
        p99_ms=latencies["p99"],
        cpu_cores={
            part: round((cpu_after[part] - cpu_before[part]) / elapsed, 3) for part in cpu_after
        },
        microseconds_per_stage=_stage_means(stages_before, _stages(group)),
    )


async def _run_load(group: LocalGroup, client: BenchClient, clients: int, seconds: float) -> Load:
    load = Load()
    deadline = time.perf_counter() + seconds
    channels = [open_aio_channel(each, group.credentials) for each in group.addresses.values()]
    try:
        await asyncio.gather(
            *(
                client(channels[number % len(channels)], number, deadline, load)
                for number in range(clients)
            )
        )
    finally:
        for channel in channels:
            await channel.close(None)
    return load


async def _idle_calls(channel: grpc.aio.Channel, _number: int, deadline: float, load: Load) -> None:
    """Calls that a member answers from nothing: it closes no snapshot."""
    close = store_pb2_grpc.StoreServiceStub(channel).CloseSnapshot
    while time.perf_counter() < deadline:
        await close(store_pb2.CloseSnapshotRequest())
        load.certified += 1


async def _unary(channel: grpc.aio.Channel, number: int, deadline: float, load: Load) -> None:
    picker = random.Random(number)
    goes_on = partial(_is_before, deadline)
    await commit_rows(channel, picker, partial(_change, picker), goes_on, load)


async def _stream(channel: grpc.aio.Channel, number: int, deadline: float, load: Load) -> None:
    picker = random.Random(number)
    batches = iter(lambda: [_change(picker) for _ in range(BATCH_TRANSACTIONS)], None)
    await stream_batches(channel, takewhile(lambda _: _is_before(deadline), batches), load)


def _is_before(deadline: float) -> bool:
    return time.perf_counter() < deadline


def _change(picker: random.Random) -> Changes:
    return change(b"row/%d" % picker.randrange(ROWS), picker.randbytes(VALUE_BYTES))


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
        "members": sum(sum(each.cpu_times()[:2]) for each in members),
        "log_server": sum(psutil.Process(group.log_server.pid).cpu_times()[:2]),
        "clients": sum(psutil.Process().cpu_times()[:2]),
    }


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


def _sentence(result: GroupResult) -> str:
    cores = ", ".join(f"{part} {cores:.2f}" for part, cores in result.cpu_cores.items())
    stages = ", ".join(f"{name} {us:.0f}" for name, us in result.microseconds_per_stage.items())
    bound = ""
    if result.calls_bound:
        share = result.commits_per_second / result.calls_bound
        bound = f"\n       {share:.0%} of the calls that do nothing ({result.calls_bound:,.0f}/s)"
    return (
        f"{result.load:6} {result.clients:3} clients: {result.commits_per_second:9,.0f} commits/s"
        f"  p50 {result.p50_ms:.2f} ms  p99 {result.p99_ms:.2f} ms"
        f"  rejected {result.rejected}\n       cores: {cores}\n       us a stage: {stages}{bound}"
    )
