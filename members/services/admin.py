"""The gRPC service for operators: changes of the group, and of the member that is asked.

The rule it keeps: a change of the group is a record in its log; the call is answered when this
member has read the record back, and by then it counts at every member or at none. The door
(`members/door/door.py`) turns the errors that are raised here into statuses.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import grpc.aio
from pydantic import ValidationError

from groupcert.v1 import admin_pb2, admin_pb2_grpc

from ...certifier.errors import InvalidSetting, NotServing
from ..core.log_records import RANGES, SETTINGS_FIXED, GroupSettings
from ..core.member import Member
from ..core.views import MemberState, ViewMember
from ..door.callers import Callers
from ..errors.membership import ChangedMeanwhile
from ..errors.permissions import CallNotAllowed, NotAuthenticated
from ..runtime.opening import group_settings
from ..runtime.operations import leave, order_skip
from ..runtime.row_comparison import key_hash
from ..runtime.runtime import MemberRuntime, RunStart
from ..settings.member import MemberConfig, expected_of, problem_text
from ..settings.shown import shown_settings
from .current_runtime import CurrentRuntime

LEAVE_SECONDS = 10.0
_NAMES = GroupSettings._fields[1:]
_ANY = {"principal": [{"name": "any", "certificate": "any", "roles": ["admin"]}]}

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Implements `admin.proto`."""

    def __init__(self, current: CurrentRuntime, callers: Callers) -> None:
        self._current = current
        self._callers = callers

    async def GetSettings(
        self, request: admin_pb2.GetSettingsRequest, context: Context
    ) -> admin_pb2.GetSettingsResponse:
        """Returns the group's settings, and this member's own."""
        runtime = self._current.operated()
        settings = runtime.member.settings
        return admin_pb2.GetSettingsResponse(
            settings_version=settings.settings_version,
            settings=settings_texts(settings),
            member_settings=shown_settings(runtime.config),
        )

    async def ChangeSettings(
        self, request: admin_pb2.ChangeSettingsRequest, context: Context
    ) -> admin_pb2.ChangeSettingsResponse:
        """Changes the group's settings on every member."""
        runtime = self._current.get()
        settings = changed_settings(runtime.member.settings, request.settings)
        if "postgresql_tables" in request.settings:
            _check_access(settings, runtime.config)
        if not request.dry_run:
            await _change(
                runtime,
                f"settings {', '.join(request.settings)}",
                lambda member: member.change_settings(settings),
                lambda member: settings_texts(member.settings) == settings_texts(settings),
            )
        version = runtime.member.settings.settings_version
        return admin_pb2.ChangeSettingsResponse(settings_version=version)

    async def SwitchMode(
        self, request: admin_pb2.SwitchModeRequest, context: Context
    ) -> admin_pb2.SwitchModeResponse:
        """Changes the mode, and the primary with it if one is named."""
        single, primary = request.single_primary, request.primary if request.single_primary else ""

        def ask(member: Member) -> None:
            if member.settings.single_primary != single:
                member.change_settings(member.settings._replace(single_primary=single))
            if primary:
                member.appoint(primary)

        def holds(member: Member) -> bool:
            return member.settings.single_primary == single and (
                primary in ("", member.view.primary)
            )

        runtime = self._current.get()
        if primary:
            _check_primary(runtime, primary)
        await _change(runtime, "mode", ask, holds)
        return admin_pb2.SwitchModeResponse(primary=runtime.member.view.primary)

    async def SetPrimary(
        self, request: admin_pb2.SetPrimaryRequest, context: Context
    ) -> admin_pb2.SetPrimaryResponse:
        """Appoints another member as the primary."""
        runtime = self._current.get()
        _check_primary(runtime, request.primary)
        if not runtime.member.settings.single_primary:
            raise InvalidSetting(
                name="single_primary", value="false", expected="single-primary mode"
            )
        await _change(
            runtime,
            f"primary {request.primary}",
            lambda member: member.appoint(request.primary),
            lambda member: member.view.primary == request.primary,
        )
        return admin_pb2.SetPrimaryResponse()

    async def ExpelMember(
        self, request: admin_pb2.ExpelMemberRequest, context: Context
    ) -> admin_pb2.ExpelMemberResponse:
        """Removes a member from the view."""
        runtime = self._current.get()
        expelled = _check_member(runtime, request.member)
        await _change(
            runtime,
            f"expel {request.member}",
            lambda member: member.expel(request.member),
            lambda member: member.view.member(expelled.incarnation) is None,
        )
        return admin_pb2.ExpelMemberResponse(view_id=runtime.member.view.view_id)

    async def ForgetMember(
        self, request: admin_pb2.ForgetMemberRequest, context: Context
    ) -> admin_pb2.ForgetMemberResponse:
        """Removes a departed member from the list of the departed."""
        name = request.member

        def is_forgotten(member: Member) -> bool:
            return all(each.name != name for each in member.departures.named())

        runtime = self._current.get()
        if is_forgotten(runtime.member):
            departed = ", ".join(each.name for each in runtime.member.departures.named())
            expected = f"one that has departed: {departed or 'nobody has'}"
            raise InvalidSetting(name="member", value=name, expected=expected)
        await _change(runtime, f"forget {name}", lambda member: member.forget(name), is_forgotten)
        return admin_pb2.ForgetMemberResponse()

    async def Leave(
        self, request: admin_pb2.LeaveRequest, context: Context
    ) -> admin_pb2.LeaveResponse:
        """Makes this member leave its group."""
        runtime = self._current.operated()
        _check_may_leave(runtime)
        await leave(runtime, LEAVE_SECONDS)
        member = runtime.member
        is_in_view = member.view.member(member.me.incarnation) is not None
        return admin_pb2.LeaveResponse(view_id=member.view.view_id if is_in_view else 0)

    async def Rejoin(
        self, request: admin_pb2.RejoinRequest, context: Context
    ) -> admin_pb2.RejoinResponse:
        """Begins another run of this member."""
        runtime = self._current.operated()
        unfence = request.unfence or request.discard_state
        is_recovering = runtime.member.state is MemberState.RECOVERING
        if request.trust_log and is_recovering and not unfence:
            runtime.trust_log()
            return admin_pb2.RejoinResponse()
        _check_may_rejoin(runtime, unfence=unfence)
        start = RunStart(request.discard_state, request.trust_log)
        runtime.begin_again(start)
        path = str(runtime.discarded_path) if request.discard_state else ""
        return admin_pb2.RejoinResponse(discarded_path=path)

    async def SkipMessage(
        self, request: admin_pb2.SkipMessageRequest, context: Context
    ) -> admin_pb2.SkipMessageResponse:
        """Writes a record to the log that a message is to be skipped."""
        await order_skip(self._current.operated(), request.log_sequence)
        return admin_pb2.SkipMessageResponse()

    async def CompareRows(
        self, request: admin_pb2.CompareRowsRequest, context: Context
    ) -> admin_pb2.CompareRowsResponse:
        """Begins a comparison of all members' rows, unless one waits for members."""
        runtime = self._current.get()
        compared = runtime.member.comparisons
        before = compared.position
        if not compared.waiting:
            await _change(
                runtime,
                "comparison",
                lambda member: member.compare(time.time_ns() // 1000),
                lambda _: compared.position > before,
            )
        return admin_pb2.CompareRowsResponse(position=compared.position)

    async def ReadComparedRows(
        self, request: admin_pb2.ReadComparedRowsRequest, context: Context
    ) -> admin_pb2.ReadComparedRowsResponse:
        """Returns a page of the rows that were compared last; their keys to who may read rows."""
        may_read = True
        try:
            self._callers.admit("/groupcert.v1.StoreService/Scan", context)
        except (NotAuthenticated, CallNotAllowed):
            may_read = False
        ranges = frozenset(request.ranges or range(RANGES))
        comparison = self._current.get().rows.comparison
        page = comparison.read(request.position, ranges, request.start_key)
        rows, next_key = await asyncio.wrap_future(page)
        return admin_pb2.ReadComparedRowsResponse(
            rows=[
                admin_pb2.ComparedRow(
                    key_hash=key_hash(row.key), key=row.key if may_read else b"", digest=row.digest
                )
                for row in rows
            ],
            next_key=next_key,
        )


def settings_texts(settings: GroupSettings) -> dict[str, str]:
    """Returns settings as a member's file would have them, without their version."""
    return {name: _text(getattr(settings, name)) for name in _NAMES}


def changed_settings(settings: GroupSettings, changes: Mapping[str, str]) -> GroupSettings:
    """Returns the settings with some of them changed.

    Raises:
        InvalidSetting: One is not a setting of the group, cannot be changed, or has a value that it
            cannot have.
    """
    for name in changes:
        if name not in _NAMES:
            own = name in MemberConfig.model_fields
            what = "a setting of single members, in their files" if own else "no setting"
            known = ", ".join(each for each in _NAMES if each not in SETTINGS_FIXED)
            expected = f"a setting of the group: {name} is {what}; the group has {known}"
            raise InvalidSetting(name=name, value=changes[name], expected=expected)
        if name in SETTINGS_FIXED:
            raise InvalidSetting(
                name=name, value=changes[name], expected=f"{getattr(settings, name)}, for ever"
            )
    values = {**settings_texts(settings), **changes}
    try:
        config = MemberConfig.model_validate(
            {**values, "member": "any", "log_servers": "nats://any", "access": _ANY}
        )
    except ValidationError as error:
        first = next(each for each in error.errors() if problem_text(each))
        name = next((each for each in changes if each in first["loc"]), next(iter(changes)))
        raise InvalidSetting(name=name, value=changes[name], expected=expected_of(first)) from None
    return group_settings(config)


def _check_access(settings: GroupSettings, config: MemberConfig) -> None:
    """Raises InvalidSetting if rows are reserved for a role that nobody has at this member."""
    if settings.postgresql_tables and config.access is None:
        raise InvalidSetting(
            name="postgresql_tables",
            value=",".join(settings.postgresql_tables),
            expected="none at a member without access, where nobody has the role postgresql: give "
            "every member an access list first",
        )


async def _change(
    runtime: MemberRuntime,
    change: str,
    ask: Callable[[Member], None],
    holds: Callable[[Member], bool],
) -> None:
    """Asks the group for a change, and returns once this member has read back that it holds.

    Raises:
        NotServing: The member is not ONLINE, or stops to be.
        ChangedMeanwhile: Another change came first, and this one did not count.
    """
    member = runtime.member
    if member.state is not MemberState.ONLINE:
        raise NotServing(member=member.me.name, state=member.state.name)
    if holds(member):
        return
    ask(member)
    await runtime.submit(())
    if not holds(member):
        raise ChangedMeanwhile(change=change)


def _check_member(runtime: MemberRuntime, name: str) -> ViewMember:
    view = runtime.member.view
    found = view.named(name)
    if found is None:
        names = ", ".join(each.name for each in view.members)
        raise InvalidSetting(name="member", value=name, expected=f"one of the view: {names}")
    return found


def _check_primary(runtime: MemberRuntime, name: str) -> None:
    """Raises InvalidSetting for a member that is not in the view, or without rows where some have
    rows.
    """
    is_without = _check_member(runtime, name).without_rows
    names = [each.name for each in runtime.member.view.members if not each.without_rows]
    if is_without and names:
        expected = f"a member that keeps rows: {', '.join(names)}"
        raise InvalidSetting(name="primary", value=name, expected=expected)


def _check_may_leave(runtime: MemberRuntime) -> None:
    member = runtime.member
    if member.state is MemberState.FENCED:
        raise NotServing(member=member.me.name, state=f"FENCED, and out ({member.reason})")
    if runtime.begun_again.done():
        raise _begins_anew(member)


def _begins_anew(member: Member) -> NotServing:
    return NotServing(member=member.me.name, state=f"{member.state.name}, and begins anew already")


def _check_may_rejoin(runtime: MemberRuntime, *, unfence: bool) -> None:
    member = runtime.member
    if runtime.closed and runtime.begun_again.done():  # Its next run waits for the disk.
        raise _begins_anew(member)
    if member.state is MemberState.FENCED and not unfence:
        raise NotServing(member=member.me.name, state=f"FENCED, say --unfence ({member.reason})")
    if member.state in (MemberState.ONLINE, MemberState.JOINING, MemberState.RECOVERING):
        raise InvalidSetting(
            name="state", value=member.state.name, expected="a member that is out of its group"
        )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
