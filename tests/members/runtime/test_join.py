"""A member that joins asks others what they have read: over gRPC, on a log in memory."""

from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.core import witnesses
from groupcert.members.core.log_records import LogBatch, ViewProposal
from groupcert.members.core.views import MemberState, ViewMember
from groupcert.members.core.witnesses import Progress
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.runtime import log_start
from groupcert.members.runtime.opening import group_settings
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials
from groupcert.members.wire.log_batches import encode_batch
from groupcert.members.wire.peer_status import ask_progress
from tests.members.process.test_lifecycle import config_of, living
from tests.members.process.test_serve import access_of, serving
from tests.members.services.test_admin import rejoin
from tests.sim.memory_order import MemoryLog
from tests.waiting import until


def log_with_view(folder: Path, *members: ViewMember) -> MemoryLog:
    """A log of a group whose first view has some members, of which none is there."""
    log = MemoryLog("g")
    log.create()
    controls = (
        group_settings(config_of(folder))._replace(settings_version=1),
        ViewProposal(0, members),
    )
    log.append("1", encode_batch(LogBatch("m2", 7, 1, (), controls)))
    return log


async def test_a_joiner_waits_for_those_of_the_last_view_or_for_its_operator(
    tmp_path: Path,
) -> None:
    address = f"{HOST}:{free_port()}"
    log = log_with_view(tmp_path, ViewMember(name="m2", incarnation=7, address=address))
    async with living(tmp_path, log) as process:
        await until(lambda: process.runtimes and "waits for m2" in process.runtime.member.reason)
        assert f"m2 ({address}: UNREACHABLE) to say how far" in process.runtime.member.reason
        with pytest.raises(InvalidSetting, match="a member that is out of its group"):
            await rejoin(process)
        assert process.state is MemberState.RECOVERING
        assert log.state().last_sequence == 1, "it has asked for nothing"
        await rejoin(process, trust=True)
        await process.online()


async def test_who_has_read_more_keeps_a_joiner_out_until_its_operator_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witnesses, "SHORTER_MS_MAX", 100)
    async with serving(tmp_path / "whole") as (whole, address):
        assert whole.vouches_for_log
        async with living(tmp_path / "empty", seeds=(address,), member="m9") as process:
            await until(lambda: process.runtimes and process.state is MemberState.FENCED)
            reason = process.runtime.member.reason
            assert reason.startswith("LOG_CUT_SHORT: the log ends at 0, before what member m1 has")
            await rejoin(process, unfence=True)
            await until(lambda: len(process.runtimes) == 2 and process.state is MemberState.FENCED)
            await rejoin(process, unfence=True, trust=True)
            await process.online(runs=3)
            assert not process.runtime.next_start.trusts_log, "once, not for ever"


async def test_who_finds_the_log_cut_says_so_at_once_and_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log) as process:
        await process.online()
    read = process.runtime.member.log_sequence
    log.truncate(read - 1)
    words = f"the log ends at {read - 1}, before what member m1 has read, {read}: "
    async with living(tmp_path, log) as process:
        await until(lambda: process.runtimes and process.runtime.member.reason.startswith(words))
        assert process.state is MemberState.RECOVERING
        assert process.runtime.vouches_for_log
    monkeypatch.setattr(log_start, "SHORTER_MS_MAX", 10)
    async with living(tmp_path, log) as process:
        await until(lambda: process.runtimes and process.state is MemberState.FENCED)
        assert process.runtime.member.reason.startswith(f"LOG_CUT_SHORT: {words}")


@pytest.mark.parametrize(
    ("role", "cause"),
    [
        (Role.MEMBER, ""),
        (Role.WRITE, "REFUSING (principal 'only write' may not call "),
    ],
)
async def test_the_role_of_members_is_enough_to_ask(tmp_path: Path, role: Role, cause: str) -> None:
    async with serving(tmp_path, access=access_of(Role.MEMBER, Role.WRITE)) as (runtime, address):
        (asked,) = await ask_progress([address], Credentials(token=role.value))
        member = runtime.member
    progress = Progress(
        "m1",
        member.settings.group,
        str(runtime.log_identity),
        member.log_sequence,
        member.certifier.digest(),
        vouches=True,
    )
    if cause:
        assert asked[0] == address
        assert str(asked[1]).startswith(cause)
    else:
        assert asked == (address, progress)
