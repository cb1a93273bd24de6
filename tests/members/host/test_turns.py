"""Long work lets others have their turn, and work beside the event loop ends as it would in it."""

import asyncio
import threading

import pytest

from groupcert.members.host.turns import Turns
from groupcert.members.services.conversions import LIGHT_BYTES, converted, weight_of
from groupcert.v1.store_pb2 import CommitRequest
from groupcert.v1.transaction_pb2 import Changes


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


def test_the_weight_of_a_commit_is_that_of_its_keys() -> None:
    large = CommitRequest(changes=Changes(put_keys=[b"1"], put_values=[bytes(100 * LIGHT_BYTES)]))
    assert weight_of(large) <= LIGHT_BYTES
    keys = [b"%d" % number for number in range(500)]
    changes = Changes(put_keys=keys, put_values=keys, delete_keys=keys)
    many = CommitRequest(changes=changes, read_keys=keys)
    assert weight_of(many) == 3 * weight_of(CommitRequest(read_keys=keys)) > LIGHT_BYTES
