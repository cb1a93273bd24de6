"""Runs a member in a process, again and again: what ends one run, and whether another begins.

The rule it keeps: a member that was expelled from its group comes back by itself, a few times; one
that fenced itself waits for its operator; and whatever it waits for, its gRPC server answers with
its true state, and reads go on unless it is configured otherwise.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import structlog

from ...certifier.errors import CorruptLog, DiskFull, Fenced, GroupcertError, Unavailable
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_sequence_of
from ...certifier.storage.store import ROCKSDB_FOLDER, Family, Store, StoreIdentity
from ..certification_log.outbox import tell_given_up, waiting_rows_of
from ..core.recovery_progress import RecoveryProgress, readable
from ..core.rejoins import Rejoins
from ..core.views import MemberState
from ..errors.membership import OutOfGroup
from ..errors.postgresql_servers import ServerLost, StoppedAtServer
from ..errors.recovery import LogTooLong, LogTrimmed, NoDonor
from ..host.sync import sync
from ..recovery import store_swap
from ..recovery.joiner import Joiner, fetch_copy
from ..runtime.opening import LOG_STOP_SECONDS, STOP_SECONDS, unless_full
from ..runtime.operations import leave
from ..runtime.row_store import RowsServer
from ..runtime.runtime import NORMAL_START, MemberRuntime, RunEnd, RunStart
from ..runtime.state_store import LOG_IDENTITY_KEY
from ..settings.member import MemberConfig
from ..total_order.port import LogIdentity, TotalOrder

LEAVE_SECONDS = 3.0
LOG_LEAVE_SECONDS = 2.0
"""Seconds for the running step of the certification log's writer, if the rest can wait."""
DISK_RETRY_SECONDS = 2.0
SERVER_RETRY_SECONDS = 0.5
GC_ALLOCATIONS = 50_000
"""Objects made between two collections of Python's youngest generation: a message makes thousands,
and none of them is in a cycle."""
ABORTED = 3
log: structlog.stdlib.BoundLogger = structlog.get_logger()

Stopped = asyncio.Future[Literal[True]]
"""Done when the operator stops the process."""
LOG_SECONDS = 5.0
"""Between two lines of the log on how far a copy is."""


def joiner_of(config: MemberConfig, runtime: MemberRuntime) -> Joiner:
    """Returns a member in its present state as a joiner, with the members that it knows."""
    checkpoint = runtime.rows.checkpoint()
    identity = runtime.store.get(Family.META, LOG_IDENTITY_KEY)
    known = [each.address for each in runtime.member.view.members if each.name != config.member]
    return Joiner(
        group=config.group,
        member=config.member,
        data_folder=config.data_folder,
        addresses=tuple(dict.fromkeys((*config.seeds, *known))),
        log=None if identity is None else LogIdentity.decode(identity),
        log_sequence=max(
            runtime.member.log_sequence, log_sequence_of(checkpoint.position) if checkpoint else 0
        ),
        gtid_executed=checkpoint.gtid_executed if checkpoint else GtidSet(),
        server_version=checkpoint.version if checkpoint and config.postgresql else None,
        without_rows=config.rows == "none",
        credentials=config.credentials(),
    )


async def recover(config: MemberConfig, runtime: MemberRuntime, needed: GroupcertError) -> None:
    """Copies a donor's state, to be put in place of the member's once its store is closed.

    Args:
        needed: Why the log is not enough. Meanwhile the member is RECOVERING and reports its
            progress.

    Raises:
        LogTrimmed: It knows no member to ask.
        NoDonor: All have failed.
        ExtraTransactions, ForeignLog: An operator must act.
        DiskFull: There is no space for a copy.
    """
    assert isinstance(needed, (LogTrimmed, LogTooLong))
    joiner = joiner_of(config, runtime)
    log.warning(
        "recovery_by_copy", member=config.member, seeds=joiner.addresses, reason=str(needed)
    )
    if not joiner.addresses:
        raise needed
    if runtime.member.state is MemberState.RECOVERING:
        runtime.member.reason = "the log does not reach back, or is long: copying a donor's state"
    else:
        reason = "it was away for so long that the log was trimmed: copying a donor's state"
        runtime.stop_serving(MemberState.ERROR, reason)
    logged = time.monotonic()

    def on_progress(progress: RecoveryProgress) -> None:
        nonlocal logged
        runtime.show_recovery(progress)
        if time.monotonic() - logged > LOG_SECONDS or progress.bytes_done == progress.bytes_total:
            logged = time.monotonic()
            rate = f"{readable(progress.bytes_per_second)}/s"
            log.info("recovery_progress", member=config.member, text=str(progress), rate=rate)

    on_progress(RecoveryProgress())
    manifest = await fetch_copy(joiner, on_progress)
    log.info("recovery_copied", member=config.member, log_sequence=manifest.log_sequence)


OpenServer = Callable[[], Awaitable[RowsServer]]


