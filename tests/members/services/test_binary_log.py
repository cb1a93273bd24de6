"""Changes of the binary log that operators ask for, while the disk is slow."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from groupcert.members.core.views import MemberState
from groupcert.members.services.binary_log import BinaryLogService
from groupcert.v1.binary_log_pb2 import RotateRequest


def service(binary_log: object) -> BinaryLogService:
    """The service of a member with such a log, as far as changes of it look at the member."""
    runtime: Any = SimpleNamespace(
        binary_log=binary_log,
        committed_position=7,
        closed=False,
        state=MemberState.ERROR,
        config=SimpleNamespace(member="m1"),
    )
    current: Any = SimpleNamespace(get=lambda: runtime)
    return BinaryLogService(current)


async def test_the_event_loop_goes_on_while_the_disk_is_slow() -> None:
    goes_on = threading.Event()
    waits = []

    def rotate(position: int) -> bool:
        waits.append(position)
        return goes_on.wait(10)

    log = SimpleNamespace(rotate=rotate, files=[SimpleNamespace(number=3)])
    context: Any = None
    asked = asyncio.ensure_future(service(log).Rotate(RotateRequest(), context))
    asyncio.get_running_loop().call_later(0.01, goes_on.set)
    assert (await asked).file == 3
    assert waits == [7]
