"""Leaving and coming back: what becomes of a member between two runs, and what it is answered."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.errors import GroupcertError, InvalidSetting, LogGap
from groupcert.certifier.storage.store import Store
from groupcert.members.core.member import Member
from groupcert.members.core.views import MemberState
from groupcert.members.door.callers import Callers
from groupcert.members.errors.recovery import LogTrimmed
from groupcert.members.process import lifecycle
from groupcert.members.runtime.opening import group_settings
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.runtime.state_store import StateStore
from groupcert.members.security.access import AccessList, Principal, Role
from groupcert.members.services import admin as admin_service
from groupcert.members.services.admin import AdminService, changed_settings
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.settings.member import MemberConfig
from groupcert.v1 import admin_pb2
from tests.members.process.test_lifecycle import FULL, Process, living
from tests.sim.memory_order import MemoryLog
from tests.waiting import until

NO_CONTEXT: Any = None
ACCESS = AccessList(principal=(Principal(name="a", certificate="a", roles=frozenset(Role)),))


def admin(process: Process) -> AdminService:
    current = CurrentRuntime()
    current.runtime = process.runtime
    return AdminService(current, Callers(None, has_tls=False))


async def leave(process: Process) -> int:
    """The view that it could not leave."""
    request = admin_pb2.LeaveRequest()
    answer = await admin(process).Leave(request, NO_CONTEXT)
    return answer.view_id


async def rejoin(
    process: Process, *, unfence: bool = False, discard: bool = False, trust: bool = False
) -> str:
    request = admin_pb2.RejoinRequest(unfence=unfence, discard_state=discard, trust_log=trust)
    answer = await admin(process).Rejoin(request, NO_CONTEXT)
    return answer.discarded_path


async def change_settings(process: Process, changes: dict[str, str]) -> None:
    request = admin_pb2.ChangeSettingsRequest(settings=changes)
    await admin(process).ChangeSettings(request, NO_CONTEXT)


async def expelled(process: Process, times: int) -> None:
    """Returns when it is ERROR: the first time it comes back at once."""
    for runs in range(1, times + 1):
        await process.online(runs)
        process.runtime.member.expel("m1")
        process.runtime._sender.schedule()
    await until(lambda: len(process.runtimes) == times and process.state is MemberState.ERROR)


def entries(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


async def test_who_leaves_between_two_tries_comes_back_when_told(tmp_path: Path) -> None:
    async with living(tmp_path, autorejoin_interval_ms=100) as process:
        await expelled(process, times=2)
        assert await leave(process) == 0
        await asyncio.sleep(0.3)
        assert (len(process.runtimes), process.state) == (2, MemberState.LEFT)
        await rejoin(process)
        await process.online(runs=3)


async def test_state_that_is_discarded_between_two_tries_is_gone(tmp_path: Path) -> None:
    async with living(tmp_path) as process:
        await expelled(process, times=2)
        path = await rejoin(process, discard=True)
        await process.online(runs=3)
        assert Path(path).name in entries(tmp_path)


async def test_who_leaves_while_a_copy_comes_in_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = asyncio.Event()

    async def recover(config: MemberConfig, runtime: MemberRuntime, needed: Exception) -> None:
        runtime.stop_serving(MemberState.ERROR, str(needed))
        await copied.wait()

    monkeypatch.setattr(lifecycle, "recover", recover)
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(LogTrimmed(expected=1, first=2))
        await until(lambda: process.state is MemberState.ERROR)
        await leave(process)
        process.runtime.stop_serving(MemberState.ERROR, "a failure that comes too late")
        copied.set()
        await asyncio.sleep(0.1)
        assert (len(process.runtimes), process.state) == (1, MemberState.LEFT)
        await rejoin(process)
        await process.online(runs=2)


async def test_a_joiner_that_is_stopped_is_in_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog("g")
    caught_up = Member.caught_up

    def ask_a_log_that_is_away(self: Member) -> None:
        log.available = False
        caught_up(self)

    monkeypatch.setattr(Member, "caught_up", ask_a_log_that_is_away)
    async with living(tmp_path, log) as process:
        await until(lambda: process.runtimes and process.state is MemberState.JOINING)
        asyncio.get_running_loop().call_later(0.2, setattr, log, "available", True)
    view = process.runtime.member.view
    assert (process.state, view.view_id, view.members) == (MemberState.LEFT, 2, ())


async def test_a_member_whose_leaving_the_log_does_not_take_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_service, "LEAVE_SECONDS", 0.1)
    log = MemoryLog("g")
    async with living(tmp_path, log) as process:
        await process.online()
        log.available = False
        assert (await leave(process), process.state) == (1, MemberState.LEFT)
        log.available = True
        await until(lambda: process.runtime.member.view.members == ())
        assert await leave(process) == 0


async def test_a_fenced_member_is_not_said_to_have_left(tmp_path: Path) -> None:
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(LogGap(expected=3, found=2))
        await until(lambda: process.state is MemberState.FENCED)
        with pytest.raises(GroupcertError, match="FENCED, and out"):
            await leave(process)
        process.runtime.stop_serving(MemberState.LEFT, "stopped")
        with pytest.raises(GroupcertError, match="say --unfence"):
            await rejoin(process)
        assert await rejoin(process, unfence=True) == ""
        await process.online(runs=2)
        assert entries(tmp_path) == {"rocksdb"}


async def test_a_fence_lasts_as_long_as_the_state_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the process once the operator has spoken: it is fenced, or has no state."""
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(LogGap(expected=3, found=2))
        await until(lambda: process.state is MemberState.FENCED)
        monkeypatch.setattr(lifecycle, "_discard", lambda runtime: None)  # The process ends.
        await rejoin(process, discard=True)
        await until(lambda: len(process.runtimes) == 2 and process.state is MemberState.FENCED)
        monkeypatch.undo()
        path = await rejoin(process, discard=True)
        await process.online(runs=3)
        assert Path(path).name in entries(tmp_path)


