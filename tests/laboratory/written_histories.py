"""Histories written by hand, a line each transaction: what tests/testdata/laboratory is made of.

    T1.0 committed v=3 s=2: read x 1 2; write x 1 2 3
    final m1: x 1 2 3

A transaction is named by its process and index. Its claims: `v`, its version; `s`, its snapshot's;
`min`, what its session had seen; `latest`. One without claims has no id. Times follow the lines.
"""

from collections.abc import Sequence

from tests.laboratory.history import FinalState, History, Operation, Outcome, Step, Workload

MILLISECONDS = 10
"""From the beginning of a transaction to that of the next one."""


def written_history(workload: Workload, lines: Sequence[str]) -> History:
    """The history that the lines tell of."""
    history = History(seed=0, workloads=[workload])
    for number, line in enumerate(lines):
        head, _, body = line.partition(":")
        parts = [part.split() for part in body.split(";") if part.strip()]
        if head.startswith("final"):
            history.finals.append(_final(workload, head.split()[1], parts))
        else:
            history.operations.append(_operation(workload, head.split(), parts, number))
    return history


def _operation(
    workload: Workload, head: Sequence[str], parts: Sequence[Sequence[str]], number: int
) -> Operation:
    name, outcome, *claims = head
    process, _, index = name.removeprefix("T").partition(".")
    claimed = {key: int(value or 1) for key, _, value in (each.partition("=") for each in claims)}
    assert claimed.keys() <= {"v", "s", "min", "latest"}, f"{name}: no such claim: {claims}"
    return Operation(
        process=int(process),
        index=int(index),
        workload=workload.name,
        transaction_id=name.encode() if claims else b"",
        member="m1",
        invoked_ms=number * MILLISECONDS,
        completed_ms=number * MILLISECONDS + MILLISECONDS // 2,
        version_min=claimed.get("min", 0),
        latest="latest" in claimed,
        snapshot_version=claimed.get("s", 0),
        steps=tuple(
            Step(_is_write(verb), workload.prefix + key.encode(), _value(words))
            for verb, key, *words in parts
        ),
        outcome=Outcome(outcome),
        version=claimed.get("v", 0),
    )


def _final(workload: Workload, member: str, parts: Sequence[Sequence[str]]) -> FinalState:
    rows = {workload.prefix + key.encode(): " ".join(words).encode() for key, *words in parts}
    return FinalState(member=member, version=0, digest="", gtid_executed="", rows=rows)


def _is_write(verb: str) -> bool:
    assert verb in ("read", "write"), f"{verb}: a step is a read or a write"
    return verb == "write"


def _value(words: Sequence[str]) -> bytes | None:
    return " ".join(words).encode() if words else None
