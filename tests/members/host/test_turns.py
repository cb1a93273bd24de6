"""Long work lets others have their turn, and work beside the event loop ends as it would in it."""

import asyncio
import threading

import pytest

from groupcert.members.host.turns import Turns
from groupcert.members.services.conversions import LIGHT_BYTES, converted


async def test_work_in_steps_lets_others_go_on_once_its_turn_is_over() -> None:
    turns = Turns()
    seen: list[str] = []
    asyncio.get_running_loop().call_soon(seen.append, "others")
    turns.deadline += 3_600
    await turns.others()
    assert not seen, "its turn is not over"
    turns.deadline = 0.0
    await turns.others()
    assert seen == ["others"]
    assert turns.deadline > 0.0


@pytest.mark.parametrize("weight", [LIGHT_BYTES, LIGHT_BYTES + 1])
async def test_a_heavy_request_is_converted_by_a_thread_and_a_light_one_at_once(
    weight: int,
) -> None:
    thread = await converted(weight, threading.get_ident)
    assert (thread == threading.get_ident()) == (weight == LIGHT_BYTES)

    def fail() -> None:
        raise ValueError("no request")

    with pytest.raises(ValueError, match="no request"):
        await converted(weight, fail)
