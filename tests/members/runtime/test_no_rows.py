"""A member that keeps no rows: what is certified is visible, and nothing of it is stored."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.certifier.storage.store import Family, Store
from groupcert.certifier.write_set import store_key_item
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.views import ViewMember
from groupcert.members.door.callers import Callers
from groupcert.members.errors.membership import NotComparable, RowsNotKept
from groupcert.members.rebuild.holding import holding
from groupcert.members.recovery.copies import OF_ROWS
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.members.services.admin import AdminService
from groupcert.members.services.binary_log import binary_log_of
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.submitting import submit
from groupcert.members.wire.row_changes import encode_changes
from groupcert.v1 import admin_pb2
from tests.members.process.test_lifecycle import config_of, living
from tests.sim.memory_order import MemoryLog, MemoryOrder
from tests.waiting import until

FRAGMENT_BYTES = 64 << 10
NONE: dict[str, Any] = {"rows": "none", "fragment_bytes": FRAGMENT_BYTES}
NO_CONTEXT: Any = None


def write(number: int, size: int = 10) -> LoggedTransaction:
    key = b"%d" % number
    payload = encode_changes([key], [os.urandom(size)])
    return LoggedTransaction(key, 0, (store_key_item(key),), payload=payload)


def stored_rows(store: Store) -> list[Family]:
    """The families of a store that have something of rows."""
    return [family for family in OF_ROWS if next(store.scan(family), None)]


async def test_it_goes_on_where_its_stored_state_is(tmp_path: Path) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log, **NONE) as process:
        await process.online()
        runtime = process.runtime
        for number in range(5):
            await runtime.submit([write(number)])
        await submit(runtime, write(5, 3 * FRAGMENT_BYTES))
        assert runtime.committed_version == runtime.gtid_executed().count() == 6
        assert runtime.rows.status().committed_total == 6
        await until(lambda: runtime.durable_version == 6)
        runtime.save()
        runtime.store.flush()
        assert stored_rows(runtime.store) == []
        digest = runtime.member.certifier.digest()
        await runtime.submit([write(6)])
    async with living(tmp_path, log, **NONE) as process:
        await process.online()
        runtime = process.runtime
        assert runtime.committed_version == runtime.gtid_executed().count() == 7
        assert runtime.member.certifier.digest() != digest
        assert stored_rows(runtime.store) == []


async def test_who_asks_it_for_rows_hears_where_some_are(tmp_path: Path) -> None:
    async with living(tmp_path, **NONE) as process:
        await process.online()
        runtime = process.runtime
        with pytest.raises(RowsNotKept, match=r"m1 keeps no rows .* once it has joined"):
            runtime.check_readable()
        member = runtime.member
        second = ViewMember(name="m2", incarnation=7, address="h:2")
        member.view = replace(member.view, members=member.view.with_member(second))
        for asked in (
            runtime.check_readable,
            runtime.rows.open_snapshot,
            lambda: binary_log_of(runtime),
        ):
            with pytest.raises(RowsNotKept, match=r"ask one that does, m2 at h:2$"):
                asked()
        with pytest.raises(NotComparable, match="m1 keeps none"):
            runtime.rows.comparison.read(1, [0], b"").result()


async def test_it_cannot_be_made_the_primary(tmp_path: Path) -> None:
    """While others have rows: nobody could write then but who brings a write set."""
    async with living(tmp_path, single_primary=True, **NONE) as process:
        await process.online()
        member = process.runtime.member
        assert member.view.primary == "m1"
        second = ViewMember(name="m2", incarnation=7, address="h:2")
        view = replace(member.view, members=member.view.with_member(second))
        member.view = view.in_mode(single_primary=True)
        assert member.view.primary == "m2"
        current = CurrentRuntime()
        current.runtime = process.runtime
        admin = AdminService(current, Callers(None, has_tls=False))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: admin.SetPrimary(admin_pb2.SetPrimaryRequest(primary="m1"), NO_CONTEXT),
            lambda: admin.SwitchMode(
                admin_pb2.SwitchModeRequest(single_primary=True, primary="m1"), NO_CONTEXT
            ),
        ]
        for call in calls:
            with pytest.raises(InvalidSetting, match="expected a member that keeps rows: m2"):
                await call()


@pytest.mark.parametrize(("before", "after"), [("kept", "none"), ("none", "kept")])
async def test_a_data_folder_stays_with_or_without_rows(
    tmp_path: Path, before: str, after: str
) -> None:
    log = MemoryLog("g")
    async with living(tmp_path, log, rows=before) as process:
        await process.online()
        await process.runtime.submit([write(1)])
    with pytest.raises(InvalidSetting, match=f"rows is '{after}': expected \"{before}\", as this"):
        MemberRuntime(config_of(tmp_path, rows=after), MemoryOrder(log), lambda state: None)
    async with living(tmp_path, log, rows=before) as process:
        await process.online()
        assert process.runtime.committed_version == 1


async def test_a_folder_is_without_rows_before_its_member_has_read_a_log(
    tmp_path: Path,
) -> None:
    order = MemoryOrder(MemoryLog("g"))
    MemberRuntime(config_of(tmp_path, **NONE), order, lambda state: None).close()
    with pytest.raises(InvalidSetting, match="rows is 'kept': expected \"none\""):
        MemberRuntime(config_of(tmp_path), order, lambda state: None)


async def test_a_log_is_not_rebuilt_from_it(tmp_path: Path) -> None:
    async with living(tmp_path, **NONE) as process:
        await process.online()
        await process.runtime.submit([write(1)])
    with pytest.raises(InvalidSetting, match="leave it out, with --without"), holding(tmp_path):
        pass
