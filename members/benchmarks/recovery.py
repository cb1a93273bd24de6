"""`groupcert bench recovery`: a member that lost its disk, and one that was away, on this machine.

Two ways back: a copy of a donor's state while clients commit at the donor (how long it takes, and
what it does to their commits), and the log (transactions a second). Bounds: the copy is read once
for its checksums, sent, and read once more; the log is read, certified and applied on one core.
"""

import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import grpc.aio
import typer
import uvloop

from groupcert.certifier.errors import NotServing
from groupcert.members.benchmarks.clients import (
    BATCH_TRANSACTIONS,
    Load,
    change,
    commit_rows,
    stream_batches,
)
from groupcert.members.benchmarks.machine import answer, machine
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.interruption import Course
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.v1 import group_pb2

DONOR, JOINER = "m1", "m2"
CLIENTS = 4
RATES = (100 << 20, 0)
"""Bytes per second at most of the copies; 0: no limit."""
VALUE_BYTES = 4_000
SMALL_VALUE_BYTES = 100
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02
CALM_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """`seconds`: from the joiner's start to ONLINE; `copy_seconds`: from the choice of its donor to
    a verified copy. `stall_ms`: how long the donor did nothing else while it made the copy.
    `before`, `during`: latencies of commits of one row at the donor.
    """

    bytes: int
    bytes_per_second_max: int
    seconds: float
    copy_seconds: float
    stall_ms: float
    before: Mapping[str, float]
    during: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """`seconds`: from the first sign of life to ONLINE with nothing left to apply."""

    transactions: int
    messages: int
    seconds: float
    transactions_per_second: float


def main(*, as_json: bool, size: int, transactions: int, output: Path | None) -> int:
    """Measures both ways and prints what came out.

    Args:
        size: Bytes of rows; the copy has them twice, as the binary log has them, too.
        transactions: That the member that was away lacks.
    """
    copies: list[CopyResult] = []
    by_log: LogResult | None = None
    with Course((*RATES, None), _name) as course:
        for rate in course:
            if rate is None:
                by_log = _measure_log(transactions)
            else:
                copies.append(_measure_copy(size, rate))
    document = {
        "machine": machine(),
        "copies": [asdict(each) for each in copies],
        "log": asdict(by_log) if by_log else None,
        **course.document(),
    }
    if answer(document, as_json=as_json, output=output):
        return course.exit_code(0)
    for each in copies:
        limit = f"{each.bytes_per_second_max >> 20} MiB/s" if each.bytes_per_second_max else "none"
        latencies = ", ".join(
            f"{name} {before:.1f} -> {each.during[name]:.1f} ms"
            for name, before in each.before.items()
        )
        typer.echo(
            f"copy  {each.bytes / 1e9:.2f} GB, limit {limit}: {each.copy_seconds:.1f} s, ONLINE "
            f"after {each.seconds:.1f} s; the donor stood still for {each.stall_ms:.1f} ms; its "
            f"commits {latencies}"
        )
    if by_log:
        typer.echo(
            f"log   {by_log.transactions:,} transactions in {by_log.messages:,} messages: "
            f"{by_log.seconds:.1f} s, {by_log.transactions_per_second:,.0f}/s"
        )
    typer.echo(course.text(), nl=False)
    return course.exit_code(0)


def _name(rate: int | None) -> str:
    if rate is None:
        return "the log"
    return f"a copy with at most {rate >> 20} MiB/s" if rate else "a copy without a limit"


