"""What a group takes of disk, memory and processor: a transaction, and at rest.

Three log servers that sync every write and three members on loopback, with certification logs; for
each load another group, whose folders are looked at when it is settled and stopped. A transaction
writes one row of 100,000, with a key of 10 bytes and a value of random bytes, which do not
compress. `deploy/README.md` has the numbers of `results/sizing.json`.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from groupcert import Client
from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.relay_queue import RelayQueue
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.position import position_of
from groupcert.certifier.storage.store import Family, Store, StoreIdentity
from groupcert.members.demo.group_checks import settle
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.wire.row_changes import encode_changes
from tests.bench.clients import (
    BATCH_TRANSACTIONS,
    Answers,
    Work,
    commit,
    for_seconds,
    random_row,
    stream,
)
from tests.bench.harness import Clock, Document, Load, Run, circumstances, scratch
from tests.log_servers import NatsServers

SEED = 1
CLIENTS, STREAMS = 8, 3
LOADS = (
    (f"{CLIENTS} clients, a row a commit", partial(commit, clients=CLIENTS), 100),
    ("streams of batches of 64", partial(stream, streams=STREAMS), 100),
    ("streams of batches of 64", partial(stream, streams=STREAMS), 1_000),
)
"""Clients, and bytes of a value."""
KEY = b"row/%06d"
FILE_SECONDS = 10
"""After which the certification log's rows are in a file."""
CALM_SECONDS = 5
RELAY_ENTRIES = 100_000
GROUP = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MIB = 1 << 20


def sizing(run: Run, seconds: float = 20.0) -> Document:
    """Measures the bytes of a transaction in each place, and processes at rest.

    A second group on the same log servers shows what one more costs at rest.

    Args:
        seconds: Of each load, and of rest, when nobody is connected.
    """
    rest = Load("at rest", partial(_rest, seconds))
    loads = [
        Load(f"{name}, {size} bytes", partial(_loaded, name, work, size, seconds))
        for name, work, size in LOADS
    ]
    relay = [
        Load(f"relay queue, {size} bytes", partial(_relay, size))
        for size in sorted({size for *_, size in LOADS})
    ]
    results = run.measure([rest, *loads, *relay], scratch())
    return {
        **circumstances(),
        "seed": SEED,
        "at_rest": results.get(rest.name, [{}])[0],
        "loads": [results[load.name][0] for load in loads if load.name in results],
        "relay_queue": [results[load.name][0] for load in relay if load.name in results],
    }


def _loaded(
    name: str,
    work: Work,
    value_bytes: int,
    seconds: float,
    parent: Path,
) -> Document:
    """Returns the bytes that a transaction takes in each place, after a load."""
    with scratch(parent) as folder:
        with NatsServers(folder / "log") as logs:
            with LocalGroup(
                folder / "members",
                settings={**logs.settings, "certification_log_file_seconds": FILE_SECONDS},
                certification_logs=folder / "decisions",
            ) as group:
                addresses = list(group.addresses.values())
                row, goes_on = random_row(value_bytes, KEY, SEED), for_seconds(seconds)
                asyncio.run(work(addresses, row=row, goes_on=goes_on, answers=Answers()))
                with ExitStack() as stack:
                    settle([stack.enter_context(Client(each)) for each in addresses])
                while (status := group.status("m2").observer).certification_log_waiting_rows:
                    time.sleep(0.1)
                (account,) = logs.page("log1", "jsz?streams=1&accounts=1")["account_details"]
                (log,) = account["stream_detail"]
                memory = {
                    "member_mib": _mib(each.pid for each in group.processes.values()),
                    "log_server_mib": _mib(each.pid for each in logs.processes.values()),
                }
        with Store(folder / "members" / "m2", StoreIdentity(group="local", member="m2")) as store:
            store.flush_tables()
            families = store.property("total-sst-files-size").items()
        places = {
            "log, each server": log["state"]["bytes"],
            "log, folder of a server": _bytes_of(folder / "log" / "log2"),
            "binary log": status.binary_log_bytes,
            "certification log": _bytes_of(folder / "decisions" / "m2"),
            **{f"store, {family.value}": size for family, size in families},
            "data folder": _bytes_of(folder / "members" / "m2"),
        }
    count = status.committed_version
    return {
        "load": name,
        "value_bytes": value_bytes,
        "transactions": count,
        "transactions_a_message": round(count / log["state"]["messages"], 1),
        "bytes_a_transaction": {place: round(size / count, 1) for place, size in places.items()},
        **memory,
    }


def _relay(value_bytes: int, folder: Path) -> Document:
    """Returns the bytes on disk of a transaction that waits in the relay queue."""
    row = random_row(value_bytes, KEY, SEED)

    def entry(number: int) -> RelayEntry:
        key, value = row()
        payload, gtid = encode_changes([key], [value]), Gtid(GROUP, number)
        return RelayEntry(position_of(number, 0), number, gtid, number, number + 1, False, payload)

    identity = StoreIdentity(group="bench", member="m1")
    with Store(folder / f"relay-{value_bytes}", identity) as store:
        queue = RelayQueue(store)
        for first in range(1, RELAY_ENTRIES + 1, BATCH_TRANSACTIONS):
            batch = store.batch()
            queue.append(batch, [entry(first + place) for place in range(BATCH_TRANSACTIONS)])
            store.write(batch)
            queue.written()
        store.flush_tables()
        size = store.property("total-sst-files-size")[Family.RELAY]
    return {"value_bytes": value_bytes, "bytes_a_transaction": round(size / RELAY_ENTRIES, 1)}


def _rest(seconds: float, folder: Path) -> Document:
    """Returns memory and processor of processes that have nothing to do, with one group and with
    two.
    """
    with NatsServers(folder / "rest") as logs, ExitStack() as stack:
        members: list[int] = []
        found: Document = {}
        for count, name in enumerate(("shop", "billing"), 1):
            settings = {**logs.settings, "group": name}
            group = stack.enter_context(LocalGroup(folder / name, settings=settings))
            members += [process.pid for process in group.processes.values()]
            time.sleep(CALM_SECONDS)
            found[f"groups: {count}"] = {
                "members": _at_rest(members, seconds),
                "log_servers": _at_rest([each.pid for each in logs.processes.values()], seconds),
            }
        return found


def _at_rest(pids: Sequence[int], seconds: float) -> Document:
    clock = Clock(processes=pids)
    time.sleep(seconds)
    share = clock.spent()[1]["processes"] / seconds / len(pids)
    return {
        "processes": len(pids),
        "mib": _mib(pids),
        "percent_of_a_core": round(100 * share, 1),
    }


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mib(pids: Iterable[int]) -> float:
    """Returns the mean of the resident memory of processes."""
    sizes = [psutil.Process(pid).memory_info().rss / MIB for pid in pids]
    return round(statistics.fmean(sizes), 1)
