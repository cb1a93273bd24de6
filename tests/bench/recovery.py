"""A member that lost its disk, and one that was away: how they come back, on this machine.

Two ways back: a copy of a donor's state while clients commit at the donor (how long it takes, and
what it does to their commits), and the log (transactions a second). Bounds: the copy is read once
for its checksums, sent, and read once more; the log is read, certified and applied on one core.
"""

import asyncio
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial

import grpc.aio
import uvloop

from groupcert.certifier.errors import NotServing
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.v1 import group_pb2
from tests.bench.clients import (
    BATCH_TRANSACTIONS,
    Answers,
    commit,
    random_row,
    stream_batches,
)
from tests.bench.harness import Document, Load, Run, machine, scratch
from tests.integration.waiting import wait_for

DONOR, JOINER = "m1", "m2"
CLIENTS = 4
RATES = {"a copy with at most 100 MiB/s": 100 << 20, "a copy without a limit": 0}
"""Bytes per second at most of the copies; 0: no limit."""
VALUE_BYTES, SMALL_VALUE_BYTES = 4_000, 100
BACK_SECONDS_MAX = 300.0
CALM_SECONDS = 10.0


def recovery(run: Run, size: int = 550_000_000, transactions: int = 400_000) -> Document:
    """Brings a member back by a donor's copy, and one by the log.

    Args:
        size: Bytes of rows; the copy has them twice, as the binary log has them, too.
        transactions: That the member that was away lacks.
    """
    copies = [Load(name, partial(_by_copy, size, rate)) for name, rate in RATES.items()]
    by_log = Load("the log", partial(_by_log, transactions))
    results = run.measure([*copies, by_log], nullcontext())
    return {
        "machine": machine(),
        "copies": [results[name][0] for name in RATES if name in results],
        "log": results.get(by_log.name, [None])[0],
    }


def _by_copy(size: int, rate: int, _: None) -> Document:
    """Measures a copy.

    `seconds`: from the joiner's start to ONLINE; `copy_seconds`: from the choice of its donor to
    a verified copy. `stall_ms`: how long the donor did nothing else while it made the copy.
    `before`, `during`: commits of one row at the donor, and their latencies.
    """
    with _group({"recovery_bytes_per_second_max": rate}) as group:
        uvloop.run(_fill(group, size // VALUE_BYTES, VALUE_BYTES))
        before = _commits_until(group, partial(time.sleep, CALM_SECONDS))
        group.kill(JOINER)
        shutil.rmtree(group.folder / JOINER)
        sequence = group.status(DONOR).observer.log_sequence
        options = JetStreamOptions(servers=(group.log_server.address,), group="local")
        asyncio.run(trim_log(options, sequence))
        began = time.monotonic()
        group.start_member(JOINER, {"seeds": [group.addresses[DONOR]]})
        is_back = partial(_has, group, 0)
        back = partial(wait_for, "the member is back", is_back, BACK_SECONDS_MAX)
        during = _commits_until(group, back)
        seconds = time.monotonic() - began
        chosen, copied = (
            datetime.fromisoformat(_event(group, JOINER, name)["timestamp"])
            for name in ("donor_chosen", "recovery_copied")
        )
        opened = _event(group, DONOR, "copy_opened")
    return {
        "bytes": int(opened["bytes"]),
        "bytes_per_second_max": rate,
        "seconds": round(seconds, 2),
        "copy_seconds": round((copied - chosen).total_seconds(), 2),
        "stall_ms": float(opened["stall_ms"]),
        "before": before,
        "during": during,
    }


def _by_log(transactions: int, _: None) -> Document:
    """Measures the log; `seconds`: from the first sign of life to ONLINE with all applied."""
    with _group({}) as group:
        group.kill(JOINER)
        before = group.status(DONOR).observer
        uvloop.run(_fill(group, transactions, SMALL_VALUE_BYTES))
        after = group.status(DONOR).observer
        group.start_member(JOINER)
        wait_for("the member answers", lambda: _has(group, None))
        began = time.monotonic()
        version = after.certified_version
        wait_for("the member is back", lambda: _has(group, version), BACK_SECONDS_MAX)
        seconds = time.monotonic() - began
    lacked = after.certified_version - before.certified_version
    return {
        "transactions": lacked,
        "messages": after.log_sequence - before.log_sequence,
        "seconds": round(seconds, 2),
        "transactions_per_second": round(lacked / seconds, 1),
    }


@contextmanager
def _group(settings: dict[str, object]) -> Iterator[LocalGroup]:
    """Starts two members in a folder that goes with them."""
    given = {"workers": 0, **settings}
    with scratch() as folder, LocalGroup(folder / "group", members=2, settings=given) as group:
        yield group


async def _fill(group: LocalGroup, rows: int, value_bytes: int) -> None:
    """Commits so many rows at the donor, each in a transaction of its own."""
    chance, answers = random.Random(1), Answers()
    batches = (
        [
            (b"row/%d" % number, chance.randbytes(value_bytes))
            for number in range(first, min(first + BATCH_TRANSACTIONS, rows))
        ]
        for first in range(0, rows, BATCH_TRANSACTIONS)
    )
    async with grpc.aio.insecure_channel(group.addresses[DONOR]) as channel:
        await stream_batches(channel, batches, answers)
    assert answers.certified > 0.99 * rows, f"{answers.certified} of {rows} rows are there"


def _commits_until(group: LocalGroup, wait: Callable[[], object]) -> Document:
    """Has some clients commit one row at a time at the donor until `wait` returns."""

    async def run() -> Document:
        answers, stopped = Answers(), asyncio.Event()
        row, donor = random_row(1, b"client/%d"), [group.addresses[DONOR]] * CLIENTS
        work = commit(donor, CLIENTS, row, lambda: not stopped.is_set(), answers)
        committing = asyncio.create_task(work)
        try:
            await asyncio.to_thread(wait)
        finally:
            stopped.set()
        await committing
        return {"commits": answers.certified, **answers.latencies()}

    return uvloop.run(run())


def _has(group: LocalGroup, version: int | None) -> bool:
    """True if the joiner is ONLINE, and has applied a version; None: if it answers."""
    with suppress(NotServing):
        status = group.status(JOINER).observer
        online = status.state == group_pb2.MEMBER_STATE_ONLINE
        return version is None or (online and status.committed_version >= version)
    return False


def _event(group: LocalGroup, name: str, event: str) -> Document:
    """Returns the newest line of a member's log under a name."""
    lines = (group.folder / f"{name}.log").read_text().splitlines()
    document: Document = json.loads([line for line in lines if f'"{event}"' in line][-1])
    return document
