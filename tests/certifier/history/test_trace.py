"""Traces: what comes out for each line, and what is said of a line that is none.

Method: the script tests/testdata/traces.txt has lines and their answers; `A` and `B` stand for the
UUIDs of the group and of another source.
"""

import json
from pathlib import Path

import pytest

from groupcert.certifier.core import Certifier
from groupcert.certifier.errors import InvalidTrace
from groupcert.certifier.history.trace import LINE_CHARACTERS_MAX, WRITE_SET_ITEMS_MAX, Replay
from tests.certifier.histories import GROUP, OTHER, options
from tests.datadriven import Command, run_script

SCRIPT = Path(__file__).parents[2] / "testdata" / "traces.txt"
TRANSACTION = (
    '{"type":"transaction","member":"m1","session":"7","gtid":null,"snapshot_version":"",'
    '"write_set":["shop.orders/PRIMARY/42"],"local":false}'
)


def full(text: str) -> str:
    """Returns a line with the UUIDs that a script's short names stand for."""
    return text.replace('"A:', f'"{GROUP}:').replace('"B:', f'"{OTHER}:')


def replay(command: Command) -> str:
    """replay [observer=]: lines of a trace; `T {...}` is a usual transaction with other fields."""
    observer, answers = command.arguments.get("observer"), []
    replay = Replay(Certifier(options(learn=True)), observer)
    for line in command.body:
        text = full(line)
        if line[0] == "T":
            text = json.dumps(json.loads(TRANSACTION) | json.loads(text[2:] or "{}"))
        try:
            answer = replay.replay(text)
        except InvalidTrace as error:
            return str(error)
        answers.append(json.dumps(answer))
    text = "\n".join([*answers, str(replay.summary).removeprefix("ReplaySummary")])
    return text.replace(GROUP, "A").replace(OTHER, "B")


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    run_script(SCRIPT, {"replay": replay}, rewrite=rewrite)


@pytest.mark.parametrize(
    ("text", "problem", "expected"),
    [
        ("{", "it is not JSON (", "one JSON object a line"),
        ("[" * 100_000, "it is not JSON (", "one JSON object a line"),
        (" " * (LINE_CHARACTERS_MAX + 1) + "x", "it has 67108866 characters", "at most 67108864"),
        (
            TRANSACTION.replace("[", "[" + '"a",' * WRITE_SET_ITEMS_MAX),
            "write_set has 1000001 items",
            "at most 1000000 a transaction",
        ),
    ],
    ids=["broken", "deep", "long", "many items"],
)
def test_a_line_that_cannot_be_taken_is_named(text: str, problem: str, expected: str) -> None:
    replay = Replay(Certifier(options(learn=True)))
    replay.replay(TRANSACTION)
    with pytest.raises(InvalidTrace) as caught:
        replay.replay(text)
    assert caught.value.line == 2
    assert caught.value.problem.startswith(problem)
    assert expected in caught.value.expected
