"""The lives of a member's process: what ends one, and whether another begins.

The rule it keeps: a member that was put out of its group comes back by itself, a few times; one
that fenced itself waits for its operator; and whatever it waits for, its gRPC server answers with
its true state, and reads go on unless it is configured otherwise.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import structlog

from certifier.errors import CorruptLog, DiskFull, Fenced, GroupcertError, Unavailable
from certifier.store import ROCKSDB_FOLDER, Store, StoreIdentity
from members import store_swap
from members.config import MemberConfig
from members.endings import end
from members.leaving import leave
from members.member_state import MemberState
from members.membership_errors import OutOfGroup
from members.outbox import tell_given_up, waiting_rows_of
from members.recovery import recover
from members.recovery_errors import LogTooLong, LogTrimmed, NoDonor
from members.rejoins import Rejoins
from members.runtime import MemberRuntime
from members.sync import sync
from members.total_order import TotalOrder

LEAVE_SECONDS = 3.0
DISK_RETRY_SECONDS = 2.0
GC_ALLOCATIONS = 50_000
"""Objects made until Python looks for cycles among the young ones: a message makes thousands, and
none of them is in a cycle."""
ABORTED = 3
log: structlog.stdlib.BoundLogger = structlog.get_logger()

Stopped = asyncio.Future[Literal[True]]
"""Done when the operator stops the process."""


class Lives:
    """One member, from the start of its process to the end."""

    def __init__(
        self,
        config: MemberConfig,
        make_order: Callable[[], TotalOrder],
        on_runtime: Callable[[MemberRuntime], None],
        on_state: Callable[[MemberState], None],
        keep_log: Callable[[MemberRuntime], Awaitable[None]],
    ) -> None:
        """`keep_log`: runs beside each life, until that ends."""
        self._config = self._configured = config
        self._make_order = make_order
        self._keep_log = keep_log
        self._on_runtime = on_runtime
        self._on_state = on_state
        self._rejoins = Rejoins(config.autorejoin_tries, config.autorejoin_interval_ms)
        self._runtime: MemberRuntime | None = None
        self._has_joined = False
        self._exit_code = 0
        self._stopped: Stopped

    async def run(self, stopped: Stopped) -> int:
        """Lives until stopped; returns the exit code.

        Raises:
            GroupcertError: The first life could not begin.
        """
        self._stopped = stopped
        while not stopped.done() and not self._exit_code:
            await self._live()
        return self._exit_code

    async def _live(self) -> None:
        put_copy_in_place(self._config)
        order = self._make_order()
        try:
            runtime = MemberRuntime(self._config, order, self._note_state)
        except DiskFull as error:
            if self._runtime is None:
                raise
            error.with_traceback(None)  # Its frames may hold the store open.
            await self._between_lives(self._runtime)
            return
        self._begin(runtime)
        goes_on = False
        try:
            await self._run(runtime)
            goes_on = self._goes_on(runtime)
        finally:
            try:
                await order.close()
            finally:
                await end(runtime, goes_on=goes_on)
        if runtime.begun_again.done():
            _discard(runtime)
        elif not self._exit_code:
            await self._between_lives(runtime)

    def _goes_on(self, ended: MemberRuntime) -> bool:
        """Whether another life is to begin with the same state."""
        if self._stopped.done() or self._exit_code:
            return False
        return not (ended.discards_state or store_swap.is_adopted(self._config.data_folder))

    async def _between_lives(self, ended: MemberRuntime) -> None:
        """Waits until the disk may have room, or longer where the operator wants that."""
        await self._wait(DISK_RETRY_SECONDS, None if ended.begun_again.done() else ended)
        await self._has_left(ended)
        _discard(ended)

    def _begin(self, runtime: MemberRuntime) -> None:
        if self._runtime is not None:
            runtime.trusts_log = self._runtime.next_trusts_log
        self._runtime = runtime
        self._on_runtime(runtime)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS)

    async def _run(self, runtime: MemberRuntime) -> None:
        """Runs a life to its end, and does what that calls for."""
        running = asyncio.ensure_future(runtime.run())
        keeping = asyncio.ensure_future(self._keep_log(runtime))
        try:
            ends = (running, keeping, self._stopped)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, keeping):
                if task.done():
                    task.result()
            if not running.done():
                await leave(runtime, LEAVE_SECONDS)
        except DiskFull as error:
            log.error("disk_full", member=self._config.member, text=str(error))
            runtime.stop_serving(MemberState.ERROR, str(error))
        except (LogTrimmed, LogTooLong) as needed:
            await self._recover(runtime, needed)
        except (Fenced, CorruptLog):
            await self._stay_out(runtime)
        except Unavailable as error:
            await self._come_back(runtime, error)
        finally:
            await _end(running, keeping)

    async def _recover(self, runtime: MemberRuntime, needed: LogTrimmed | LogTooLong) -> None:
        """Copies a donor's state for the next life, unless the operator stops the member before.
        Where there is no donor, a log that is merely long has to do.
        """
        if await self._has_left(runtime):
            return
        config = self._config
        copying = asyncio.ensure_future(recover(config, runtime, needed))
        try:
            await asyncio.wait((copying, self._stopped), return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                copying.result()
                await self._read_log_next(runtime)
        except (NoDonor, LogTrimmed) as error:
            if isinstance(needed, LogTooLong):
                log.warning("recovery_by_log", member=config.member, reason=str(error))
                await self._read_log_next(runtime)
            else:
                await self._come_back(runtime, error)
        except DiskFull as error:
            log.error("disk_full", member=config.member, text=str(error))
            runtime.stop_serving(MemberState.ERROR, str(error))
        except Fenced as error:
            runtime.recovery = None
            runtime.fence(error)
            await self._stay_out(runtime)
        finally:
            await _end(copying)

    async def _come_back(self, runtime: MemberRuntime, error: Unavailable) -> None:
        """Has another life begin, at once or later; or none, when all tries are made."""
        if await self._has_left(runtime):
            return
        if not self._has_joined:
            raise error
        if not isinstance(error, OutOfGroup):
            runtime.stop_serving(MemberState.ERROR, str(error))
        delay_ms = self._rejoins.next_delay_ms(self._now_ms())
        if delay_ms is None:
            log.error("rejoining_given_up", member=self._config.member, text=str(error))
            await self._stay_out(runtime)
            return
        log.warning(
            "rejoining",
            member=self._config.member,
            attempt=self._rejoins.tries,
            delay_ms=delay_ms,
            text=str(error),
        )
        await self._wait(delay_ms / 1000, runtime)
        if not await self._has_left(runtime) and not self._stopped.done():
            runtime.begin_again()

    async def _stay_out(self, runtime: MemberRuntime) -> None:
        """Does what the operator wants of a member that cannot come back by itself."""
        match self._config.exit_state_action:
            case "ABORT_SERVER":
                self._exit_code = ABORTED
                return
            case "OFFLINE_MODE":
                runtime.refuses_reads = True
        await self._wait(None, runtime)

    async def _has_left(self, runtime: MemberRuntime) -> bool:
        """Whether the operator had the member leave; if so, only he has it come back, or stops it,
        and that is waited for.
        """
        has_left = runtime.member.state is MemberState.LEFT
        if has_left:
            await self._wait(None, runtime)
        return has_left

    async def _read_log_next(self, runtime: MemberRuntime) -> None:
        """Begins the next life, which reads the log however long it is; after that it is as
        configured.
        """
        self._config = self._config.model_copy(update={"recovery_log_messages_max": 0})
        await self._has_left(runtime)
        runtime.begin_again()

    def _note_state(self, state: MemberState) -> None:
        if state is MemberState.ONLINE:
            self._config = self._configured
            self._has_joined = True
            self._rejoins.joined(self._now_ms())
        self._on_state(state)

    async def _wait(self, seconds: float | None, runtime: MemberRuntime | None = None) -> None:
        """Waits, but no longer than until the operator stops the process or begins a new life."""
        ends = (self._stopped, runtime.begun_again) if runtime else (self._stopped,)
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def put_copy_in_place(config: MemberConfig) -> None:
    """Replaces the state by a copy that was adopted, if there is one, maybe by an earlier process.
    What no file of the certification log has goes with the state.
    """
    folder = config.data_folder
    if store_swap.is_adopted(folder) and (folder / ROCKSDB_FOLDER).is_dir():
        identity = StoreIdentity(group=config.group, member=config.member)
        # A store that cannot be read may be why there is a copy.
        with suppress(GroupcertError), Store(folder, identity) as store:
            _tell_replaced(config.member, waiting_rows_of(store))
    store_swap.finish(folder)


def _tell_replaced(member: str, rows: int) -> None:
    if rows:
        tell_given_up(member, rows, "the state is replaced before all of it was in files")


def _discard(runtime: MemberRuntime) -> None:
    """Sets the state of a life that is over aside, if its operator wants that; its fence is a part
    of it, and so lasts exactly as long.
    """
    if runtime.discards_state:
        runtime.discards_state = False
        if runtime.history_writer:
            _tell_replaced(runtime.config.member, runtime.history_writer.outbox.waiting_rows)
        folder = runtime.store.path
        (folder / ROCKSDB_FOLDER).rename(runtime.discarded_path)
        sync(folder)


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels tasks; how they end now concerns nobody any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
