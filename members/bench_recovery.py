"""`groupcert bench recovery`: a member that lost its disk, and one that was away, on this machine.

Two ways back: a copy of a donor's state while clients commit at the donor (how long it takes, and
what it does to their commits), and the log (transactions a second). Bounds: the copy is read once
for its checksums, sent, and read once more; the log is read, certified and applied on one core.
"""

import asyncio
import json
import random
import shutil
import statistics
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

from certifier.errors import NotServing
from groupcert.v1 import (
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    store_pb2,
    store_pb2_grpc,
    transaction_pb2,
)
from members.convert import changed_items
from members.jetstream import JetStreamOptions
from members.local_group import LocalGroup
from members.log_trimmer import trim_log
from members.machine import machine

DONOR, JOINER = "m1", "m2"
BATCH_TRANSACTIONS = 64
STREAM_MESSAGES = 4
CLIENTS = 4
VALUE_BYTES = 4_000
SMALL_VALUE_BYTES = 100
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02
CALM_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of unary commits at the donor, in ms."""

    commits: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyResult:
    """`seconds`: from the joiner's start to ONLINE; `copy_seconds`: from the choice of its donor to
    a verified copy. `stall_ms`: how long the donor did nothing else while it made the copy.
    """

    bytes: int
    bytes_per_second_max: int
    seconds: float
    copy_seconds: float
    stall_ms: float
    before: Latencies
    during: Latencies


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
    copies = [_measure_copy(size, rate) for rate in (100 << 20, 0)]
    by_log = _measure_log(transactions)
    document = {
        "machine": machine(),
        "copies": [asdict(each) for each in copies],
        "log": asdict(by_log),
    }
    if output:
        output.write_text(json.dumps(document, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(document))
        return 0
    for each in copies:
        limit = f"{each.bytes_per_second_max >> 20} MiB/s" if each.bytes_per_second_max else "none"
        typer.echo(
            f"copy  {each.bytes / 1e9:.2f} GB, limit {limit}: {each.copy_seconds:.1f} s, ONLINE "
            f"after {each.seconds:.1f} s; the donor stood still for {each.stall_ms:.1f} ms; its "
            f"commits p50 {each.before.p50:.1f} -> {each.during.p50:.1f} ms, "
            f"p99 {each.before.p99:.1f} -> {each.during.p99:.1f} ms, "
            f"max {each.before.max:.1f} -> {each.during.max:.1f} ms"
        )
    typer.echo(
        f"log   {by_log.transactions:,} transactions in {by_log.messages:,} messages: "
        f"{by_log.seconds:.1f} s, {by_log.transactions_per_second:,.0f}/s"
    )
    return 0


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
    """Two members in a folder that goes with them."""
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-bench-") as folder,
        LocalGroup(Path(folder), members=2, settings={"applier_workers": 0, **settings}) as group,
    ):
        yield group


async def _fill(group: LocalGroup, rows: int, value_bytes: int) -> None:
    """Commits so many rows at the donor, each in a transaction of its own."""
    picker = random.Random(1)
    async with grpc.aio.insecure_channel(group.addresses[DONOR]) as channel:
        call = certification_pb2_grpc.CertificationServiceStub(channel).CertifyStream(None)
        unanswered = version = certified = 0

        async def answer() -> None:
            nonlocal version, certified
            response = await call.read()
            assert isinstance(response, certification_pb2.CertifyStreamResponse), "ended early"
            for outcome in response.outcomes:
                certified += outcome.verdict == transaction_pb2.VERDICT_CERTIFIED
                version = max(version, outcome.version)

        for first in range(0, rows, BATCH_TRANSACTIONS):
            request = certification_pb2.CertifyStreamRequest()
            for number in range(first, min(first + BATCH_TRANSACTIONS, rows)):
                changes = transaction_pb2.Changes(
                    put_keys=[b"row/%d" % number], put_values=[picker.randbytes(value_bytes)]
                )
                request.transactions.add(
                    snapshot_version=version,
                    write_set=changed_items(changes),
                    changes=changes.SerializeToString(),
                )
            await call.write(request)
            unanswered += 1
            if unanswered == STREAM_MESSAGES:
                await answer()
                unanswered -= 1
        for _ in range(unanswered):
            await answer()
        await call.done_writing()
        assert certified > 0.99 * rows, f"{certified} of {rows} rows are there"


async def _commit_while(group: LocalGroup, goes_on: Callable[[], bool]) -> Latencies:
    """Unary commits of one row at the donor, by some clients, as long as something is so."""
    latencies: list[float] = []
    stopped = asyncio.Event()

    async def commit(number: int) -> None:
        picker = random.Random(number)
        async with grpc.aio.insecure_channel(group.addresses[DONOR]) as channel:
            stub = store_pb2_grpc.StoreServiceStub(channel)
            version = (await stub.OpenSnapshot(store_pb2.OpenSnapshotRequest())).version
            while not stopped.is_set():
                began = time.perf_counter()
                key = b"client/%d/%d" % (number, picker.randrange(1_000))
                changes = transaction_pb2.Changes(put_keys=[key], put_values=[b"x"])
                response = await stub.Commit(
                    store_pb2.CommitRequest(
                        transaction_id=picker.randbytes(16),
                        snapshot_version=version,
                        changes=changes,
                    )
                )
                version = response.version
                latencies.append((time.perf_counter() - began) * 1e3)

    clients = [asyncio.create_task(commit(number)) for number in range(CLIENTS)]
    await asyncio.to_thread(_wait_while, goes_on)
    stopped.set()
    await asyncio.gather(*clients)
    latencies.sort()
    return Latencies(
        commits=len(latencies),
        p50=round(statistics.median(latencies), 2),
        p99=round(latencies[int(len(latencies) * 0.99)], 2),
        max=round(latencies[-1], 2),
    )


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
    """The newest line of a member's log under a name."""
    lines = (group.folder / f"{name}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if f'"{event}"' in line]
    document: dict[str, object] = found[-1]
    return document


def _time_of(event: Mapping[str, object]) -> float:
    return datetime.fromisoformat(str(event["timestamp"])).timestamp()
