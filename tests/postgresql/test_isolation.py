"""The checker of histories finds each anomaly in a history made by hand, and nothing in good ones.

A history is text, one transaction a line: who, its steps, what it was told if not `committed`.
"""

import re
from pathlib import Path

import pytest

from tests.postgresql.history import Append, Operation, Read, Step, write_history
from tests.postgresql.isolation import Found, check
from tests.postgresql.told import Told

STEP = re.compile(r"r (\d+) \[([\d ]*)\]|append (\d+) (\d+)")


def found(text: str, **final: tuple[int, ...]) -> Found:
    """Checks a history; `final` are the lists at the end: `l1=(1, 2)`."""
    operations = [operation(line) for line in text.strip().splitlines()]
    return check(operations, {int(name[1:]): values for name, values in final.items()})


def operation(line: str) -> Operation:
    """Returns the transaction of a line."""
    client, _, rest = line.strip().partition(": ")
    words = rest.rpartition(" ")[2]
    told = Told(words) if words in set(Told) else Told.COMMITTED
    steps: list[Step] = [
        Append(int(key), int(value)) if key else Read(int(read), tuple(map(int, values.split())))
        for read, values, key, value in STEP.findall(rest)
    ]
    return Operation(client, steps, told)


def test_a_serial_history_is_right() -> None:
    history = """
        a: append 1 1, r 1 [1], append 2 2
        b: r 1 [1], r 2 [2], append 1 3, append 1 4, r 1 [1 3 4]
        c: r 2 [2], r 3 []
        d: append 1 5 refused
        e: append 2 6 unknown
        f: append 2 7 unknown
    """
    assert found(history, l1=(1, 3, 4), l2=(2, 7)) == Found([], has_write_skew=False)


def test_write_skew_is_allowed_and_told() -> None:
    history = """
        a: r 1 [], append 2 1
        b: r 2 [], append 1 2
    """
    assert found(history, l1=(2,), l2=(1,)) == Found([], has_write_skew=True)


def test_a_read_only_transaction_between_two_writers_is_allowed() -> None:
    """It makes the history not serializable; snapshot isolation has it."""
    history = """
        a: r 1 [], r 2 [], append 1 1
        b: r 2 [], append 2 2
        c: r 1 [], r 2 [2]
    """
    assert found(history, l1=(1,), l2=(2,)) == Found([], has_write_skew=True)


@pytest.mark.parametrize(
    ("name", "history", "final"),
    [
        ("lost append", "a: append 1 1\nb: append 1 2", {"l1": (2,)}),
        ("lost append", "a: append 1 1, append 2 2 unknown", {"l1": (1,)}),
        ("doubled append", "a: append 1 1", {"l1": (1, 1)}),
        ("list 1 has 7", "a: append 1 1", {"l1": (1, 7)}),
        ("two orders", "a: append 1 1\nb: append 1 2\nc: r 1 [2]", {"l1": (1, 2)}),
        ("G1a", "a: append 1 1 refused\nb: r 1 [1]", {"l1": ()}),
        ("G1a", "a: append 1 1 refused\nb: append 1 2", {"l1": (1, 2)}),
        ("G1b", "a: append 1 1, append 1 2\nb: r 1 [1]", {"l1": (1, 2)}),
        ("not one snapshot", "a: append 1 1\nb: r 1 [], r 1 [1]", {"l1": (1,)}),
        ("not one snapshot", "a: append 1 1, r 1 []", {"l1": (1,)}),
        (
            "G0",
            "a: append 1 1, append 2 2\nb: append 1 3, append 2 4",
            {"l1": (1, 3), "l2": (4, 2)},
        ),
        (
            "G1c",
            "a: append 1 1, r 2 [2]\nb: append 2 2, r 1 [1]",
            {"l1": (1,), "l2": (2,)},
        ),
        ("lost update", "a: r 1 [], append 1 1\nb: r 1 [], append 1 2", {"l1": (1, 2)}),
        (
            "lost update",
            "z: append 1 9\na: r 1 [9], append 1 1\nb: r 1 [9], append 1 2",
            {"l1": (9, 1, 2)},
        ),
        (
            "G-single",
            "a: append 1 1, append 2 2\nb: r 1 [1], r 2 []",
            {"l1": (1,), "l2": (2,)},
        ),
        (
            "long fork",
            "a: append 1 1\nb: append 2 2\nc: r 1 [1], r 2 []\nd: r 1 [], r 2 [2]",
            {"l1": (1,), "l2": (2,)},
        ),
    ],
)
def test_an_anomaly_is_found(name: str, history: str, final: dict[str, tuple[int, ...]]) -> None:
    first, *_ = found(history, **final).problems
    assert first.startswith(name)


def test_a_cycle_says_why_each_transaction_is_before_the_next() -> None:
    history = """
        a: append 1 1
        b: append 2 2
        c: r 1 [1], r 2 []
        d: r 1 [], r 2 [2]
    """
    (problem,) = found(history, l1=(1,), l2=(2,)).problems
    assert sorted(problem.removeprefix("long fork: ").split("; ")[1:]) == [
        "which read 1 of list 1: c (r 1 [1], r 2 [])",
        "which read 2 of list 2: d (r 1 [], r 2 [2])",
        "which replaced its read of the empty list of list 1: a (append 1 1)",
        "which replaced its read of the empty list of list 2: b (append 2 2)",
    ]


def test_a_history_is_written_for_people(tmp_path: Path) -> None:
    write_history(tmp_path / "history.jsonl", [operation("a: append 1 1, r 1 [1] unknown")])
    assert (tmp_path / "history.jsonl").read_text() == (
        '{"client": "a", "told": "unknown", "steps": [[1, 1], [1, [1]]]}\n'
    )
