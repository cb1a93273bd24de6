"""Processors: activities of a simulation, and the queue in which they wait for a processor.

First come, first served. An activity of the applier needs the interpreter too: it queues for that,
and then for a processor, as a thread that the system has put aside keeps Python's interpreter lock.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

What = TypeVar("What")


class Kind(IntEnum):
    """What a step of an activity needs."""

    WAIT = 0
    APPLIER = 1
    SERVER = 2
    VISIBLE = 3
    """Nothing: the next job of a group is visible."""


class Step(NamedTuple):
    """A step, and its time in microseconds."""

    kind: Kind
    time_us: int


_NOT_BEGUN = Step(Kind.WAIT, 0)


class Activity(Generic[What]):
    """What is carried out, in steps, one after the other."""

    __slots__ = ("is_queued", "step", "steps", "what")

    def __init__(self, what: What, steps: Iterator[Step]) -> None:
        self.what = what
        self.steps = steps
        self.step = _NOT_BEGUN
        self.is_queued = False


class Processors(Generic[What]):
    """Keeps who uses a processor and who waits for one; whoever drives it has the clock.

    1. `ask` for the step of an activity: if it returns true, the step begins.
    2. `release` when such a step ends: it returns the activities whose steps begin now.
    """

    def __init__(self, cores: int | None, handover_us: int = 0) -> None:
        self._free = float("inf") if cores is None else cores
        self._handover_us = handover_us
        self._is_interpreting = False
        self._for_interpreter: deque[Activity[What]] = deque()
        self._for_core: deque[Activity[What]] = deque()

    def ask(self, activity: Activity[What]) -> bool:
        """Takes what the activity's step needs, or queues it."""
        if activity.step.kind == Kind.APPLIER:
            if self._is_interpreting:
                self._for_interpreter.append(activity)
                return False
            self._is_interpreting = True
        if not self._free:
            self._for_core.append(activity)
            return False
        self._free -= 1
        return True

    def release(self, step: Step) -> list[Activity[What]]:
        """Gives back what an ended step had."""
        self._free += 1
        if step.kind == Kind.APPLIER:
            self._is_interpreting = bool(self._for_interpreter)
            if self._for_interpreter:
                next_one = self._for_interpreter.popleft()
                time_us = next_one.step.time_us + self._handover_us
                next_one.step = Step(Kind.APPLIER, time_us)
                self._for_core.append(next_one)
        begun = []
        while self._free and self._for_core:
            self._free -= 1
            begun.append(self._for_core.popleft())
        return begun
