"""Clients of benchmarks: they stream batches to members, or commit one row at a time."""

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.load import percentile
from groupcert.members.errors.transactions import CertificationConflict, TransactionTooOld
from groupcert.members.host import client_loop
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.channels import open_aio_channel
from groupcert.members.wire.row_changes import changed_items
from groupcert.v1 import certification_pb2, certification_pb2_grpc, store_pb2, store_pb2_grpc
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes

ROWS = 100_000
VALUE_BYTES = 100
BATCH_TRANSACTIONS = 64
STREAM_MESSAGES = 4
"""Messages that each stream keeps unanswered."""
MakeRow = Callable[[], KeyAndValue]
MakeRows = Callable[[], Iterable[KeyAndValue]]
GoesOn = Callable[[], bool]
Work = Callable[..., Coroutine[Any, Any, None]]
"""`commit` or `stream`."""


@dataclass(slots=True)
class Answers:
    """What clients were told. They go on until their time is up and something was committed: on a
    machine that is nearly still, too, there is something to measure.
    """

    certified: int = 0
    rejected: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def latencies(self) -> dict[str, float]:
        """Returns median, 99th percentile and maximum of the latencies, in ms."""
        ordered = sorted(self.latencies_ms)
        found = statistics.median(ordered), percentile(ordered, 99), ordered[-1]
        return dict(zip(("p50", "p99", "max"), (round(each, 3) for each in found), strict=True))


def random_row(
    value_bytes: int = VALUE_BYTES, key: bytes = b"row/%d", seed: int | None = None
) -> MakeRow:
    """Returns what makes a row, one of `ROWS`, with random bytes, which do not compress."""
    chance = random.Random(seed)
    return lambda: (key % chance.randrange(ROWS), chance.randbytes(value_bytes))


def for_seconds(seconds: float) -> GoesOn:
    """Returns what is true for so long from now."""
    deadline = time.perf_counter() + seconds
    return lambda: time.perf_counter() < deadline


def run_beside(work: Callable[[GoesOn], Coroutine[Any, Any, None]], goes_on: GoesOn) -> None:
    """Runs clients in a thread of their own, which ends them where this one is interrupted: Ctrl-C
    is for this one, and not for whatever the clients' loop does at that moment.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client_loop.run, work(lambda: goes_on() and not stopped.is_set()))
        try:
            running.result()
        finally:
            stopped.set()


async def commit(
    addresses: Sequence[str],
    clients: int,
    row: MakeRow,
    goes_on: GoesOn,
    answers: Answers,
    credentials: Credentials = ANONYMOUS,
) -> None:
    """Runs tasks that commit one row at a time, over one connection to each address."""
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(
                AsyncClient(address, tls=credentials.tls, token=credentials.token)
            )
            for address in addresses
        ]
        tasks = (connections[number % len(connections)] for number in range(clients))
        await asyncio.gather(
            *(commit_rows(client, lambda: [row()], goes_on, answers) for client in tasks)
        )


async def stream(
    addresses: Sequence[str],
    streams: int,
    row: MakeRow,
    goes_on: GoesOn,
    answers: Answers,
    credentials: Credentials = ANONYMOUS,
) -> None:
    """Streams batches of transactions of one row, over one connection to each address."""

    def batches() -> Iterator[list[KeyAndValue]]:
        while goes_on() or not answers.certified:
            yield [row() for _ in range(BATCH_TRANSACTIONS)]

    channels = [open_aio_channel(address, credentials) for address in addresses]
    try:
        used = (channels[number % len(channels)] for number in range(streams))
        await asyncio.gather(*(stream_batches(channel, batches(), answers) for channel in used))
    finally:
        for channel in channels:
            await channel.close(None)


async def commit_rows(
    client: AsyncClient, rows: MakeRows, goes_on: GoesOn, answers: Answers
) -> None:
    """Commits what `rows` makes, time and again, on the newest version that the client knows."""
    await _learn_version(client)
    while goes_on() or not answers.certified:
        began = time.perf_counter()
        try:
            async with client.transaction(snapshot_version=client.version) as transaction:
                for row in rows():
                    transaction.put(*row)
        except CertificationConflict:
            answers.rejected += 1
        except TransactionTooOld:
            answers.rejected += 1
            await _learn_version(client)
        else:
            answers.certified += 1
            answers.latencies_ms.append((time.perf_counter() - began) * 1e3)


async def stream_batches(
    channel: grpc.aio.Channel, batches: Iterable[Sequence[KeyAndValue]], answers: Answers
) -> None:
    """Certifies batches, each row in a transaction of its own, and keeps `STREAM_MESSAGES` batches
    unanswered.
    """
    opened = await store_pb2_grpc.StoreServiceStub(channel).OpenSnapshot(
        store_pb2.OpenSnapshotRequest()
    )
    version = opened.version
    stub = certification_pb2_grpc.CertificationServiceStub(channel)
    call: grpc.aio.StreamStreamCall[
        certification_pb2.CertifyStreamRequest, certification_pb2.CertifyStreamResponse
    ] = stub.CertifyStream(None)
    sent: list[float] = []

    async def answer() -> None:
        nonlocal version
        response = await call.read()
        assert isinstance(response, certification_pb2.CertifyStreamResponse), "stream ended early"
        answers.latencies_ms.append((time.perf_counter() - sent.pop(0)) * 1e3)
        for outcome in response.outcomes:
            if outcome.verdict == VERDICT_CERTIFIED:
                answers.certified += 1
                version = max(version, outcome.version)
            else:
                answers.rejected += 1

    for batch in batches:
        request = certification_pb2.CertifyStreamRequest()
        for key, value in batch:
            changes = Changes(put_keys=[key], put_values=[value])
            request.transactions.add(
                snapshot_version=version,
                write_set=changed_items(changes),
                changes=changes.SerializeToString(),
            )
        sent.append(time.perf_counter())
        await call.write(request)
        if len(sent) == STREAM_MESSAGES:
            await answer()
    while sent:
        await answer()
    await call.done_writing()


async def _learn_version(client: AsyncClient) -> None:
    """Gives a client the newest version of its member."""
    await (await client.transaction()).rollback()
