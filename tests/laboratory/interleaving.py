"""Runs the workloads of many processes on one thread against the reference store, by dice alone.

The same seed gives the same history. The simulation runs the same processes in its own way: it
takes `Process.transaction()`, and sends each answer when its group has one.
"""

import random
from collections.abc import Sequence

from tests.laboratory.history import History, Workload
from tests.laboratory.plans import ALL_WORKLOADS, Process
from tests.laboratory.reference_store import MEMBERS, ReferenceStore, StoreSession
from tests.laboratory.transactions import Answer, Running

PROCESSES = 6


def interleave(
    seed: int,
    *,
    transactions: int,
    workloads: Sequence[Workload] = ALL_WORKLOADS,
    processes: int = PROCESSES,
) -> History:
    """The history of so many transactions, final states included."""
    dice = random.Random(seed)
    store = ReferenceStore(dice)
    history = History(seed=seed, workloads=workloads)
    ticks = 0

    def clock_ms() -> int:
        return ticks

    clients = [Process(number, workloads, dice, clock_ms) for number in range(processes)]
    sessions = [StoreSession(store, number) for number in range(processes)]
    running: list[Running | None] = [None] * processes
    answers: list[Answer | None] = [None] * processes
    begun = 0
    while begun < transactions or any(running):
        ticks += 1
        number = dice.randrange(processes)
        transaction = running[number]
        try:
            if transaction is not None and (answer := answers[number]) is not None:
                request = transaction.send(answer)
            elif begun < transactions:
                running[number] = transaction = clients[number].transaction()
                request = next(transaction)
                begun += 1
            else:
                continue
            answers[number] = sessions[number].answer(request)
        except StopIteration as ended:
            history.operations.append(ended.value)
            running[number] = answers[number] = None
    history.finals = [store.final(member) for member in MEMBERS]
    return history
