"""The total order on JetStream and on etcd, side by side on this machine.

Three servers each, in turns, which sync every write to the same disk; one publisher and one reader
over the adapters that members use; then a group of three members. Bounds: a message waits for the
sync of two servers, one after the other where one is in flight; and after the death of a leader for
the election of another.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from itertools import chain, count, pairwise
from pathlib import Path

import uvloop

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.total_order.etcd import EtcdOptions
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.members.total_order.log_options import LogOptions, make_order
from groupcert.members.total_order.port import TotalOrder
from tests.bench.clients import Answers, commit, for_seconds, random_row
from tests.bench.harness import Document, Load, Run, machine, scratch, spread
from tests.log_servers import EtcdServers, NatsServers, etcd_binary
from tests.waiting import until

GROUP = "bench"
SIZES = (1 << 10, 16 << 10)
ACCEPTED_BESIDE = 4
"""Messages that a publisher has accepted beyond those in flight: it never waits for this loop."""
CLIENTS = 8
BEAT_SECONDS = 0.005
"""Between two messages while leaders are killed; what a standstill is measured with."""
BEATS = 20
"""As many are read again before a leader counts as replaced."""
_IDS = count()
Servers = NatsServers | EtcdServers
ORDERS: dict[str, type[Servers]] = {"jetstream": NatsServers, "etcd": EtcdServers}


def order(
    run: Run,
    seconds: float = 5.0,
    kills: int = 10,
    rounds: int = 3,
    folder: Path | None = None,
) -> Document:
    """Compares JetStream and etcd as the total order, with three servers each, in turns.

    Needs an etcd (Debian's etcd-server).

    Args:
        seconds: Of each rate, of the latencies, and of the commits in a group.
        kills: Of the leader of each, over all rounds.
        rounds: Turns, of which the median counts.
        folder: Servers write there, on the disk that counts; None: where temporary files are.
    """
    version = subprocess.run([etcd_binary(), "--version"], capture_output=True, text=True).stdout
    loads = [
        Load(name, partial(_turn, start, kills // rounds + (turn <= kills % rounds), seconds), turn)
        for turn in range(1, rounds + 1)
        for name, start in ORDERS.items()
    ]
    results = run.measure(loads, nullcontext(folder))
    return {
        "machine": machine(),
        "etcd": version.split("\n")[0].removeprefix("etcd Version: "),
        "rounds": rounds,
        "seconds": seconds,
        "kills": kills,
        "orders": {name: _spreads(turns) for name, turns in results.items()},
    }


def _spreads(turns: Sequence[Document]) -> Document:
    """Returns the spread of each number over the turns, and of all standstills."""
    values = {name: [turn[name] for turn in turns] for name in turns[0]}
    values["standstill_s"] = list(chain.from_iterable(values["standstill_s"]))
    return {name: spread(each) for name, each in values.items()}


def _turn(start: type[Servers], kills: int, seconds: float, parent: Path | None) -> Document:
    with scratch(parent) as folder:
        with start(folder / "order") as servers:
            measured = uvloop.run(_measure(servers, seconds))
            standstills = uvloop.run(_kill_leaders(servers, kills))
        with start(folder / "group-order") as servers:
            return {
                **measured,
                **_commits(servers, folder / "group", seconds),
                "standstill_s": standstills,
            }


async def _measure(servers: Servers, seconds: float) -> Document:
    """Returns appends per second by size and messages in flight, and latencies."""
    results: Document = {}
    for number in (1, 64) if isinstance(servers, NatsServers) else (1,):
        async with _opened(servers, number) as log:
            for size in SIZES:
                name = f"appends_per_s_{size >> 10}_kib_{number}"
                results[name] = round(await _rate(log, size, number, seconds), 1)
    answers = Answers()
    async with _opened(servers, 1) as log:
        payload, goes_on = os.urandom(SIZES[0]), for_seconds(seconds)
        async with aclosing(log.read((await log.state()).last_sequence + 1)) as reading:
            while goes_on() or not answers.latencies_ms:
                began = time.perf_counter()
                _publish(log, payload)
                await anext(reading)
                answers.latencies_ms.append(1000 * (time.perf_counter() - began))
    taken = sorted(answers.latencies_ms)
    results["latency_ms_p50"] = round(taken[len(taken) // 2], 2)
    results["latency_ms_p99"] = round(taken[len(taken) * 99 // 100], 2)
    return results


async def _rate(log: TotalOrder, size: int, in_flight: int, seconds: float) -> float:
    """Returns how many messages a second are read back, while there is always one to send."""
    payload = os.urandom(size)
    begins = (await log.state()).last_sequence + 1
    for _ in range(in_flight + ACCEPTED_BESIDE):
        _publish(log, payload)
    done, began = 0, time.perf_counter()
    async with aclosing(log.read(begins)) as reading:
        async for deliveries in reading:
            done += len(deliveries)
            taken = time.perf_counter() - began
            if taken > seconds:
                return done / taken
            for _ in deliveries:
                _publish(log, payload)
    raise AssertionError("a reading never ends")


def _commits(servers: Servers, folder: Path, seconds: float) -> Document:
    """Returns what clients of a group of three members see, who commit one row at a time."""
    answers = Answers()
    with LocalGroup(folder, settings=servers.settings) as group:
        addresses, goes_on = list(group.addresses.values()), for_seconds(seconds)
        uvloop.run(commit(addresses, CLIENTS, random_row(), goes_on, answers))
    latencies = answers.latencies()
    return {
        f"commits_per_s_{CLIENTS}_clients": round(answers.certified / seconds, 1),
        "commit_ms_p50": latencies["p50"],
        "commit_ms_p99": latencies["p99"],
    }


async def _kill_leaders(servers: Servers, kills: int) -> list[float]:
    """Returns for how many seconds nothing was read, for each of some killed leaders."""
    standstills = []
    async with _opened(servers, 1) as log:
        seen: list[float] = []

        async def send() -> None:
            while True:
                if log.publishing() < 2:
                    _publish(log, b"beat")
                await asyncio.sleep(BEAT_SECONDS)

        async def read() -> None:
            async with aclosing(log.read((await log.state()).last_sequence + 1)) as reading:
                async for deliveries in reading:
                    seen.extend([time.perf_counter()] * len(deliveries))

        tasks = [asyncio.create_task(send()), asyncio.create_task(read())]
        for _ in range(kills):
            await until(lambda: log.health().leader and _all_current(log))
            await until(partial(_has_more, seen, len(seen)))
            standstills.append(await _kill_leader(log, servers, seen))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return standstills


async def _kill_leader(log: TotalOrder, servers: Servers, seen: list[float]) -> float:
    """Kills the leader, and starts it again once messages are read; returns the longest pause."""
    leader, before = log.health().leader, len(seen)
    await asyncio.to_thread(servers.kill, leader)
    await until(lambda: log.health().leader not in {"", leader} and _has_more(seen, before))
    pauses = [later - sooner for sooner, later in pairwise(seen[before - 1 :])]
    await asyncio.to_thread(servers.start, leader)
    await asyncio.to_thread(servers.wait_ready)
    return round(max(pauses), 3)


def _has_more(seen: list[float], than: int) -> bool:
    return len(seen) > than + BEATS


def _all_current(log: TotalOrder) -> bool:
    servers = log.health().servers
    return len(servers) == 3 and all(each.is_current for each in servers)


@asynccontextmanager
async def _opened(servers: Servers, in_flight: int) -> AsyncIterator[TotalOrder]:
    options: LogOptions = EtcdOptions(servers=servers.addresses, group=GROUP, replicas=3)
    if isinstance(servers, NatsServers):
        options = JetStreamOptions(
            servers=servers.addresses, group=GROUP, replicas=3, in_flight_max=in_flight
        )
    log = make_order(options)
    await log.open(create=True)
    try:
        yield log
    finally:
        await log.close()


def _publish(log: TotalOrder, payload: bytes) -> None:
    log.publish(f"{os.getpid()}-{next(_IDS)}", payload)
