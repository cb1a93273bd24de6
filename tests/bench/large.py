"""Commits of one large value and of many rows at a group of three members, and what small commits
beside them wait.

No two clients write the same row, so that a refusal is one of the group's making.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

from groupcert.members.client.async_client import AsyncClient
from groupcert.members.client.own_writes import KeyAndValue
from groupcert.members.demo.local_group import LocalGroup
from tests.bench.clients import Answers, GoesOn, MakeRows, commit_rows, for_seconds, run_beside
from tests.bench.group import settle
from tests.bench.harness import Clock, Document, Load, Run, circumstances, in_turns, scratch

KEYS = 20_000
"""Rows of one client, which it writes one after the other, and then again."""


class Kind(NamedTuple):
    """A transaction of a benchmark: so many rows of so many bytes."""

    name: str
    rows: int
    value_bytes: int


VALUE, ROWS, SMALL = Kind("value", 1, 100_000), Kind("rows", 1_000, 100), Kind("small", 1, 100)


def large(
    run: Run, seconds: float = 6.0, rounds: int = 1, clients: int = 4, small: int = 8
) -> Document:
    """Has clients commit a value of 100 KB each, then 1,000 rows each; alone, for the processor
    time of members, and with small commits beside them, for latencies.

    Args:
        seconds: How long each load lasts.
        rounds: Turns, of which each has a result.
        clients: How many commit large transactions.
        small: How many commit one row of 100 bytes beside them.
    """
    loads = [
        Load(f"{kind.name}{', small ones beside' * (beside > 0)}", partial(_load, seconds, counts))
        for beside in (0, small)
        for kind in (VALUE, ROWS)
        for counts in [{kind: clients, SMALL: beside}]
    ]
    results = run.measure(in_turns(loads, rounds), _group())
    by_load = [each for load in loads for each in results.get(load.name, [])]
    return {**circumstances(), "results": by_load}


@contextmanager
def _group() -> Iterator[LocalGroup]:
    with scratch() as folder, LocalGroup(folder / "group", settings={"workers": 0}) as group:
        yield group


def _load(seconds: float, counts: dict[Kind, int], group: LocalGroup) -> Document:
    settle(group)
    clock = Clock(
        members=[process.pid for process in group.processes.values()],
        log_server=[group.log_server.pid],
    )
    answers = {kind: Answers() for kind, clients in counts.items() if clients}
    addresses = list(group.addresses.values())
    run_beside(lambda goes_on: _commit(addresses, counts, goes_on, answers), for_seconds(seconds))
    settle(group)
    elapsed, took = clock.spent()
    kind = next(iter(counts))
    rows = kind.rows * answers[kind].certified
    alone = {} if counts[SMALL] else {"row": rows, "byte": rows * kind.value_bytes}
    return {
        "load": kind.name,
        "clients": {each.name: clients for each, clients in counts.items()},
        "seconds": round(elapsed, 2),
        **{
            f"cpu_us_per_{unit}": {
                part: round(spent / count * 1e6, 4) for part, spent in took.items()
            }
            for unit, count in alone.items()
        },
        **{each.name: _answered(found, elapsed) for each, found in answers.items()},
    }


def _answered(answers: Answers, elapsed: float) -> Document:
    return {
        "per_second": round(answers.certified / elapsed, 1),
        "rejected": answers.rejected,
        **answers.latencies(),
    }


async def _commit(
    addresses: Sequence[str],
    counts: dict[Kind, int],
    goes_on: GoesOn,
    answers: dict[Kind, Answers],
) -> None:
    """Runs the clients of each kind, over one connection of that kind to each address."""
    async with AsyncExitStack() as stack:
        tasks = []
        for kind, clients in counts.items():
            connections = [
                await stack.enter_async_context(AsyncClient(address)) for address in addresses
            ]
            for number in range(clients):
                client, rows = connections[number % len(connections)], _rows_of(kind, number)
                tasks.append(commit_rows(client, rows, goes_on, answers[kind]))
        await asyncio.gather(*tasks)


def _rows_of(kind: Kind, client: int) -> MakeRows:
    """Returns what makes the rows of a client's transactions, with bytes that do not compress."""
    chance, numbers = random.Random(client), count()

    def rows() -> list[KeyAndValue]:
        return [
            (
                b"%s/%d/%d" % (kind.name.encode(), client, next(numbers) % KEYS),
                chance.randbytes(kind.value_bytes),
            )
            for _ in range(kind.rows)
        ]

    return rows
