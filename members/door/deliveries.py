"""Ends calls whose answers nobody takes.

gRPC waits for ever for a client that answers its pings and gives its windows no room. The rule it
keeps: an answer is taken within `TAKING_MS_MAX` and a second for each further MiB, or its call is
ended, and what gRPC holds of it is dropped.
"""

import asyncio
import gc
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from groupcert.members.errors.calls import AnswerNotTaken

TAKING_MS_MAX = 20_000
"""Milliseconds in which an answer of up to 1 MiB is taken: at 52 KB/s it is."""
LOOKS = 20
"""Looks at what is not taken within that time; one timer does for all."""
TASKS_AT_ONCE = 500
"""Tasks that are looked at before others have their turn."""
GRPC_WAITS = "_handle_cancellation_from_core"
"""The coroutine in which a task of gRPC waits for a call's end, beside the task of its handler."""
CallTask: TypeAlias = "asyncio.Task[Any]"
"""The task in which gRPC runs a call's handler."""


class _Delivery(NamedTuple):
    call: str
    caller: str
    bytes: int
    time_ms: float
    late_s: float
    """When it is late, in seconds of the loop's clock."""


class Deliveries:
    """Answers that gRPC has and nobody has taken yet; for one event loop."""

    def __init__(
        self, on_late: Callable[[str, AnswerNotTaken], None], time_ms_max: int = TAKING_MS_MAX
    ) -> None:
        """Calls `on_late` with the caller of each call that is ended."""
        self._on_late = on_late
        self._time_ms_max = time_ms_max
        self._open: dict[CallTask, _Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hanging_up: set[asyncio.Task[None]] = set()

    def begin(self, task: CallTask, call: str, caller: str, size: int) -> None:
        """Notes that gRPC has an answer of the call that runs in a task."""
        loop = asyncio.get_running_loop()
        time_ms = self._time_ms_max * (1 + (size >> 20) / 20)
        late_s = loop.time() + time_ms / 1000
        self._open[task] = _Delivery(call, caller, size, time_ms, late_s)
        if self._timer is None:
            self._look_later(loop)

    def end(self, task: CallTask) -> None:
        """Notes that it was taken, or that its call has ended."""
        self._open.pop(task, None)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._time_ms_max / 1000 / LOOKS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        late = [task for task, each in self._open.items() if each.late_s < now_s]
        for task in late:
            each = self._open.pop(task)
            error = AnswerNotTaken(call=each.call, bytes=each.bytes, time_ms=int(each.time_ms))
            self._on_late(each.caller, error)
        if late:
            hanging_up = asyncio.create_task(hang_up(late))
            self._hanging_up.add(hanging_up)
            hanging_up.add_done_callback(self._hanging_up.discard)
        if self._open:
            self._look_later(loop)


async def hang_up(tasks: Collection[CallTask]) -> None:
    """Ends calls with CANCELLED, and what was handed to gRPC of their answers.

    A handler that is cancelled leaves its call to gRPC, which keeps it until its client ends it: so
    does the task that waits for that. With this task gone nobody refers to the call any more, once
    another one has come, which gRPC's loop refers to in its place; then gRPC resets it. A status
    would wait behind the answer.
    """
    late = {id(task): task for task in tasks}
    for count, waiting in enumerate(asyncio.all_tasks(), start=1):
        if (coroutine := waits_for_end(waiting)) is not None:
            for each in gc.get_referents(*gc.get_referents(coroutine)):
                if task := late.pop(id(each), None):
                    task.cancel()
                    waiting.cancel()
        if count % TASKS_AT_ONCE == 0:
            await asyncio.sleep(0)
    for task in late.values():  # Their clients have hung up meanwhile.
        task.cancel()


def waits_for_end(task: CallTask) -> object | None:
    """Returns the coroutine in which a task waits for the end of a call; None: it does not."""
    coroutine = getattr(task.get_coro(), "cr_await", None)
    return coroutine if getattr(coroutine, "__name__", "") == GRPC_WAITS else None
