"""What a group takes of disk, memory and processor: a transaction, and at rest.

Three log servers that sync every write and three members on loopback, with certification logs; for
each load another group, whose folders are looked at when it is settled and stopped. A transaction
writes one row of 100,000, with a key of 10 bytes and a value of random bytes, which do not
compress. At rest nobody is connected; a second group on the same log servers shows what one more
costs. `--results` writes `results/sizing.json`, whose numbers `deploy/README.md` has.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from groupcert import Client
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.position import position_of
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.benchmarks.clients import (
    BATCH_TRANSACTIONS,
    ROWS,
    Load,
    change,
    commit_rows,
    stream_batches,
)
from groupcert.members.benchmarks.machine import answer, circumstances
from groupcert.members.benchmarks.nats_servers import NatsServers
from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.checks import settle
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.security.credentials import ANONYMOUS
from groupcert.members.wire.channels import open_aio_channel
from groupcert.members.wire.row_changes import encode_changes
from groupcert.v1.transaction_pb2 import Changes

RESULTS = Path(__file__).parent / "results" / "sizing.json"
SEED = 1
CLIENTS = 8
STREAM = "streams of batches of 64"
COMMITS = f"{CLIENTS} clients, a row a commit"
LOADS = ((COMMITS, 100), (STREAM, 100), (STREAM, 1_000))
"""Clients, and bytes of a value."""
FILE_SECONDS = 10
"""After which the certification log's rows are in a file."""
RELAY_ENTRIES = 100_000
GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MIB = 1 << 20

Numbers = dict[str, object]


def measure(folder: Path, kind: str, value_bytes: int, seconds: float) -> Numbers:
    """Bytes that a transaction takes in each place, after a load."""
    with NatsServers(folder / "log") as logs:
        with LocalGroup(
            folder / "members",
            settings={**logs.settings, "certification_log_file_seconds": FILE_SECONDS},
            certification_logs=folder / "decisions",
        ) as group:
            run_load = _stream if kind == STREAM else _commit
            asyncio.run(run_load(group, value_bytes, time.monotonic() + seconds))
            with ExitStack() as stack:
                settle([stack.enter_context(Client(each)) for each in group.addresses.values()])
            while (status := group.status("m2").observer).certification_log_waiting_rows:
                time.sleep(0.1)
            transactions = status.committed_version
            stream = _stream_state(logs)
            memory = {
                "member_mib": _mean(_memory(each.pid) for each in group.processes.values()),
                "log_server_mib": _mean(_memory(each.pid) for each in logs.processes.values()),
            }
        decided = _bytes_of(folder / "decisions" / "m2")
        log_folder = _bytes_of(folder / "log" / "log2")
    with Store(folder / "members" / "m2", StoreIdentity(group="local", member="m2")) as store:
        store.flush_tables()
        families = {
            family.value: size for family, size in store.property("total-sst-files-size").items()
        }
    places = {
        "log, each server": stream["bytes"],
        "log, folder of a server": log_folder,
        "binary log": status.binary_log_bytes,
        "certification log": decided,
        **{f"store, {name}": size for name, size in families.items()},
        "data folder": _bytes_of(folder / "members" / "m2"),
    }
    return {
        "load": kind,
        "value_bytes": value_bytes,
        "transactions": transactions,
        "transactions_a_message": round(transactions / stream["messages"], 1),
        "bytes_a_transaction": {
            place: round(size / transactions, 1) for place, size in places.items()
        },
        **memory,
    }


def measure_relay(folder: Path, value_bytes: int) -> Numbers:
    """Bytes on disk of a transaction that waits in the relay queue."""
    chance = random.Random(SEED)
    with Store(folder, StoreIdentity(group="bench", member="m1")) as store:
        queue = RelayQueue(store)
        for first in range(1, RELAY_ENTRIES + 1, BATCH_TRANSACTIONS):
            batch = store.batch()
            numbers = range(first, first + BATCH_TRANSACTIONS)
            queue.append(batch, [_entry(number, chance, value_bytes) for number in numbers])
            store.write(batch)
            queue.written()
        store.flush_tables()
        size = store.property("total-sst-files-size")[Family.RELAY]
    return {"value_bytes": value_bytes, "bytes_a_transaction": round(size / RELAY_ENTRIES, 1)}


