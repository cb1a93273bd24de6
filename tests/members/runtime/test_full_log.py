"""What a member answers while its log has no space: at once, and what is so."""

import asyncio
from pathlib import Path

import pytest

from groupcert.certifier.errors import LogFull
from groupcert.certifier.records import Verdict
from tests.members.process.test_lifecycle import living
from tests.members.runtime.test_log_start import put
from tests.sim.memory_order import MemoryLog
from tests.waiting import until

CAUSE = "insufficient resources (10023)"


async def test_only_what_is_on_its_way_waits_for_space_and_all_else_is_refused_at_once(
    tmp_path: Path,
) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log) as process:
        await process.online()
        runtime = process.runtime
        log.full = CAUSE
        sent = runtime.submit([put(b"sent", 0, 1)])
        await asyncio.sleep(0)  # It goes out; the next tick tells the member.
        assert runtime.order.full()
        waiting = [runtime.submit([put(b"%d" % each, 0, each)]) for each in range(2, 5)]
        waiting.append(runtime.submit(()))
        for each in waiting:
            with pytest.raises(LogFull, match="nothing of this attempt was ordered"):
                await each
        with pytest.raises(LogFull) as refused:
            runtime.submit([put(b"more", 0, 6)])
        assert refused.value.cause == CAUSE
        with pytest.raises(LogFull):
            runtime.uploads.begin(1)
        assert not sent.done(), "an attempt may have been taken"

        log.full = ""
        [outcome] = (await sent).outcomes
        assert outcome is not None and outcome.verdict is Verdict.CERTIFIED
        await until(lambda: not runtime.member.publisher.log_full)
        await runtime.submit([put(b"more", 1, 6)])
        assert runtime.committed_version == 2, "nothing of what was refused has come in"


async def test_a_large_transaction_on_its_way_is_refused_too(tmp_path: Path) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log) as process:
        await process.online()
        runtime = process.runtime
        with runtime.uploads.begin(1 << 20) as upload:
            log.full = CAUSE
            with pytest.raises(LogFull):
                await upload.finish()
