"""A group's status as JSON, named alike in `groupcert status --json` and in the console."""

from dataclasses import asdict

from groupcert.v1.group_pb2 import GroupStatus, LogServerState, MemberState, MemberStatus

from ..core.recovery_progress import RecoveryProgress

JsonObject = dict[str, object]


def state_name(status: MemberStatus) -> str:
    """Returns the state of a member, such as `ONLINE`."""
    return MemberState.Name(status.state).removeprefix("MEMBER_STATE_")


def role_name(status: GroupStatus, member: str) -> str:
    """Returns `PRIMARY` if clients may write at a member of the group's view, else `SECONDARY`."""
    return "SECONDARY" if status.primary not in ("", member) else "PRIMARY"


def log_document(status: MemberStatus) -> JsonObject | None:
    """Returns the health of the log's servers as a member knows it; None without an open log."""
    if not status.HasField("log"):
        return None
    log = status.log
    acknowledged_ms = log.acknowledged_ms if log.HasField("acknowledged_ms") else None
    return {
        "leader": log.leader,
        "leaderless_ms": log.leaderless_ms,
        "servers": [
            {
                "name": each.name,
                "state": LogServerState.Name(each.state).removeprefix("LOG_SERVER_STATE_"),
                "current": each.current,
                "lag": each.lag,
            }
            for each in log.servers
        ],
        "acknowledged_ms_ago": acknowledged_ms,
        "problem": log.problem,
        "full": log.full,
        "bytes": log.bytes,
        "bytes_max": log.bytes_max,
    }


def comparison_document(status: GroupStatus) -> JsonObject | None:
    """Returns the last comparison of all members' rows; None if there was none."""
    if not status.HasField("comparison"):
        return None
    compared = status.comparison
    return {
        "position": compared.position,
        "version": compared.version,
        "requested_us": compared.requested_us,
        "waits_for": [each.name for each in compared.members if not each.answered],
        "members": [
            {
                "member": each.name,
                "rows": each.rows,
                "differing_ranges": list(each.differing_ranges),
            }
            for each in compared.members
            if each.answered
        ],
    }


def recovery_document(status: MemberStatus) -> JsonObject | None:
    """Returns the progress of the copy of a donor's state; None if the member makes none."""
    if not status.HasField("recovery"):
        return None
    found = status.recovery
    progress = RecoveryProgress(
        donor=found.donor,
        bytes_done=found.bytes_done,
        bytes_total=found.bytes_total,
        bytes_per_second=found.bytes_per_second,
    )
    left = progress.seconds_left
    return {
        **asdict(progress),
        "seconds_left": None if left is None else round(left, 1),
        "text": str(progress),
    }
