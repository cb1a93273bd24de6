"""Clients of benchmarks: they stream batches to a member, or commit one row at a time."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc.aio

from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.load import percentile
from groupcert.members.errors.transactions import CertificationConflict, TransactionTooOld
from groupcert.members.wire.row_changes import changed_items
from groupcert.v1 import certification_pb2, certification_pb2_grpc, store_pb2, store_pb2_grpc
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes

ROWS = 100_000
VALUE_BYTES = 100
BATCH_TRANSACTIONS = 64
STREAM_MESSAGES = 4
"""Messages that each stream keeps unanswered."""


@dataclass(slots=True)
class Load:
    """What the clients saw. A load lasts until its time is up and it has a commit: on a machine
    that is nearly still, too, there is something to measure.
    """

    certified: int = 0
    rejected: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def latencies(self) -> dict[str, float]:
        """Returns median, 99th percentile and maximum of the latencies, in ms."""
        ordered = sorted(self.latencies_ms)
        found = statistics.median(ordered), percentile(ordered, 99), ordered[-1]
        return dict(zip(("p50", "p99", "max"), (round(each, 3) for each in found), strict=True))


def change(key: bytes, value: bytes) -> Changes:
    """Returns the change of one row."""
    return Changes(put_keys=[key], put_values=[value])


async def commit_rows(
    client: AsyncClient, make: Callable[[], KeyAndValue], goes_on: Callable[[], bool], load: Load
) -> None:
    """Commits one row at a time, on top of the newest version that the client knows."""
    await _learn_version(client)
    while goes_on() or not load.certified:
        began = time.perf_counter()
        try:
            async with client.transaction(snapshot_version=client.version) as transaction:
                transaction.put(*make())
        except CertificationConflict:
            load.rejected += 1
        except TransactionTooOld:
            load.rejected += 1
            await _learn_version(client)
        else:
            load.certified += 1
            load.latencies_ms.append((time.perf_counter() - began) * 1e3)


async def stream_batches(
    channel: grpc.aio.Channel, batches: Iterable[list[Changes]], load: Load
) -> None:
    """Certifies batches, and keeps `STREAM_MESSAGES` of them unanswered."""
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
        load.latencies_ms.append((time.perf_counter() - sent.pop(0)) * 1e3)
        for outcome in response.outcomes:
            if outcome.verdict == VERDICT_CERTIFIED:
                load.certified += 1
                version = max(version, outcome.version)
            else:
                load.rejected += 1

    for batch in batches:
        request = certification_pb2.CertifyStreamRequest()
        for changes in batch:
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