async def test_state_is_discarded_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = StateStore.load
    monkeypatch.setattr(lifecycle, "DISK_RETRY_SECONDS", 0.5)
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(FULL)
        await until(lambda: process.runtime.closed)

        def fail(self: StateStore, member: Member) -> None:
            raise FULL

        monkeypatch.setattr(StateStore, "load", fail)
        path = await rejoin(process, discard=True)
        await until(lambda: Path(path).name in entries(tmp_path))
        with pytest.raises(GroupcertError, match="ERROR, and begins anew already"):
            await rejoin(process, discard=True)
        with pytest.raises(GroupcertError, match="ERROR, and begins anew already"):
            await leave(process)
        monkeypatch.setattr(StateStore, "load", load)
        await process.online(runs=2)
        assert Path(path).name in entries(tmp_path)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is undone, no store takes anything."""

    def fail(self: Store, *_: object) -> None:
        raise FULL

    monkeypatch.setattr(Store, "write", fail)
    monkeypatch.setattr(Store, "flush", fail)


async def test_who_is_to_come_back_while_the_disk_is_full_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DISK_RETRY_SECONDS", 0.05)
    async with living(tmp_path, autorejoin_interval_ms=100) as process:
        await expelled(process, times=2)
        fill_disk(monkeypatch)
        await until(lambda: process.runtime.closed)
        await asyncio.sleep(0.2)
        assert (len(process.runtimes), process.state) == (2, MemberState.ERROR)
        monkeypatch.undo()
        await process.online(runs=3)


async def test_an_operator_is_told_that_the_disk_is_full_for_the_end_of_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(LogGap(expected=3, found=2))
        await until(lambda: process.state is MemberState.FENCED)
        fill_disk(monkeypatch)
        with pytest.raises(GroupcertError, match="no space left"):
            await rejoin(process, unfence=True)
        assert process.state is MemberState.FENCED
        monkeypatch.undo()
        await rejoin(process, unfence=True)
        await process.online(runs=2)


async def test_who_leaves_while_the_disk_is_full_stays_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DISK_RETRY_SECONDS", 0.1)
    async with living(tmp_path) as process:
        await process.online()
        process.runtime.give_up(FULL)
        await until(lambda: process.runtime.closed)
        assert await leave(process) == 1, "a closed runtime tells the group nothing"
        await asyncio.sleep(0.3)
        assert (len(process.runtimes), process.state) == (1, MemberState.LEFT)
        await rejoin(process)
        await process.online(runs=2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"foo": "bar"}, "setting foo is 'bar': expected a setting of the group: foo is no setti"),
        ({"address": "a:1"}, "address is a setting of single members, in their files; the group"),
        ({"group": "other"}, "setting group is 'other': expected shop, for ever"),
        ({"gc_window": "tight", "flow_control_lag_max": "-1"}, "setting flow_control_lag_max is"),
        ({"members_allowed": "m1,+"}, "setting members_allowed is 'm1,+': expected members_allow"),
        (
            {"postgresql_tables": "t"},
            "setting postgresql_tables is 't': expected postgresql_tables",
        ),
    ],
)
def test_a_setting_that_cannot_be_changed_is_named(changes: dict[str, str], said: str) -> None:
    given = {"group": "shop", "member": "m1", "log_servers": "nats://a:1"}
    settings = group_settings(MemberConfig.model_validate(given))
    with pytest.raises(InvalidSetting) as raised:
        changed_settings(settings, changes)
    assert said in str(raised.value)


async def test_tables_are_reserved_at_a_member_with_an_access_list_alone(tmp_path: Path) -> None:

    def reserved() -> tuple[str, ...]:
        return process.runtime.member.settings.postgresql_tables

    async with living(tmp_path) as process:
        await process.online()
        change = {"postgresql_tables": "public.*,shop.*"}
        with pytest.raises(InvalidSetting, match="none at a member without access"):
            await change_settings(process, change)
        assert reserved() == ()
        process.runtime.config = process.runtime.config.model_copy(update={"access": ACCESS})
        await change_settings(process, change)
        assert reserved() == ("public.*", "shop.*")
        process.runtime.config = process.runtime.config.model_copy(update={"access": None})
        await change_settings(process, {"gc_window": "tight"})
        await change_settings(process, {"postgresql_tables": ""})
        assert reserved() == ()
