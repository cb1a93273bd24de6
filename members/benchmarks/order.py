"""`groupcert bench order`: the total order on JetStream and on etcd, side by side on this machine.

Three servers each, in turns, which sync every write to the same disk; one publisher and one reader
over the adapters that members use; then a group of three members. Bounds: a message waits for the
sync of two servers, one after the other where one is in flight; and after the death of a leader for
the election of another.
"""

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import typer
import uvloop

from groupcert.members.benchmarks.clients import Load
from groupcert.members.benchmarks.etcd_servers import EtcdServers, etcd_binary
from groupcert.members.benchmarks.group import commit
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.benchmarks.nats_servers import NatsServers
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.interruption import Course
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.members.total_order.log_options import LogOptions, make_order
from groupcert.members.total_order.port import TotalOrder

GROUP = "bench"
SIZES = (1 << 10, 16 << 10)
ACCEPTED_BESIDE = 4
"""Messages that a publisher has accepted beyond those in flight: it never waits for this loop."""
LATENCY_BYTES = 1 << 10
CLIENTS = 8
BEAT_SECONDS = 0.005
"""Between two messages while leaders are killed; what a standstill is measured with."""
WAIT_SECONDS_MAX = 60.0
_IDS = count()
Servers = NatsServers | EtcdServers


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBench:
    """The load, and how often it is repeated."""

    seconds: float = 5.0
    """Of each rate, of the latencies, and of the commits in a group."""
    kills: int = 10
    rounds: int = 3
    """Turns of both; medians count."""
    folder: Path | None = None
    """On the disk that counts; None: where temporary files are."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One order: its servers, how many messages may be in flight, and how it is reached."""

    name: str
    start: Callable[[Path], Servers]
    in_flight: Sequence[int]

    def options(self, servers: Servers, in_flight: int) -> LogOptions:
        """Returns options of an order on these servers."""
        if isinstance(servers, EtcdServers):
            return EtcdOptions(servers=servers.addresses, group=GROUP, replicas=3)
        return JetStreamOptions(
            servers=tuple(servers.servers), group=GROUP, replicas=3, in_flight_max=in_flight
        )


KINDS = (_Kind("jetstream", NatsServers, (1, 64)), _Kind("etcd", EtcdServers, (1,)))


def main(bench: OrderBench, *, as_json: bool, output: Path | None) -> int:
    """Measures both orders and prints what came out. Raises ServerMissing: there is no etcd."""
    etcd = subprocess.run([etcd_binary(), "--version"], capture_output=True, text=True, check=True)
    rounds: dict[str, list[dict[str, float]]] = {kind.name: [] for kind in KINDS}
    stalls: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    turns = [(turn, kind) for turn in range(bench.rounds) for kind in KINDS]
    with Course(turns, lambda part: f"round {part[0] + 1} of {part[1].name}") as course:
        for turn, kind in course:
            kills = bench.kills // bench.rounds + (turn < bench.kills % bench.rounds)
            with tempfile.TemporaryDirectory(prefix="groupcert-bench-", dir=bench.folder) as folder:
                with kind.start(Path(folder, "order")) as servers:
                    measured = uvloop.run(_measure(kind, servers, bench.seconds))
                    stalls[kind.name] += uvloop.run(_kill_leaders(kind, servers, kills))
                with kind.start(Path(folder, "group-order")) as servers:
                    measured |= _commits(servers, Path(folder, "group"), bench.seconds)
                rounds[kind.name].append(measured)
    found = {
        name: {**_medians(of_kind), "standstill_s": _spread(stalls[name])}
        for name, of_kind in rounds.items()
        if of_kind
    }
    document = {
        "machine": machine(),
        "etcd": etcd.stdout.split("\n")[0].removeprefix("etcd Version: "),
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "kills": bench.kills,
        "orders": found,
        **course.document(),
    }
    if not answer(document, as_json=as_json, output=output):
        for kind_name, results in found.items():
            for name, spread in results.items():
                low, high = spread["min"], spread["max"]
                typer.echo(f"{kind_name:10} {name:28} {spread['median']:>9,} [{low:,} to {high:,}]")
        typer.echo(course.text(), nl=False)
    return course.exit_code(0)


