"""The gRPC service for operators: changes of the group, and of the one member that is asked.

The rule it keeps: a change of the group is a record in its log; it is answered when this member has
read it back, and by then it either counts at every member alike or at none.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import grpc.aio
from pydantic import ValidationError

from certifier.errors import GroupcertError, InvalidSetting, NotServing
from groupcert.v1 import admin_pb2, admin_pb2_grpc
from members.config import MemberConfig, problem_text
from members.current_runtime import CurrentRuntime
from members.leaving import leave
from members.log_records import SETTINGS_FIXED, GroupSettings
from members.member import Member
from members.member_state import MemberState
from members.membership_errors import ChangedMeanwhile
from members.options import group_settings
from members.runtime import MemberRuntime
from members.skips import order_skip
from members.status import abort
from members.views import ViewMember

LEAVE_SECONDS = 10.0
_NAMES = GroupSettings._fields[1:]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """See the protocol."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def GetSettings(
        self, request: admin_pb2.GetSettingsRequest, context: Context
    ) -> admin_pb2.GetSettingsResponse:
        """The group's settings."""
        try:
            settings = self._current.observed().member.settings
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.GetSettingsResponse(
            settings_version=settings.settings_version, settings=settings_texts(settings)
        )

    async def ChangeSettings(
        self, request: admin_pb2.ChangeSettingsRequest, context: Context
    ) -> admin_pb2.ChangeSettingsResponse:
        """Changes them for everybody."""
        try:
            runtime = self._current.get()
            settings = changed_settings(runtime.member.settings, request.settings)
            if not request.dry_run:
                await _change(
                    runtime,
                    f"settings {', '.join(request.settings)}",
                    lambda member: member.change_settings(settings),
                    lambda member: settings_texts(member.settings) == settings_texts(settings),
                )
        except GroupcertError as error:
            await abort(context, error)
        version = runtime.member.settings.settings_version
        return admin_pb2.ChangeSettingsResponse(settings_version=version)

    async def SwitchMode(
        self, request: admin_pb2.SwitchModeRequest, context: Context
    ) -> admin_pb2.SwitchModeResponse:
        """Changes the mode, and the primary with it where one is named."""
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

        try:
            runtime = self._current.get()
            if primary:
                _check_member(runtime, primary)
            await _change(runtime, "mode", ask, holds)
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.SwitchModeResponse(primary=runtime.member.view.primary)

    async def SetPrimary(
        self, request: admin_pb2.SetPrimaryRequest, context: Context
    ) -> admin_pb2.SetPrimaryResponse:
        """Makes another member the primary."""
        try:
            runtime = self._current.get()
            _check_member(runtime, request.primary)
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
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.SetPrimaryResponse()

    async def ExpelMember(
        self, request: admin_pb2.ExpelMemberRequest, context: Context
    ) -> admin_pb2.ExpelMemberResponse:
        """Puts a member out of the view."""
        try:
            runtime = self._current.get()
            expelled = _check_member(runtime, request.member)
            await _change(
                runtime,
                f"expel {request.member}",
                lambda member: member.expel(request.member),
                lambda member: member.view.member(expelled.incarnation) is None,
            )
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.ExpelMemberResponse(view_id=runtime.member.view.view_id)

    async def ForgetMember(
        self, request: admin_pb2.ForgetMemberRequest, context: Context
    ) -> admin_pb2.ForgetMemberResponse:
        """A member that has departed is named no more."""
        name = request.member

        def is_forgotten(member: Member) -> bool:
            return all(each.name != name for each in member.departures.named())

        try:
            runtime = self._current.get()
            if is_forgotten(runtime.member):
                departed = ", ".join(each.name for each in runtime.member.departures.named())
                expected = f"one that has departed: {departed or 'nobody has'}"
                raise InvalidSetting(name="member", value=name, expected=expected)
            await _change(
                runtime, f"forget {name}", lambda member: member.forget(name), is_forgotten
            )
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.ForgetMemberResponse()

    async def Leave(
        self, request: admin_pb2.LeaveRequest, context: Context
    ) -> admin_pb2.LeaveResponse:
        """This member leaves its group."""
        try:
            runtime = self._current.observed()
            _check_may_leave(runtime)
            await leave(runtime, LEAVE_SECONDS)
        except GroupcertError as error:
            await abort(context, error)
        member = runtime.member
        is_in_view = member.view.member(member.me.incarnation) is not None
        return admin_pb2.LeaveResponse(view_id=member.view.view_id if is_in_view else 0)

    async def Rejoin(
        self, request: admin_pb2.RejoinRequest, context: Context
    ) -> admin_pb2.RejoinResponse:
        """This member begins anew."""
        try:
            runtime = self._current.observed()
            unfence = request.unfence or request.discard_state
            is_recovering = runtime.member.state is MemberState.RECOVERING
            if request.trust_log and is_recovering and not unfence:
                runtime.trusts_log = True
                return admin_pb2.RejoinResponse()
            _check_may_rejoin(runtime, unfence=unfence)
            runtime.begin_again(discard_state=request.discard_state, trust_log=request.trust_log)
        except GroupcertError as error:
            await abort(context, error)
        path = str(runtime.discarded_path) if request.discard_state else ""
        return admin_pb2.RejoinResponse(discarded_path=path)

    async def SkipMessage(
        self, request: admin_pb2.SkipMessageRequest, context: Context
    ) -> admin_pb2.SkipMessageResponse:
        """The log says that a message is to be skipped."""
        try:
            await order_skip(self._current.observed(), request.log_sequence)
        except GroupcertError as error:
            await abort(context, error)
        return admin_pb2.SkipMessageResponse()


def settings_texts(settings: GroupSettings) -> dict[str, str]:
    """Settings as a member's file would have them, but for their version."""
    return {name: _text(getattr(settings, name)) for name in _NAMES}


def changed_settings(settings: GroupSettings, changes: Mapping[str, str]) -> GroupSettings:
    """The settings with some of them changed.

    Raises:
        InvalidSetting: One is not a setting of the group, cannot be changed, or has a value that it
            cannot have.
    """
    for name in changes:
        if name not in _NAMES:
            raise InvalidSetting(name=name, value=changes[name], expected=", ".join(_NAMES))
        if name in SETTINGS_FIXED:
            raise InvalidSetting(
                name=name, value=changes[name], expected=f"{getattr(settings, name)}, for ever"
            )
    values = {**settings_texts(settings), **changes}
    try:
        config = MemberConfig.model_validate(
            {**values, "member": "any", "log_servers": "nats://any"}
        )
    except ValidationError as error:
        (problem, *_) = filter(None, map(problem_text, error.errors()))
        name = next(iter(changes))
        raise InvalidSetting(name=name, value=changes[name], expected=problem) from None
    return group_settings(config)


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
    if runtime.closed and runtime.begun_again.done():  # Its next life waits for the disk.
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
