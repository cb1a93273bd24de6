"""One transaction of a workload as its client runs it: requests go out, answers come in.

The rule it keeps: no I/O, no clock, no threads. Whoever runs the generator takes each request to a
group, in a thread that waits or in a simulation that lets others act meanwhile, and sends the
answer. So the same transactions run against real members and against simulated ones.
"""

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from tests.laboratory.history import Conflict, Operation, Outcome, Step, Workload

KnownRows = Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Begin:
    """Take a snapshot that is not older than a version. Answer: `Opened`.

    `latest`: it has to have all that was ordered before it was asked for.
    """

    version_min: int
    latest: bool
    serializable: bool


@dataclass(frozen=True, slots=True)
class Get:
    """Read rows of the snapshot, as the transaction has changed them, if it has sent its writes.
    Answer: `Found`, with each of the keys.
    """

    keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Put:
    """Change a row, or delete it (None). Answer: `Found`, with nothing.

    Only whoever wants writes one by one is asked for it: see `Start.sends_writes`.
    """

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit changes; none: end the snapshot, and say that it committed. Answer: `Decision`.

    `read_keys` are the rows to certify beside the changed ones, of a serializable transaction.
    """

    writes: KnownRows
    read_keys: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Opened:
    """The snapshot is there, and the transaction has this identity."""

    member: str
    version: int
    transaction_id: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Rows; None where there is none."""

    values: KnownRows


@dataclass(frozen=True, slots=True)
class Decision:
    """How the transaction ended; the answer to any request that could not be met, too."""

    outcome: Outcome
    version: int = 0
    cause: str = ""
    gtid: str = ""
    conflict: Conflict | None = None


Request = Begin | Get | Put | Commit
Answer = Opened | Found | Decision
Plan = Generator[Get | Put, KnownRows, None]
"""What a workload does in one transaction: it gets rows, as it has changed them, and puts some."""
Running = Generator[Request, Answer, Operation]
Planner = Callable[[Workload, random.Random, int, int], Plan]
"""Makes the plan of a process's transaction with an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known of a transaction before it begins.

    `sends_writes`: each write is a request of its own, and rows that were written are read as any
    other. Else the transaction keeps its writes until its commit.
    """

    workload: Workload
    process: int
    index: int
    version_min: int
    latest: bool
    sends_writes: bool = False


def transact(start: Start, plan: Plan, clock_ms: Callable[[], int]) -> Running:
    """Runs a plan as one transaction, and returns what there is to know of it."""
    invoked_ms = clock_ms()
    opened = Opened("", 0, b"")
    steps: list[Step] = []

    def ended(decision: Decision) -> Operation:
        return Operation(
            process=start.process,
            index=start.index,
            workload=start.workload.name,
            transaction_id=opened.transaction_id,
            member=opened.member,
            invoked_ms=invoked_ms,
            completed_ms=clock_ms(),
            version_min=start.version_min,
            latest=start.latest,
            snapshot_version=opened.version,
            steps=tuple(steps),
            outcome=decision.outcome,
            version=decision.version,
            cause=decision.cause,
            gtid=decision.gtid,
            conflict=decision.conflict,
        )

    answer = yield Begin(start.version_min, start.latest, start.workload.serializable)
    if isinstance(answer, Decision):
        return ended(answer)
    assert isinstance(answer, Opened), f"{answer} answers no begin"
    opened = answer
    writes: dict[bytes, bytes | None] = {}
    read_keys: dict[bytes, None] = {}
    wanted = next(plan, None)
    while wanted is not None:
        known: KnownRows = {}
        if isinstance(wanted, Put):
            writes[wanted.key] = wanted.value
            steps.append(Step(True, wanted.key, wanted.value))
            if start.sends_writes and isinstance(answer := (yield wanted), Decision):
                return ended(answer)
        else:
            kept = {} if start.sends_writes else writes
            missing = [key for key in wanted.keys if key not in kept]
            answer = (yield Get(missing)) if missing else Found({})
            if isinstance(answer, Decision):
                return ended(answer)
            assert isinstance(answer, Found), f"{answer} answers no get"
            read_keys.update(dict.fromkeys(key for key in missing if key not in writes))
            values = {**answer.values, **kept}
            known = {key: values[key] for key in wanted.keys}
            steps += [Step(False, key, value) for key, value in known.items()]
        wanted = _following(plan, known)
    answer = yield Commit(writes, list(read_keys) if start.workload.serializable else ())
    assert isinstance(answer, Decision), f"{answer} answers no commit"
    return ended(answer)


def _following(plan: Plan, known: KnownRows) -> Get | Put | None:
    """What a plan that has begun wants next, or None where it ends."""
    try:
        return plan.send(known)
    except StopIteration:
        return None
