"""The history that is kept with `record_history`: whole for a reader who takes its time."""

import json
from pathlib import Path

import pytest

from certifier.store import Family, Store, StoreIdentity, integer_key
from groupcert.v1 import group_pb2
from members import history
from members.current_runtime import CurrentRuntime
from members.history import read_history
from members.runtime import MemberRuntime
from members.service import GroupService
from tests.members.test_admin_service import Context, Refused
from tests.members.test_copies import write_of
from tests.members.test_lives import living


def decide(store: Store, *versions: int) -> None:
    """Keeps transactions that were decided at one time."""
    rows = [[version, "07", f"g:{version}", 0, version, [1, 2]] for version in versions]
    batch = store.batch()
    batch.put(Family.DECISIONS, integer_key(versions[0]), json.dumps(rows).encode())
    store.write(batch)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_each_part_has_what_was_there_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(history, "RESPONSE_TRANSACTIONS", count)
    with Store(tmp_path, StoreIdentity(group="g", member="m1")) as store:
        assert not list(read_history(store, 0))
        for versions in ((1,), (2, 3), (4, 5, 6), (7,)):
            decide(store, *versions)
        parts = read_history(store, 1)
        found = [*next(parts).versions]
        decide(store, 8)
        found += [version for part in parts for version in part.versions]
        assert found == [2, 3, 4, 5, 6, 7]


async def commit(runtime: MemberRuntime) -> None:
    """Commits a transaction whose decision has a key of its own."""
    await runtime.submit((write_of(b"value", runtime.committed_version),))
    runtime.save()


async def test_who_reads_slowly_keeps_no_member_from_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RESPONSE_TRANSACTIONS", 1)
    async with living(tmp_path, record_history=True) as process:
        await process.online()
        await commit(process.runtime)
        await commit(process.runtime)
        current = CurrentRuntime()
        current.runtime = process.runtime
        request = group_pb2.ReadHistoryRequest()
        parts = GroupService(current).ReadHistory(request, Context())  # type: ignore[arg-type]
        assert [*(await anext(parts)).versions] == [1]
        process.runtime.member.expel("m1")
        process.runtime._sender.schedule()
        await process.online(lives=2)
        with pytest.raises(Refused, match="UNAVAILABLE"):
            await anext(parts)
