"""Logs a member's state for its operator, once for each change."""

from collections.abc import Callable

import structlog

from ..core.log_records import GroupSettings
from ..core.member import Member
from ..core.states import MemberState

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class StateLog:
    """Logs the states of one member, and passes them on."""

    def __init__(self, member: Member, on_state: Callable[[MemberState], None]) -> None:
        self._member = member
        self._on_state = on_state
        self._shown: MemberState | None = None

    def note(self) -> bool:
        """Logs the state if it has changed since the last call, and returns whether it has."""
        member = self._member
        if member.state is self._shown:
            return False
        self._shown = member.state
        log.info(
            "member_state",
            member=member.me.name,
            state=member.state.name,
            view=member.view.view_id,
            reason=member.reason,
        )
        self._on_state(member.state)
        if member.state is MemberState.ONLINE:
            self._warn_of_settings()
        return True

    def _warn_of_settings(self) -> None:
        """Logs which settings of this member differ from those of the group that it has joined."""
        mine, groups = self._member.options.settings, self._member.settings
        for name in GroupSettings._fields[1:]:
            if getattr(mine, name) != getattr(groups, name):
                log.warning(
                    "group_setting_differs",
                    member=self._member.me.name,
                    setting=name,
                    configured=getattr(mine, name),
                    used=getattr(groups, name),
                )
