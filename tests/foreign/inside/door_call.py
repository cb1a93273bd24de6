"""Calls the group from a program's process, and notes what came of its tests.

What is in this folder is imported by programs of others, from `PYTHONPATH`: it imports nothing of
this project, whose package `tests` may have the name of theirs.
"""

import json
import os
from multiprocessing.connection import Client, Connection
from typing import Any

ERRORS_MAX = 10
_door: list[Connection] = []


def has_group() -> bool:
    """Whether the server is one of a group."""
    return "FOREIGN_DOOR" in os.environ


def ask(*call: object) -> Any:
    """Calls the group, and returns its answer."""
    if not _door:
        key = os.environ["FOREIGN_KEY"].encode()
        _door.append(Client(os.environ["FOREIGN_DOOR"], authkey=key))
    _door[0].send(call)
    is_done, result = _door[0].recv()
    assert is_done, result
    return result


def errors_of(error: BaseException | None) -> list[tuple[str | None, str]]:
    """Returns SQLSTATE and text of an exception and of those that led to it, that one last."""
    errors: list[tuple[str | None, str]] = []
    while error is not None and len(errors) < ERRORS_MAX:
        state = getattr(error, "sqlstate", None)
        errors.append((state, f"{type(error).__name__}: {error}"))
        error = error.__cause__ or error.__context__
    return errors[::-1]


def note(test: str, outcome: str, errors: list[tuple[str | None, str]]) -> None:
    """Writes a record into the file `FOREIGN_OUTCOMES`."""
    with open(os.environ["FOREIGN_OUTCOMES"], "a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "errors": errors}) + "\n")