def measure_rest(folder: Path, seconds: float) -> Numbers:
    """Memory and processor of processes that have nothing to do, with one group and with two."""
    with NatsServers(folder / "log") as logs, ExitStack() as stack:
        members: list[int] = []
        found: Numbers = {}
        for count, name in enumerate(("shop", "billing"), 1):
            settings = {**logs.settings, "group": name}
            group = stack.enter_context(LocalGroup(folder / name, settings=settings))
            members += [process.pid for process in group.processes.values()]
            time.sleep(5)
            servers = [process.pid for process in logs.processes.values()]
            found[f"groups: {count}"] = {
                "members": _at_rest(members, seconds),
                "log_servers": _at_rest(servers, seconds),
            }
        return found


def _at_rest(pids: Sequence[int], seconds: float) -> Numbers:
    processes = [psutil.Process(pid) for pid in pids]
    before = [sum(each.cpu_times()[:2]) for each in processes]
    time.sleep(seconds)
    spent = [sum(each.cpu_times()[:2]) for each in processes]
    shares = (after - earlier for after, earlier in zip(spent, before, strict=True))
    return {
        "processes": len(pids),
        "mib": _mean(map(_memory, pids)),
        "percent_of_a_core": _mean(100 * share / seconds for share in shares),
    }


async def _commit(group: LocalGroup, value_bytes: int, deadline: float) -> None:
    chance = random.Random(SEED)

    def row() -> KeyAndValue:
        return _key(chance), chance.randbytes(value_bytes)

    clients = [AsyncClient(address) for address in group.addresses.values()]
    goes_on = _until(deadline)
    await asyncio.gather(
        *(commit_rows(clients[n % len(clients)], row, goes_on, Load()) for n in range(CLIENTS))
    )
    for client in clients:
        await client.close()


async def _stream(group: LocalGroup, value_bytes: int, deadline: float) -> None:
    chance = random.Random(SEED)
    goes_on = _until(deadline)

    def batches() -> Iterator[list[Changes]]:
        while goes_on():
            yield [
                change(_key(chance), chance.randbytes(value_bytes))
                for _ in range(BATCH_TRANSACTIONS)
            ]

    channels = [open_aio_channel(each, ANONYMOUS) for each in group.addresses.values()]
    await asyncio.gather(*(stream_batches(each, batches(), Load()) for each in channels))
    for channel in channels:
        await channel.close(None)


def _until(deadline: float) -> Callable[[], bool]:
    return lambda: time.monotonic() < deadline


def _key(chance: random.Random) -> bytes:
    return b"row/%06d" % chance.randrange(ROWS)


def _entry(number: int, chance: random.Random, value_bytes: int) -> RelayEntry:
    payload = encode_changes([_key(chance)], [chance.randbytes(value_bytes)])
    gtid = Gtid(GROUP, number)
    return RelayEntry(position_of(number, 0), number, gtid, number, number + 1, False, payload)


def _stream_state(logs: NatsServers) -> Mapping[str, int]:
    page = logs.page("log1", "jsz?streams=1&accounts=1")
    (account,) = page["account_details"]
    (stream,) = account["stream_detail"]
    state: Mapping[str, int] = stream["state"]
    return state


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _memory(pid: int) -> float:
    """Resident MiB of a process."""
    return float(psutil.Process(pid).memory_info().rss / MIB)


def _mean(numbers: Iterator[float]) -> float:
    found = list(numbers)
    return round(sum(found) / len(found), 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of each load")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULTS.name}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="groupcert-") as name:
        folder = Path(name)
        document = {
            **circumstances(),
            "seed": SEED,
            "at_rest": measure_rest(folder / "rest", options.seconds),
            "loads": [
                measure(folder / str(number), *load, options.seconds)
                for number, load in enumerate(LOADS)
            ],
            "relay_queue": [
                measure_relay(folder / f"relay-{size}", size)
                for size in sorted({size for _, size in LOADS})
            ],
        }
    answer(document, as_json=True, output=RESULTS if options.results else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
