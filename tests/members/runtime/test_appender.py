"""What waits for company goes to the applier in time, and an error of that is heard."""

import asyncio

import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.members.core.commit_wait import CommitWait
from groupcert.members.runtime.opening import Appender

ENTRY = RelayEntry(1, 1, None, 0, 0, False, b"")


@pytest.mark.parametrize("fails", [False, True])
async def test_nobody_joins_in_time(fails: bool) -> None:
    seen: asyncio.Queue[object] = asyncio.Queue()

    def append(entries: object) -> None:
        if fails:
            raise RuntimeError("a bug")
        seen.put_nowait(entries)

    Appender(CommitWait(2, 1_000), append, seen.put_nowait).add([ENTRY])
    assert seen.empty()
    found = await asyncio.wait_for(seen.get(), 5)
    assert isinstance(found, RuntimeError) if fails else found == [ENTRY]
