"""A message that a member cannot take loses nothing of those before it, which came with it."""

from pathlib import Path

import pytest

from certifier.errors import CorruptRecord
from certifier.write_set import store_key_item
from groupcert.v1.transaction_pb2 import Changes
from members.config import MemberConfig
from members.convert import encode_batch
from members.log_records import LogBatch, LoggedTransaction, ViewProposal
from members.runtime import MemberRuntime
from members.total_order import Delivery
from members.views import ViewMember
from tests.sim.memory_order import MemoryLog, MemoryOrder

WRITER = ViewMember(name="m2", incarnation=7, address="127.0.0.1:1")


def runtime_at(folder: Path) -> MemberRuntime:
    config = MemberConfig(
        group="g", member="m1", data_folder=folder, log_servers=("nats://127.0.0.1:1",)
    )
    return MemberRuntime(config, MemoryOrder(MemoryLog("g")), lambda state: None)


def messages(runtime: MemberRuntime) -> list[Delivery]:
    """The first view, and a transaction of another member that puts one row."""
    changes = Changes(put_keys=[b"key"], put_values=[b"value"]).SerializeToString()
    write = LoggedTransaction(b"", 0, [store_key_item(b"key")], payload=changes)
    batches = [
        LogBatch("m2", 7, 1, (), (runtime.member.options.settings, ViewProposal(0, (WRITER,)))),
        LogBatch("m2", 7, 2, [write]),
    ]
    return [Delivery(number, encode_batch(each)) for number, each in enumerate(batches, start=1)]


async def test_what_came_before_a_message_that_fails_is_applied_once(tmp_path: Path) -> None:
    runtime = runtime_at(tmp_path)
    first, second = messages(runtime)
    runtime._deliver([first])
    runtime.save()
    with pytest.raises(CorruptRecord):
        runtime._deliver([second, Delivery(3, b"no batch")])
    assert runtime.applier.drain(10)
    assert runtime.target.open_snapshot().get(b"key") == b"value"
    runtime.close()
    del runtime

    again = runtime_at(tmp_path)
    assert again.member.log_sequence == 1, "the mind that failed was not stored"
    assert again.target.open_snapshot().version == 1, "the rows are ahead of it"
    again._deliver([second])
    assert again.applier.drain(10)
    assert again.applier.status().skipped_total == 1
    assert again.target.open_snapshot().get(b"key") == b"value"
    again.close()
