"""A status as JSON, named alike in `groupcert status --json` and in the console.

The names are those of the fields, or their option `key`.
"""

from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message

from groupcert.v1.group_pb2 import GroupStatus, MemberStatus
from groupcert.v1.metric_pb2 import key

from ..core.recovery_progress import RecoveryProgress

JsonObject = dict[str, object]


def fields_of(message: Message) -> JsonObject:
    """Returns a message as a document; None stands for what is absent."""
    return {
        field.GetOptions().Extensions[key] or field.name: _shown(message, field)
        for field in message.DESCRIPTOR.fields
    }


def _shown(message: Message, field: Any) -> object:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [plain(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return plain(field, value)


def plain(field: Any, value: Any) -> object:
    """Returns a value of a field: a message as a document, a state without its enum's name."""
    if isinstance(value, Message):
        return fields_of(value)
    if field.enum_type is None:
        return value
    states = field.enum_type.values_by_number
    return states[value].name.removeprefix(states[0].name.removesuffix("UNSPECIFIED"))


def state_name(status: MemberStatus) -> str:
    """Returns the state of a member, such as `ONLINE`."""
    return str(plain(status.DESCRIPTOR.fields_by_name["state"], status.state))


def role_name(status: GroupStatus, member: str) -> str:
    """Returns `PRIMARY` if clients may write at a member of the group's view, else `SECONDARY`."""
    return "SECONDARY" if status.primary not in ("", member) else "PRIMARY"


def log_document(status: MemberStatus) -> JsonObject | None:
    """Returns the health of the log's servers as a member knows it; None without an open log."""
    return fields_of(status.log) if status.HasField("log") else None


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
                "at_server": each.tables != 0,
                "tables": f"{each.tables:016x}",
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
