"""What ends a run, what it leaves behind, and whether another begins; on a log in memory."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from groupcert.applier.engine.applier import Applier
from groupcert.certifier.errors import DiskFull, LogGap
from groupcert.certifier.storage.store import Store, StoreIdentity
from groupcert.members.binary_log.stored_log import BinaryLog
from groupcert.members.core.views import MemberState
from groupcert.members.errors.membership import OutOfGroup
from groupcert.members.large_transactions.fragment_store import FragmentStore
from groupcert.members.process import lifecycle as lives_module
from groupcert.members.process.lifecycle import Lifecycle, OpenServer
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.settings.member import MemberConfig
from tests.sim.memory_order import MemoryLog, MemoryOrder
from tests.waiting import until

FULL = DiskFull(path="there", cause="No space left on device")


def config_of(folder: Path, **settings: object) -> MemberConfig:
    return MemberConfig.model_validate(
        {
            "group": "g",
            "member": "m1",
            "data_folder": folder,
            "log_servers": ("nats://127.0.0.1:1",),
            "create_log": True,
            **settings,
        }
    )


class Process:
    """A member's process, and its runtimes."""

    def __init__(
        self,
        folder: Path,
        log: MemoryLog,
        open_server: OpenServer | None = None,
        /,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.runtimes: list[MemberRuntime] = []
        self.stopped: asyncio.Future[Literal[True]] = asyncio.get_running_loop().create_future()
        self.keeping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lifecycle = Lifecycle(
            config_of(folder, **settings),
            lambda: MemoryOrder(log),
            self.runtimes.append,
            lambda state: None,
            self._keep_log,
            open_server,
        )

    async def _keep_log(self, runtime: MemberRuntime) -> None:
        await asyncio.shield(self.keeping)

    @property
    def runtime(self) -> MemberRuntime:
        """The present one."""
        return self.runtimes[-1]

    @property
    def state(self) -> MemberState:
        """Its word of its state."""
        return self.runtime.member.state

    async def online(self, runs: int = 1) -> None:
        """Returns when it is ONLINE, in so many runs."""
        await until(lambda: len(self.runtimes) >= runs and self.state is MemberState.ONLINE)


@asynccontextmanager
async def living(
    folder: Path,
    log: MemoryLog | None = None,
    open_server: OpenServer | None = None,
    /,
    **settings: object,
) -> AsyncIterator[Process]:
    """A member's process, which is stopped at the end."""
    process = Process(folder, log or MemoryLog("g"), open_server, **settings)
    running = asyncio.create_task(process.lifecycle.run(process.stopped))
    try:
        yield process
    finally:
        process.stopped.set_result(True)
        await running


def assert_released(folder: Path) -> None:
    """Nothing holds the store, and no thread works on it."""
    names = ("applier", "durability", "rows-maker")
    left = [each.name for each in threading.enumerate() if each.name.startswith(names)]
    assert not left
    Store(folder, StoreIdentity(group="g", member="m1")).close()


async def test_runs_that_have_ended_leave_nothing_in_memory(tmp_path: Path) -> None:
    """What a run begins with is frozen, and circles in it stayed for ever: megabytes a run."""
    async with living(tmp_path) as process:
        await process.online()
        ended = weakref.ref(process.runtime)
        for _ in range(2):
            process.runtimes.pop().begin_again()
            await process.online()
        assert ended() is None


async def test_a_life_is_ended_whole_though_a_task_of_it_fails(tmp_path: Path) -> None:
    process = Process(tmp_path, MemoryLog("g"))
    running = asyncio.create_task(process.lifecycle.run(process.stopped))
    await process.online()
    process.keeping.set_exception(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(running, 10)
    assert process.runtime.closed
    assert_released(tmp_path)


async def test_the_store_is_released_though_the_log_cannot_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(order: MemoryOrder) -> None:
        raise RuntimeError("no way out")

    monkeypatch.setattr(MemoryOrder, "close", fail)
    with pytest.raises(RuntimeError, match="no way out"):
        async with living(tmp_path) as process:
            await process.online()
    assert_released(tmp_path)


async def test_what_tells_why_wins_over_what_follows_from_it(tmp_path: Path) -> None:
    runtime = MemberRuntime(config_of(tmp_path), MemoryOrder(MemoryLog("g")), lambda state: None)
    cause = LogGap(expected=2, found=1)

    async def read_log() -> None:
        runtime.fail(OutOfGroup(member="m1", explanation="a consequence"))
        raise cause

    runtime._read_log = read_log  # type: ignore[method-assign]  # a reader that meets a gap
    assert (await runtime.run()).error is cause
    assert runtime.member.state is MemberState.FENCED
    runtime.close()


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (BinaryLog, "__init__"),
        (Applier, "__init__"),
        (StateStore, "load"),
        (FragmentStore, "remove_strangers"),
        (Applier, "recover"),
    ],
)
async def test_a_runtime_that_cannot_be_made_releases_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: type, name: str
) -> None:
    def fail(self: object, *_: object, **__: object) -> None:
        raise FULL

    monkeypatch.setattr(place, name, fail)
    gc.disable()
    try:
        with pytest.raises(DiskFull):
            MemberRuntime(config_of(tmp_path), MemoryOrder(MemoryLog("g")), lambda state: None)
        assert_released(tmp_path)
    finally:
        gc.enable()


async def test_a_member_goes_on_once_its_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives_module, "DISK_RETRY_SECONDS", 0.01)
    load, failures = StateStore.load, iter(range(2))

    def load_in_the_end(self: StateStore, member: object) -> None:
        for _ in failures:
            raise FULL
        load(self, member)  # type: ignore[arg-type]  # a Member

    async with living(tmp_path) as process:
        await process.online()
        monkeypatch.setattr(StateStore, "load", load_in_the_end)
        process.runtime.give_up(FULL)
        await process.online(runs=2)
    assert next(failures, None) is None
    assert_released(tmp_path)


async def test_a_member_whose_reading_pauses_is_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog("g")
    settings = {"stable_set_period_ms": 100, "unreachable_majority_timeout_ms": 1_000}
    async with living(tmp_path, log, **settings) as process:
        await process.online()
        monkeypatch.setattr(MemberRuntime, "_is_full", True)
        paused_at = log.state().last_sequence
        await until(lambda: log.state().last_sequence > paused_at + 15)
        assert process.runtime.member.log_sequence <= paused_at + 1
        assert process.state is MemberState.ONLINE
        monkeypatch.undo()
        process.runtime._room.set()
        await until(lambda: process.runtime.member.log_sequence > paused_at + 15)


@pytest.mark.parametrize("refilled", [0, 1, 2])
async def test_a_log_that_was_filled_again_fences_who_has_read_what_it_lost(
    tmp_path: Path, refilled: int
) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log) as process:
        await process.online()
        read = process.runtime.member.log_sequence
    async with living(tmp_path, log) as process:
        await process.online()
    assert process.runtime.member.log_sequence > read, "an honest log is read on"
    last = log.state().last_sequence
    log.truncate(last - 1)
    (payload,) = [each.payload for each in log.portion(last - 1)]
    log.append("another", payload)
    for number in range(refilled):
        log.append(f"more {number}", payload)
    async with living(tmp_path, log) as process:
        await until(lambda: process.runtimes and process.state is MemberState.FENCED)
        assert process.runtime.member.reason.startswith(f"LOG_REWRITTEN: message {last} of the log")
        assert log.state().last_sequence == last + refilled, "it has asked for nothing"
