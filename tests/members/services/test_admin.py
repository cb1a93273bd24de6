"""Leaving and coming back: what becomes of a member between two runs, and what its operator is
told; the scripts are tests/testdata/admin.

Method: a member's process on a log in memory, whose loop runs while a command of a script does.
"""

import asyncio
import re
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.errors import GroupcertError, LogGap
from groupcert.certifier.storage.store import Store
from groupcert.members.core.member import Member
from groupcert.members.core.views import MemberState
from groupcert.members.door.callers import Callers
from groupcert.members.errors.recovery import LogTrimmed
from groupcert.members.process import lifecycle
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.security.access import AccessList, Principal, Role
from groupcert.members.services import admin as admin_service
from groupcert.members.services.admin import AdminService
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.settings.member import MemberConfig
from groupcert.v1 import admin_pb2
from tests.datadriven import Command, Handler, run_script
from tests.members.process.test_lifecycle import FULL, Process, living
from tests.sim.memory_order import MemoryLog
from tests.waiting import until

SCRIPTS = sorted((Path(__file__).parents[2] / "testdata" / "admin").glob("*.txt"))
NO_CONTEXT: Any = None
ACCESS = AccessList(principal=(Principal(name="a", certificate="a", roles=frozenset(Role)),))
CAUSES = {"gap": LogGap(expected=3, found=2), "trimmed": LogTrimmed(expected=1, first=2)}
CAUSES["full"] = FULL
STILL_SECONDS = 0.2
"""Longer than a member waits here before it tries something again."""


def admin(process: Process) -> AdminService:
    """Returns the service of a process."""
    current = CurrentRuntime()
    current.runtime = process.runtime
    return AdminService(current, Callers(None, has_tls=False))


async def rejoin(
    process: Process, *, unfence: bool = False, discard: bool = False, trust: bool = False
) -> str:
    """Has a process come back; returns where its state is, if that is discarded."""
    request = admin_pb2.RejoinRequest(unfence=unfence, discard_state=discard, trust_log=trust)
    answer = await admin(process).Rejoin(request, NO_CONTEXT)
    return answer.discarded_path


