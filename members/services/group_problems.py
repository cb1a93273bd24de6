"""Lists what is wrong with a group, as one member sees it: for status, exit code and alerts.

All of them ask here, so that they agree. That a member does not answer, only whoever asks it can
tell: `groupcert status`, and consoles. Pure.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from groupcert.v1.group_pb2 import (
    DEPARTURE_CAUSE_EXPELLED,
    DEPARTURE_CAUSE_LEFT,
    DEPARTURE_CAUSE_SILENT,
    DEPARTURE_CAUSE_UNSPECIFIED,
    LOG_SERVER_STATE_BEHIND,
    LOG_SERVER_STATE_SILENT,
    MEMBER_STATE_ONLINE,
    DepartedMember,
    GroupStatus,
    MemberStatus,
)

from ..total_order.server_health import LOST_MS
from ..wire.status_documents import state_name

UNACKNOWLEDGED_MS = 3_000
"""Milliseconds; a member sends something at least once a second."""
_GONE = {
    DEPARTURE_CAUSE_UNSPECIFIED: "is in the view no more",
    DEPARTURE_CAUSE_LEFT: "left: it was stopped, or told to leave",
    DEPARTURE_CAUSE_SILENT: "was expelled: nobody heard of it",
    DEPARTURE_CAUSE_EXPELLED: "was expelled by an operator",
}


class ProblemKind(StrEnum):
    """Kinds of problems, as labels of metrics."""

    MEMBER_STATE = "member_state"
    """This member is not ONLINE."""
    MEMBER_UNREACHABLE = "member_unreachable"
    """A member of the view does not answer; only a caller that asks all of them can tell."""
    MEMBER_SILENT = "member_silent"
    MEMBER_DEPARTED = "member_departed"
    LOG_SERVER = "log_server"
    """A server of the log is down, cut off, or lacks some of the log."""
    LOG_LEADER = "log_leader"
    LOG_UNACKNOWLEDGED = "log_unacknowledged"
    LOG_FULL = "log_full"
    """The log takes no more messages for want of space."""
    CERTIFICATION_LOG = "certification_log"
    ROWS_DIFFER = "rows_differ"
    """A member has other rows than most."""
    ROWS_NOWHERE = "rows_nowhere"
    """No member of the view keeps rows."""


OF_OTHERS = (
    ProblemKind.MEMBER_SILENT,
    ProblemKind.MEMBER_DEPARTED,
    ProblemKind.ROWS_DIFFER,
    ProblemKind.ROWS_NOWHERE,
)
"""Kinds about other members: a member that is still reading the log would report the past."""


class Problem(NamedTuple):
    """One problem, with the member or server it is about."""

    kind: ProblemKind
    name: str
    text: str


def problems_of(status: GroupStatus) -> Iterator[Problem]:
    """Yields the problems that a member knows of."""
    observer = status.observer
    if observer.state != MEMBER_STATE_ONLINE:
        text = f"{observer.name} is {state_name(observer)}: {observer.reason}".removesuffix(": ")
        yield Problem(ProblemKind.MEMBER_STATE, observer.name, text)
    for member in status.members:
        if member.silent_ms or member.suspected:
            heard = f", for {_seconds(member.silent_ms)} s" if member.silent_ms else ""
            text = f"{member.name} is silent: {observer.name} hears nothing of it{heard}"
            yield Problem(ProblemKind.MEMBER_SILENT, member.name, text)
    for departed in status.departed:
        yield Problem(ProblemKind.MEMBER_DEPARTED, departed.name, _departed(departed))
    if status.members and all(member.without_rows for member in status.members):
        text = (
            "no member of the view keeps rows: what is committed is in the log alone, until one "
            "that keeps them is in the view again"
        )
        yield Problem(ProblemKind.ROWS_NOWHERE, "group", text)
    for compared in status.comparison.members:
        if ranges := len(compared.differing_ranges):
            text = (
                f"rows of {compared.name} are not those of most members, in {ranges} of 256 ranges "
                f"of keys, as of version {status.comparison.version}: `groupcert verify` compares "
                "again, and names them"
            )
            yield Problem(ProblemKind.ROWS_DIFFER, compared.name, text)
    yield from _of_log(observer)
    if observer.certification_log_error:
        text = (
            f"{observer.name} cannot write its certification log: "
            f"{observer.certification_log_error}"
        )
        yield Problem(ProblemKind.CERTIFICATION_LOG, observer.name, text)


def problems_of_all(seen: GroupStatus, answers: Mapping[str, GroupStatus | str]) -> list[Problem]:
    """Returns the problems, each once: the asked member's of the group, and every member's of
    itself and of the log as it sees it.

    Args:
        answers: By name, what members say; of one that does not answer, why.
    """
    found = [*problems_of(seen)]
    for name, answer in sorted(answers.items()):
        if isinstance(answer, str):
            text = f"{name} does not answer: {answer}"
            found.append(Problem(ProblemKind.MEMBER_UNREACHABLE, name, text))
        elif answer is not seen:
            found += (each for each in problems_of(answer) if each.kind not in OF_OTHERS)
    first = {(each.kind, each.name): each for each in reversed(found)}
    return sorted(first.values())


def since(departed: DepartedMember) -> str:
    """Returns the time of a departure, as text; empty if unknown."""
    if not departed.since_us:
        return ""
    at = datetime.fromtimestamp(departed.since_us // 1_000_000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_log(observer: MemberStatus) -> Iterator[Problem]:
    log = observer.log
    if not log.leader and log.leaderless_ms >= LOST_MS:
        why = f" ({log.problem})" if log.problem else ""
        text = (
            f"the log has had no leader with a majority for {_seconds(log.leaderless_ms)} s, as "
            f"{observer.name} sees it: nothing can be committed{why}"
        )
        yield Problem(ProblemKind.LOG_LEADER, "log", text)
    for server in log.servers:
        if server.state == LOG_SERVER_STATE_SILENT:
            text = f"log server {server.name} is down or cut off: the others do not hear of it"
            yield Problem(ProblemKind.LOG_SERVER, server.name, text)
        elif server.state == LOG_SERVER_STATE_BEHIND:
            text = f"log server {server.name} is behind: it lacks {server.lag:,} entries of the log"
            yield Problem(ProblemKind.LOG_SERVER, server.name, text)
    if log.full:
        text = f"the log has no space, as {observer.name} was told: nothing can be committed"
        yield Problem(ProblemKind.LOG_FULL, "log", f"{text} ({log.full})")
    elif observer.log_unacknowledged_ms >= UNACKNOWLEDGED_MS:
        text = (
            f"the log has not acknowledged a message of {observer.name} for "
            f"{_seconds(observer.log_unacknowledged_ms)} s"
        )
        yield Problem(ProblemKind.LOG_UNACKNOWLEDGED, observer.name, text)


def _departed(departed: DepartedMember) -> str:
    at = f", at {since(departed)}" if departed.since_us else ""
    return (
        f"{departed.name} ({departed.address}) {_GONE[departed.cause]}{at}: start it again, or "
        f"`groupcert group forget {departed.name}`"
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f}"