class Lifecycle:
    """One member, from the start of its process to the end."""

    def __init__(
        self,
        config: MemberConfig,
        make_order: Callable[[], TotalOrder],
        on_runtime: Callable[[MemberRuntime], None],
        on_state: Callable[[MemberState], None],
        keep_log: Callable[[MemberRuntime], Awaitable[None]],
        open_server: OpenServer | None = None,
    ) -> None:
        """Begins no run yet; `keep_log` runs beside each run, until that ends. `open_server` opens
        the server that keeps the member's rows, for each run; None: its store does.
        """
        self._open_server = open_server
        self._config = config
        self._make_order = make_order
        self._keep_log = keep_log
        self._on_runtime = on_runtime
        self._on_state = on_state
        self._rejoins = Rejoins(config.autorejoin_tries, config.autorejoin_interval_ms)
        self._runtime: MemberRuntime | None = None
        self._start = NORMAL_START
        self._has_joined = False
        self._exit_code = 0
        self._stopped: Stopped

    async def run(self, stopped: Stopped) -> int:
        """Begins one run after another until the process is stopped; returns the exit code.

        Raises:
            GroupcertError: The first run could not begin.
        """
        self._stopped = stopped
        while not stopped.done() and not self._exit_code:
            await self._run_once()
        return self._exit_code

    async def _run_once(self) -> None:
        put_copy_in_place(self._config)
        server = await self._server()
        why = ""
        try:
            await self._run_at(server)
            why = self._why_ended()
        except GroupcertError as error:
            why = f"its member has ended: {error}"
            raise
        finally:
            if server is not None:
                await server.close(why)

    def _why_ended(self) -> str:
        """Returns the reason for which the last run has ended; empty: the operator stopped it."""
        if self._stopped.done() or self._runtime is None:
            return ""
        ended = self._runtime.member
        has_failed = ended.state in (MemberState.ERROR, MemberState.FENCED)
        return ended.reason if has_failed else "its member begins again"

    async def _server(self) -> RowsServer | None:
        """Returns the server that keeps the rows, once it answers; None: the store does, or the
        process is stopped.
        """
        while self._open_server and not self._stopped.done():
            opening = asyncio.ensure_future(self._open_server())
            try:
                # One that stands still does not keep the process from being stopped.
                await asyncio.wait((opening, self._stopped), return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    return opening.result()
            except Unavailable as error:
                log.warning("server_unavailable", member=self._config.member, text=str(error))
                await self._wait(SERVER_RETRY_SECONDS)
            finally:
                await _cancel(opening)
        return None

    async def _run_at(self, server: RowsServer | None) -> None:
        if self._stopped.done():
            return
        order = self._make_order()
        try:
            runtime = MemberRuntime(self._config, order, self._note_state, self._start, server)
        except DiskFull as error:
            if self._runtime is None:
                raise
            error.with_traceback(None)  # Its frames may hold the store open.
            await self._pause(self._runtime)
            self._end(self._runtime)
            return
        self._begin(runtime)
        goes_on = False
        try:
            await self._follow(runtime)
            goes_on = self._goes_on(runtime)
        finally:
            try:
                await order.close()
            finally:
                await end(runtime, goes_on=goes_on)
        if not runtime.begun_again.done() and not self._exit_code:
            await self._pause(runtime)
        self._end(runtime)

    def _end(self, runtime: MemberRuntime) -> None:
        """Ends a run, and sets how the next one begins."""
        _discard(runtime)
        # A long log is read on until the member is ONLINE, however many runs that takes.
        reads_long_log = self._start.reads_long_log or runtime.next_start.reads_long_log
        self._start = runtime.next_start._replace(
            discards_state=False, reads_long_log=reads_long_log
        )

    def _goes_on(self, ended: MemberRuntime) -> bool:
        """Returns whether another run will begin with the same state."""
        if self._stopped.done() or self._exit_code:
            return False
        if ended.next_start.discards_state:
            return False
        return not store_swap.is_adopted(self._config.data_folder)

    async def _pause(self, ended: MemberRuntime) -> None:
        """Waits until the disk may have room, or longer if the operator asks for that."""
        await self._wait(DISK_RETRY_SECONDS, None if ended.begun_again.done() else ended)
        await self._has_left(ended)

    def _begin(self, runtime: MemberRuntime) -> None:
        self._runtime = runtime
        self._on_runtime(runtime)
        gc.unfreeze()  # Of the run before nothing else would ever go that is in a circle.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_ALLOCATIONS)

    async def _follow(self, runtime: MemberRuntime) -> None:
        """Waits for the end of a run, and acts on it."""
        running = asyncio.ensure_future(runtime.run())
        keeping = asyncio.ensure_future(self._keep_log(runtime))
        try:
            ends = (running, keeping, self._stopped)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await self._act_on(running.result(), runtime)
            elif keeping.done():
                await self._act_on(RunEnd(keeping.exception()), runtime)
            else:
                await leave(runtime, LEAVE_SECONDS)
        finally:
            await _cancel(running, keeping)

    async def _act_on(self, end: RunEnd, runtime: MemberRuntime) -> None:
        """Acts on the end of a run: recovers, comes back, stays out, or begins another at once."""
        match end.error:
            case None:
                pass
            case DiskFull() as full:
                self._wait_for_room(runtime, full)
            case LogTrimmed() | LogTooLong() as needed:
                await self._recover(runtime, needed)
            case Fenced() | CorruptLog():
                await self._stay_out(runtime)
            case StoppedAtServer() as error:
                log.warning("stopped_at_server", member=self._config.member, text=str(error))
                runtime.stop_serving(MemberState.ERROR, str(error))
                if isinstance(error, ServerLost):
                    await self._begin_again_after(SERVER_RETRY_SECONDS, runtime)
            case Unavailable() as error:
                await self._come_back(runtime, error)
            case error:
                raise error

    def _wait_for_room(self, runtime: MemberRuntime, full: DiskFull) -> None:
        log.error("disk_full", member=self._config.member, text=str(full))
        runtime.stop_serving(MemberState.ERROR, str(full))

    async def _recover(self, runtime: MemberRuntime, needed: LogTrimmed | LogTooLong) -> None:
        """Copies a donor's state for the next run, unless the operator stops the member before.
        Without a donor, a log that is merely long is read instead.
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
        except DiskFull as full:
            self._wait_for_room(runtime, full)
        except Fenced as error:
            runtime.show_recovery(None)
            runtime.fence(error)
            await self._stay_out(runtime)
        finally:
            await _cancel(copying)

    async def _come_back(self, runtime: MemberRuntime, error: Unavailable) -> None:
        """Begins another run, at once or later; or none, when all tries are used."""
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
        await self._begin_again_after(delay_ms / 1000, runtime)

    async def _begin_again_after(self, seconds: float, runtime: MemberRuntime) -> None:
        """Begins another run after some seconds, unless the operator stops the member meanwhile."""
        await self._wait(seconds, runtime)
        if not await self._has_left(runtime) and not self._stopped.done():
            runtime.begin_again()

    async def _stay_out(self, runtime: MemberRuntime) -> None:
        """Carries out `exit_state_action` for a member that cannot come back by itself."""
        match self._config.exit_state_action:
            case "ABORT_SERVER":
                self._exit_code = ABORTED
                return
            case "OFFLINE_MODE":
                runtime.refuse_reads()
        await self._wait(None, runtime)

    async def _has_left(self, runtime: MemberRuntime) -> bool:
        """Returns whether the operator had the member leave; if so, waits until he has it come
        back, or stops it.
        """
        has_left = runtime.member.state is MemberState.LEFT
        if has_left:
            await self._wait(None, runtime)
        return has_left

    async def _read_log_next(self, runtime: MemberRuntime) -> None:
        """Begins the next run, which reads the log however long it is, as do those after it until
        the member is ONLINE.
        """
        await self._has_left(runtime)
        runtime.begin_again(RunStart(reads_long_log=True))

    def _note_state(self, state: MemberState) -> None:
        if state is MemberState.ONLINE:
            self._start = NORMAL_START
            self._has_joined = True
            self._rejoins.joined(self._now_ms())
        self._on_state(state)

    async def _wait(self, seconds: float | None, runtime: MemberRuntime | None = None) -> None:
        """Waits for `seconds`, at most until the operator stops the process or begins a new run."""
        ends = (self._stopped, runtime.begun_again) if runtime else (self._stopped,)
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def put_copy_in_place(config: MemberConfig) -> None:
    """Replaces the state by a copy that was adopted, maybe by an earlier process, if there is one.
    Rows that no file of the certification log has are lost with the state.
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
    """Sets the state of an ended run aside, once, if its operator asked for that. The fence is a
    part of the state, so it ends with it.
    """
    if runtime.next_start.discards_state and not runtime.discarded_path.exists():
        if runtime.history_writer:
            _tell_replaced(runtime.config.member, runtime.history_writer.outbox.waiting_rows)
        folder = runtime.store.path
        (folder / ROCKSDB_FOLDER).rename(runtime.discarded_path)
        sync(folder)


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels tasks and waits for their end, whatever it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def end(runtime: MemberRuntime, *, goes_on: bool) -> None:
    """Closes a runtime. What may take long before that has a thread, and reads go on meanwhile.
    `goes_on`: another run begins with the same state, and writes what the certification log lacks.
    """
    if runtime.member.state is MemberState.ONLINE:
        runtime.stop_serving(MemberState.ERROR, "its run has ended")
    writer = runtime.history_writer
    try:
        if writer:
            await asyncio.to_thread(runtime.rows.stop, STOP_SECONDS)
            unless_full(runtime.save)
            if goes_on:
                await asyncio.to_thread(writer.leave, LOG_LEAVE_SECONDS)
            else:
                await asyncio.to_thread(writer.stop, LOG_STOP_SECONDS)
        await asyncio.to_thread(unless_full, runtime.store.flush_tables)
    finally:
        runtime.close()
