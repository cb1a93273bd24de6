"""A member that says when its event loop was held: the command `groupcert`, watched from inside.

`LocalGroup(module=...)` runs this in the place of the command. A task of the loop wants to wake
every 20 ms; a thread beside it looks what runs when it does not. Every delay of at least
`NOTED_MS` is a line of JSON in the file that `FUZZ_DELAYS` names, with `{member}` in the
place of the member's name.

A loop is late because it works, because it waits for a lock or a disk, or because other processes
have the processors, which is nothing that the member does. So each delay has the processor time of
the loop's thread, and how long the system said that the thread was neither running nor ready to.
"""

import asyncio
import json
import os
import runpy
import sys
import threading
import time
import traceback
from functools import wraps
from pathlib import Path
from typing import Any

from groupcert.members.process import serve

DELAYS_VARIABLE = "FUZZ_DELAYS"
PERIOD_SECONDS = 0.02
NOTED_MS = 100
LATE_SECONDS = 3 * PERIOD_SECONDS
"""A beat that is as late as this is looked at."""
STACK_SECONDS = 0.15
"""A beat that is as late as this has the loop's stack taken."""
STACK_LINES = 24


class LoopWatch:
    """Notes the delays of the event loop of the thread that makes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread, number = threading.get_ident(), threading.get_native_id()
        self._system = Path(f"/proc/self/task/{number}/stat")
        self._beat = time.monotonic()
        self._stack: list[str] = []
        self._blocked_seconds = 0.0
        threading.Thread(target=self._look, daemon=True, name="loop watch").start()

    async def beat(self) -> None:
        """Beats for ever, and notes each delay with the processor time that it took."""
        while True:
            began, used, used_by_all = time.monotonic(), time.thread_time(), time.process_time()
            self._beat = began
            await asyncio.sleep(PERIOD_SECONDS)
            late_ms = 1000 * (time.monotonic() - began - PERIOD_SECONDS)
            if late_ms >= NOTED_MS:
                self._note(
                    began=began,
                    late_ms=round(late_ms),
                    loop_ms=round(1000 * (time.thread_time() - used)),
                    process_ms=round(1000 * (time.process_time() - used_by_all)),
                    blocked_ms=round(1000 * self._blocked_seconds),
                    stack=self._stack,
                )
            self._stack, self._blocked_seconds = [], 0.0

    def _note(self, **values: object) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def _look(self) -> None:
        looked = time.monotonic()
        while True:
            time.sleep(PERIOD_SECONDS)
            now, before = time.monotonic(), looked
            looked = now
            if now - self._beat < LATE_SECONDS:
                continue
            if self._system.read_text().rpartition(")")[2].split()[0] in "SD":
                self._blocked_seconds += min(now - before, 2 * PERIOD_SECONDS)
            if now - self._beat > STACK_SECONDS and not self._stack:
                frame = sys._current_frames().get(self._thread)
                frames = traceback.extract_stack(frame) if frame else []
                lines = [
                    f'File "{each.filename}", line {each.lineno}, in {each.name}'
                    for each in frames
                    if "importlib" not in each.filename  # Six of them for each module.
                ]
                self._stack = lines[-STACK_LINES:]


def watch() -> None:
    """Makes every member of this process note its delays."""
    unwatched = serve._serve

    @wraps(unwatched)
    async def watched(config: Any, options: Any, open_server: Any) -> int:
        path = Path(os.environ[DELAYS_VARIABLE].format(member=config.member))
        beating = asyncio.ensure_future(LoopWatch(path).beat())
        try:
            return await unwatched(config, options, open_server)
        finally:
            beating.cancel()

    serve._serve = watched


if __name__ == "__main__":
    watch()
    runpy.run_module("groupcert.members", run_name="__main__")