async def _measure(kind: _Kind, servers: Servers, seconds: float) -> dict[str, float]:
    """Returns appends per second by size and messages in flight, and latencies."""
    results: dict[str, float] = {}
    for in_flight in kind.in_flight:
        async with _opened(kind.options(servers, in_flight)) as order:
            for size in SIZES:
                name = f"appends_per_s_{size >> 10}_kib_{in_flight}"
                results[name] = round(await _rate(order, size, in_flight, seconds), 1)
    async with _opened(kind.options(servers, 1)) as order:
        taken = sorted(await _latencies(order, seconds))
    results["latency_ms_p50"] = round(taken[len(taken) // 2], 2)
    results["latency_ms_p99"] = round(taken[len(taken) * 99 // 100], 2)
    return results


async def _rate(order: TotalOrder, size: int, in_flight: int, seconds: float) -> float:
    """Returns how many messages a second are read back, while there is always one to send."""
    payload = os.urandom(size)
    begins = (await order.state()).last_sequence + 1
    for _ in range(in_flight + ACCEPTED_BESIDE):
        _publish(order, payload)
    done, began = 0, time.perf_counter()
    async with aclosing(order.read(begins)) as reading:
        async for deliveries in reading:
            done += len(deliveries)
            taken = time.perf_counter() - began
            if taken > seconds:
                return done / taken
            for _ in deliveries:
                _publish(order, payload)
    raise AssertionError("a reading never ends")


async def _latencies(order: TotalOrder, seconds: float) -> list[float]:
    """Returns milliseconds from sending a message to reading it, one message after the other."""
    payload = os.urandom(LATENCY_BYTES)
    taken_ms: list[float] = []
    deadline = time.perf_counter() + seconds
    async with aclosing(order.read((await order.state()).last_sequence + 1)) as reading:
        while time.perf_counter() < deadline or not taken_ms:
            began = time.perf_counter()
            _publish(order, payload)
            await anext(reading)
            taken_ms.append(1000 * (time.perf_counter() - began))
    return taken_ms


def _commits(servers: Servers, folder: Path, seconds: float) -> dict[str, float]:
    """Returns what clients of a group of three members see, who commit one row at a time."""
    load = Load()
    with LocalGroup(folder, settings=servers.settings) as group:
        uvloop.run(commit(group, CLIENTS, time.perf_counter() + seconds, load))
    latencies = load.latencies()
    return {
        f"commits_per_s_{CLIENTS}_clients": round(load.certified / seconds, 1),
        "commit_ms_p50": latencies["p50"],
        "commit_ms_p99": latencies["p99"],
    }


async def _kill_leaders(kind: _Kind, servers: Servers, kills: int) -> list[float]:
    """Returns for how many seconds nothing was read, for each of some killed leaders."""
    async with _opened(kind.options(servers, 1)) as order:
        seen: list[float] = []

        async def send() -> None:
            while True:
                if order.publishing() < 2:
                    _publish(order, b"beat")
                await asyncio.sleep(BEAT_SECONDS)

        async def read() -> None:
            async with aclosing(order.read((await order.state()).last_sequence + 1)) as reading:
                async for deliveries in reading:
                    seen.extend([time.perf_counter()] * len(deliveries))

        tasks = [asyncio.create_task(each()) for each in (send, read)]
        standstills = []
        for _ in range(kills):
            await _until(lambda: order.health().leader and _all_current(order))
            await _until(partial(_has_more, seen, len(seen)))
            standstills.append(await _kill_leader(order, servers, seen))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return standstills


async def _kill_leader(order: TotalOrder, servers: Servers, seen: list[float]) -> float:
    """Kills the leader, and starts it again once messages are read; returns the longest pause."""
    leader, before = order.health().leader, len(seen)
    await asyncio.to_thread(servers.kill, leader)
    await _until(lambda: order.health().leader not in {"", leader} and len(seen) > before + 20)
    pauses = [later - sooner for sooner, later in pairwise(seen[before - 1 :])]
    await asyncio.to_thread(servers.start, leader)
    await asyncio.to_thread(servers.wait_ready)
    return round(max(pauses), 3)


def _has_more(seen: list[float], than: int) -> bool:
    return len(seen) > than + 20


def _all_current(order: TotalOrder) -> bool:
    servers = order.health().servers
    return len(servers) == 3 and all(each.is_current for each in servers)


async def _until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not happened():  # noqa: ASYNC110 - what happens has no event
            await asyncio.sleep(BEAT_SECONDS)


@asynccontextmanager
async def _opened(options: LogOptions) -> AsyncIterator[TotalOrder]:
    order = make_order(options)
    await order.open(create=True)
    try:
        yield order
    finally:
        await order.close()


def _publish(order: TotalOrder, payload: bytes) -> None:
    order.publish(f"{os.getpid()}-{next(_IDS)}", payload)


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: _spread([each[name] for each in rounds]) for name in rounds[0]}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return dict.fromkeys(("median", "min", "max"), 0.0)
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}