class Script:
    """A member, its operator, its log and its disk."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patches = monkeypatch
        self._broken = pytest.MonkeyPatch()
        self._stack = AsyncExitStack()
        self._log: MemoryLog
        self._process: Process
        monkeypatch.setattr(lifecycle, "DISK_RETRY_SECONDS", 0.05)
        monkeypatch.setattr(admin_service, "LEAVE_SECONDS", 0.1)

    async def start(self, command: Command) -> str:
        """start [autorejoin_ms=]: a member with an empty folder and log of its own; one before it
        is stopped.
        """
        await self.stop(command)
        interval = command.take("autorejoin_ms")[0]
        settings = {"autorejoin_interval_ms": int(interval)} if interval else {}
        self._folder = self._folder.with_name(f"{self._folder.name}1")
        self._folder.mkdir()
        self._log = MemoryLog("g")
        living_one = living(self._folder, self._log, **settings)
        self._process = await self._stack.enter_async_context(living_one)
        return ""

    async def stop(self, _: Command) -> str:
        """stop: the process is told to stop, and has."""
        await self._stack.aclose()
        return self._shown() if hasattr(self, "_process") else ""

    async def online(self, command: Command) -> str:
        """online [run=]: until it is, in its first run or this one."""
        await self._process.online(int(command.take("run")[0] or 1))
        return self._shown()

    async def expelled(self, command: Command) -> str:
        """expelled times=: the others put it out so often; after the first time it comes back."""
        times = int(str(command.take("times")[0]))
        for run in range(1, times + 1):
            await self._process.online(run)
            self._process.runtime.member.expel("m1")
            self._process.runtime._sender.schedule()
        await self._until(MemberState.ERROR, times)
        return self._shown()

    async def fails(self, command: Command) -> str:
        """fails of=gap|trimmed|full state=: it meets this, and is in a state."""
        cause, state = command.take("of", "state")
        self._process.runtime.give_up(CAUSES[str(cause)])
        await self._until(MemberState[str(state)])
        return self._shown()

    async def wait(self, command: Command) -> str:
        """wait state= [run=]: until it is in a state."""
        state, run = command.take("state", "run")
        await self._until(MemberState[str(state)], int(run or 1))
        return self._shown()

    async def still(self, _: Command) -> str:
        """still: it is what it is, for longer than it takes to try again."""
        await asyncio.sleep(STILL_SECONDS)
        return self._shown()

    async def log(self, command: Command) -> str:
        """log away|back [when=joining|stopping]: whether it takes messages: from now on; from when
        the member is to join; a while after it was told to stop.
        """
        when = command.arguments.get("when")
        if when == "stopping":
            loop = asyncio.get_running_loop()
            loop.call_later(STILL_SECONDS, setattr, self._log, "available", True)
            return ""
        if when == "joining":
            caught_up = Member.caught_up

            def ask_a_log_that_is_away(member: Member) -> None:
                self._log.available = False
                caught_up(member)

            self._broken.setattr(Member, "caught_up", ask_a_log_that_is_away)
            return ""
        self._log.available = "back" in command.arguments
        return ""

    async def out_of_view(self, _: Command) -> str:
        """out_of_view: until its own view is without it."""
        await until(lambda: self._process.runtime.member.view.members == ())
        return ""

    async def disk(self, command: Command) -> str:
        """disk full|unreadable: no store takes anything; no state is loaded."""

        def fail(*_: object) -> None:
            raise FULL

        if "full" in command.arguments:
            self._broken.setattr(Store, "write", fail)
            self._broken.setattr(Store, "flush", fail)
        else:
            self._broken.setattr(StateStore, "load", fail)
        return ""

    async def discards_nothing(self, _: Command) -> str:
        """discards_nothing: the process ends before it does what it was told."""
        self._broken.setattr(lifecycle, "_discard", lambda runtime: None)
        return ""

    async def mend(self, _: Command) -> str:
        """mend: nothing is broken any more."""
        self._broken.undo()
        return ""

    async def closed(self, _: Command) -> str:
        """closed: until its store is."""
        await until(lambda: self._process.runtime.closed)
        return self._shown()

    async def discarded(self, _: Command) -> str:
        """discarded: until its state is set aside."""
        await until(lambda: [*self._folder.glob("discarded-*")])
        return ""

    async def copies(self, command: Command) -> str:
        """copies come|end: a copy of another member takes until it ends, in which the run fails."""
        if "come" in command.arguments:
            self._copied = asyncio.Event()

            async def recover(_: MemberConfig, runtime: MemberRuntime, needed: Exception) -> None:
                runtime.stop_serving(MemberState.ERROR, str(needed))
                await self._copied.wait()

            self._patches.setattr(lifecycle, "recover", recover)
            return ""
        self._process.runtime.stop_serving(MemberState.ERROR, "a failure that comes too late")
        self._copied.set()
        return ""

    async def leave(self, _: Command) -> str:
        """leave: what its operator is told."""
        request = admin_pb2.LeaveRequest()
        answer = await self._asked(admin(self._process).Leave(request, NO_CONTEXT))
        if isinstance(answer, GroupcertError):
            return str(answer)
        return f"is in view {answer.view_id} still" if answer.view_id else "left"

    async def rejoin(self, command: Command) -> str:
        """rejoin [unfence] [discard]: what its operator is told; the state is set aside as told."""
        flags = dict.fromkeys(command.arguments, True)
        answer = await self._asked(rejoin(self._process, **flags))
        if isinstance(answer, GroupcertError):
            return str(answer)
        return f"rejoins, its state is in {_without_id(Path(answer).name)}" if answer else "rejoins"

    async def set(self, command: Command) -> str:
        """set [<setting>=...]: what its operator is told, and which tables are reserved then."""
        request = admin_pb2.ChangeSettingsRequest(settings=dict(command.arguments))
        answer = await self._asked(admin(self._process).ChangeSettings(request, NO_CONTEXT))
        tables = " ".join(self._process.runtime.member.settings.postgresql_tables)
        return (
            str(answer) if isinstance(answer, GroupcertError) else f"reserved: {tables or 'none'}"
        )

    async def access(self, command: Command) -> str:
        """access given|none: the member has an access list, or none."""
        access = ACCESS if "given" in command.arguments else None
        runtime = self._process.runtime
        runtime.config = runtime.config.model_copy(update={"access": access})
        return ""

    async def folder(self, _: Command) -> str:
        """folder: what is in its data folder."""
        names = {_without_id(each.name) for each in self._folder.iterdir()}
        return "\n".join(sorted(names))

    async def _asked(self, asked: Awaitable[Any]) -> Any:
        try:
            return await asked
        except GroupcertError as error:
            return error

    async def _until(self, state: MemberState, runs: int = 1) -> None:
        process = self._process
        await until(lambda: len(process.runtimes) >= runs and process.state is state)

    def _shown(self) -> str:
        view, run = self._process.runtime.member.view, len(self._process.runtimes)
        names = ", ".join(each.name for each in view.members) or "nobody"
        return f"{self._process.state.name} in run {run}, view {view.view_id}: {names}"


def _without_id(name: str) -> str:
    return re.sub(r"discarded-\w+", "discarded-ID", name)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_gives_its_answers(
    path: Path, rewrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(tmp_path / "member", monkeypatch)

    with asyncio.Runner() as runner:
        # The handlers of a script are functions: its loop stands still between two of them.
        def run(name: str) -> Handler:
            return lambda command: runner.run(getattr(script, name)(command))

        names = [name for name in vars(Script) if not name.startswith("_")]
        end = Command(name="stop", arguments={}, body=())
        try:
            run_script(path, {name: run(name) for name in names}, rewrite=rewrite)
        finally:
            run("mend")(end)
            run("stop")(end)
