"""What load balancers and supervisors ask: does the process live, and may it be sent clients?

An event loop that does not answer is told by `paths`, for these as for all that ask it.
"""

from collections.abc import Callable
from http import HTTPStatus

from groupcert.members.console.paths import Answer, told
from groupcert.members.core.states import MemberState

State = tuple[str, str]
"""The name of a member's state, and why it is not ONLINE."""


def health(state: Callable[[], State]) -> Answer:
    """Answers whether the event loop does: also that of a fenced member, which a restart would not
    help.
    """
    state()
    return told("alive")


def readiness(state: Callable[[], State]) -> Answer:
    """Answers whether the member is ONLINE; if it is not, with its state and the reason."""
    now, reason = state()
    if now == MemberState.ONLINE.name:
        return told(now)
    text = f"{now}: {reason}".removesuffix(": ")
    return told(text, HTTPStatus.SERVICE_UNAVAILABLE)
