"""The workloads: what their transactions read and write, all by the dice that they are given.

The rule it keeps: whatever a transaction writes can be traced back to it. Elements, items and
tokens are made of its process and index, so that no two transactions ever write the same one.
"""

import random
from collections.abc import Callable, Sequence

from tests.laboratory.history import Workload
from tests.laboratory.transactions import Get, Plan, Planner, Put, Running, Start, transact

LISTS = 6
GENERATION_TRANSACTIONS = 40
"""Transactions of a process after which it turns to new lists: so they stay short."""
ACCOUNTS = 8
OPENING_BALANCE = 100
TOTAL = ACCOUNTS * OPENING_BALANCE
REGISTER_PAIRS = 3
BUCKETS = 4
PROCESSES_MAX = 1_000
WRITES_MAX = 10
FORGETFUL_PROCESSES = 4
"""Every so many processes, one does not ask for what it has seen before."""
LATEST = 0.1
"""How often a client asks for all that was ordered before."""

SNAPSHOT_WORKLOADS = tuple(map(Workload, ("append", "bank", "register", "set")))
SERIALIZABLE_WORKLOADS = (Workload("append", True), Workload("register", True))
"""Append in both modes: snapshot isolation allows what serializability does not."""
ALL_WORKLOADS = SNAPSHOT_WORKLOADS + SERIALIZABLE_WORKLOADS


def workloads_of(run: str) -> list[Workload]:
    """All of them, on rows that no other run has."""
    return [workload._replace(run=run) for workload in ALL_WORKLOADS]


class Process:
    """One client: a transaction after the other, each of a workload that the dice choose."""

    def __init__(
        self,
        number: int,
        workloads: Sequence[Workload],
        dice: random.Random,
        clock_ms: Callable[[], int],
        *,
        sends_writes: bool = False,
    ) -> None:
        """`sends_writes`: see `Start`."""
        assert 0 <= number < PROCESSES_MAX, f"process {number}: expected less than {PROCESSES_MAX}"
        self.number = number
        self.remembers = number % FORGETFUL_PROCESSES != FORGETFUL_PROCESSES - 1
        self._workloads = workloads
        self._dice = dice
        self._clock_ms = clock_ms
        self._sends_writes = sends_writes
        self._index = 0
        self._version = 0

    def transaction(self) -> Running:
        """The next transaction; it is one of the session's once it has ended."""
        workload = self._dice.choice(self._workloads)
        index, self._index = self._index, self._index + 1
        plan = PLANNERS[workload.kind](workload, self._dice, self.number, index)
        start = Start(
            workload=workload,
            process=self.number,
            index=index,
            version_min=self._version if self.remembers else 0,
            latest=self._dice.random() < LATEST,
            sends_writes=self._sends_writes,
        )
        operation = yield from transact(start, plan, self._clock_ms)
        self._version = max(self._version, operation.version, operation.snapshot_version)
        return operation


def token_of(process: int, index: int, write: int = 0) -> bytes:
    """The number that one write of a transaction is known by.

    >>> token_of(7, 12), token_of(7, 12, 1)
    (b'120070', b'120071')
    """
    assert write < WRITES_MAX, f"write {write}: expected less than {WRITES_MAX}"
    return b"%d" % ((index * PROCESSES_MAX + process) * WRITES_MAX + write)


def with_element(value: bytes | None, element: bytes) -> bytes:
    """A list with one element more.

    >>> with_element(None, b"1"), with_element(b"1", b"2")
    (b'1', b'1 2')
    """
    return value + b" " + element if value else element


def accounts(workload: Workload) -> list[bytes]:
    """The keys of a bank's accounts; one without a row holds the opening balance."""
    return [b"%saccount/%d" % (workload.prefix, number) for number in range(ACCOUNTS)]


def balance_of(value: bytes | None) -> int:
    """What an account holds."""
    return OPENING_BALANCE if value is None else int(value)


def pair_keys(workload: Workload, pair: int) -> tuple[bytes, bytes]:
    """The two registers of which at most one may be held at a time."""
    return b"%s%d/x" % (workload.prefix, pair), b"%s%d/y" % (workload.prefix, pair)


def plan_append(workload: Workload, dice: random.Random, process: int, index: int) -> Plan:
    """Reads some lists, or all of them, and appends to some, now and then twice to the same one."""
    generation = index // GENERATION_TRANSACTIONS
    keys = [b"%s%d/%d" % (workload.prefix, generation, slot) for slot in range(LISTS)]
    if reads_all := dice.random() < 0.2:
        yield Get(keys)
    steps = 0
    for _ in range(dice.randint(0 if reads_all else 1, 4)):
        # The first lists are drawn more often: they are where transactions meet.
        key = keys[min(dice.randrange(LISTS), dice.randrange(LISTS))]
        found = yield Get((key,))
        if dice.random() < 0.5:
            yield Put(key, with_element(found[key], token_of(process, index, steps)))
            steps += 1


def plan_bank(workload: Workload, dice: random.Random, process: int, index: int) -> Plan:
    """Moves money between two accounts, or reads all of them, or both."""
    del process, index
    keys = accounts(workload)
    if audits := dice.random() < 0.3:
        yield Get(keys)
    if not audits or dice.random() < 0.5:
        source, target = dice.sample(keys, 2)
        amount = dice.randint(1, 9)
        found = yield Get((source, target))
        yield Put(source, b"%d" % (balance_of(found[source]) - amount))
        yield Put(target, b"%d" % (balance_of(found[target]) + amount))


def plan_register(workload: Workload, dice: random.Random, process: int, index: int) -> Plan:
    """Takes one register of a pair if neither is held, and otherwise frees what is held."""
    keys = pair_keys(workload, dice.randrange(REGISTER_PAIRS))
    found = yield Get(keys)
    held = [key for key in keys if found[key]]
    if held:
        yield Put(dice.choice(held), None if dice.random() < 0.5 else b"")
    else:
        yield Put(dice.choice(keys), token_of(process, index))


def plan_set(workload: Workload, dice: random.Random, process: int, index: int) -> Plan:
    """Adds an item, in a row of its own or to a bucket that others change, too."""
    item = token_of(process, index)
    if dice.random() < 0.5:
        yield Put(b"%sitem/%s" % (workload.prefix, item), item)
    else:
        bucket = b"%sbucket/%d" % (workload.prefix, dice.randrange(BUCKETS))
        found = yield Get((bucket,))
        yield Put(bucket, with_element(found[bucket], item))


PLANNERS: dict[str, Planner] = {
    "append": plan_append,
    "bank": plan_bank,
    "register": plan_register,
    "set": plan_set,
}