def _measure_copy(size: int, rate: int) -> CopyResult:
    with _group({"recovery_bytes_per_second_max": rate}) as group:
        uvloop.run(_fill(group, size // VALUE_BYTES, VALUE_BYTES))
        before = uvloop.run(_commit_while(group, _for_seconds(CALM_SECONDS)))
        group.kill(JOINER)
        shutil.rmtree(group.folder / JOINER)
        sequence = group.status(DONOR).observer.log_sequence
        options = JetStreamOptions(servers=(group.log_server.address,), group="local")
        asyncio.run(trim_log(options, sequence))
        began = time.monotonic()
        group.start_member(JOINER, {"seeds": [group.addresses[DONOR]]})
        during = uvloop.run(_commit_while(group, lambda: not _is_online(group)))
        seconds = time.monotonic() - began
        chosen, copied = (
            _event(group, JOINER, name) for name in ("donor_chosen", "recovery_copied")
        )
        opened = _event(group, DONOR, "copy_opened")
    return CopyResult(
        bytes=int(str(opened["bytes"])),
        bytes_per_second_max=rate,
        seconds=round(seconds, 2),
        copy_seconds=round(_time_of(copied) - _time_of(chosen), 2),
        stall_ms=float(str(opened["stall_ms"])),
        before=before,
        during=during,
    )


def _measure_log(transactions: int) -> LogResult:
    with _group({}) as group:
        group.kill(JOINER)
        before = group.status(DONOR).observer
        uvloop.run(_fill(group, transactions, SMALL_VALUE_BYTES))
        after = group.status(DONOR).observer
        group.start_member(JOINER)
        began = 0.0
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            with suppress(NotServing):
                status = group.status(JOINER).observer
                began = began or time.monotonic()
                online = status.state == group_pb2.MEMBER_STATE_ONLINE
                if online and status.committed_version >= after.certified_version:
                    break
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
    lacked = after.certified_version - before.certified_version
    return LogResult(
        transactions=lacked,
        messages=after.log_sequence - before.log_sequence,
        seconds=round(seconds, 2),
        transactions_per_second=round(lacked / seconds, 1),
    )


@contextmanager
def _group(settings: Mapping[str, object]) -> Iterator[LocalGroup]:
    """Starts two members in a folder that goes with them."""
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
        LocalGroup(Path(folder), members=2, settings={"applier_workers": 0, **settings}) as group,
    ):
        yield group


async def _fill(group: LocalGroup, rows: int, value_bytes: int) -> None:
    """Commits so many rows at the donor, each in a transaction of its own."""
    picker, load = random.Random(1), Load()
    numbers = range(0, rows, BATCH_TRANSACTIONS)
    batches = (
        [
            change(b"row/%d" % number, picker.randbytes(value_bytes))
            for number in range(first, min(first + BATCH_TRANSACTIONS, rows))
        ]
        for first in numbers
    )
    async with grpc.aio.insecure_channel(group.addresses[DONOR]) as channel:
        await stream_batches(channel, batches, load)
    assert load.certified > 0.99 * rows, f"{load.certified} of {rows} rows are there"


async def _commit_while(group: LocalGroup, goes_on: Callable[[], bool]) -> dict[str, float]:
    """Commits one row at a time at the donor, from some clients, as long as something is so;
    returns the latencies.
    """
    load, stopped = Load(), asyncio.Event()

    async def commit(number: int) -> None:
        picker = random.Random(number)

        def one() -> KeyAndValue:
            return b"client/%d/%d" % (number, picker.randrange(1_000)), b"x"

        async with AsyncClient(group.addresses[DONOR]) as client:
            await commit_rows(client, one, lambda: not stopped.is_set(), load)

    clients = [asyncio.create_task(commit(number)) for number in range(CLIENTS)]
    try:
        await asyncio.to_thread(_wait_while, lambda: goes_on() and not stopped.is_set())
    finally:
        stopped.set()
    await asyncio.gather(*clients)
    return load.latencies()


def _wait_while(goes_on: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and goes_on():
        time.sleep(POLL_SECONDS)


def _for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _is_online(group: LocalGroup) -> bool:
    with suppress(NotServing):
        return group.status(JOINER).observer.state == group_pb2.MEMBER_STATE_ONLINE
    return False


def _event(group: LocalGroup, name: str, event: str) -> dict[str, object]:
    """Returns the newest line of a member's log under a name."""
    lines = (group.folder / f"{name}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if f'"{event}"' in line]
    document: dict[str, object] = found[-1]
    return document


def _time_of(event: Mapping[str, object]) -> float:
    return datetime.fromisoformat(str(event["timestamp"])).timestamp()
