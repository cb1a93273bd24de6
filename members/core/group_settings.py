"""Rules for a group's settings and its members' names: the same for files and for the log.

A member's settings file, `groupcert group set` and a record of the log give the same settings. A
record is data from outside like the others: what would be refused in a file does not count in the
log either, or one record with a block size of 0 would end every member that reads it. Likewise the
names that `members_allowed` lets in. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...certifier.core import GC_WINDOWS
from ...certifier.errors import InvalidGtid, quoted
from ...certifier.gtid import NUMBER_MAX, parse_uuid
from ..errors.permissions import MemberNotAllowed
from .addresses import is_address
from .log_records import GroupSettings
from .views import ViewMember

NAME = r"^[A-Za-z0-9_-]{1,64}$"
"""Of groups and members."""
TABLES = r"^[^,/]{1,128}\.[^,/]{1,128}$"
"""Patterns of tables with their schemas: one without a dot would match no table."""
TABLES_SHAPE = "schema.table, such as public.*"


def refused_names(allowed: Sequence[str], proposed: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of `proposed` that are not in `allowed`, each once, in the order proposed;
    an empty list allows any name.

    >>> refused_names(["m1", "m2"], ["m2", "m9"]), refused_names([], ["m9"])
    (('m9',), ())
    """
    if not allowed:
        return ()
    return tuple(dict.fromkeys(name for name in proposed if name not in allowed))


def check_allowed(allowed: Sequence[str], proposed: Sequence[str]) -> None:
    """Raises MemberNotAllowed: a member proposes a view with a name that is not on the list."""
    if refused := refused_names(allowed, proposed):
        raise MemberNotAllowed(refused=", ".join(refused), allowed=", ".join(allowed))


class Range(NamedTuple):
    """Smallest and largest value, both included."""

    least: int
    most: int


RANGES: Mapping[str, Range] = {
    "gtid_assignment_block_size": Range(1, NUMBER_MAX),
    "write_set_items_max": Range(1, 2**32 - 1),
    "outcomes_max": Range(2, 2**32 - 1),
    "flow_control_lag_max": Range(0, 2**63 - 1),
}


def settings_problem(settings: GroupSettings) -> str:
    """Returns the problem of settings of a group, whatever its present ones are; empty if
    nothing is.

    >>> settings_problem(GroupSettings(1, "g", "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", 1, "", 1, 2))
    "gc_window is '': expected close or tight"
    """
    for name, (least, most) in RANGES.items():
        value = getattr(settings, name)
        if not least <= value <= most:
            return f"{name} is {value}: expected {least} to {most}"
    if settings.gc_window not in GC_WINDOWS:
        return f"gc_window is {quoted(settings.gc_window)}: expected {' or '.join(GC_WINDOWS)}"
    if not _is_uuid(settings.group_uuid):
        return f"group_uuid is {quoted(settings.group_uuid)}: expected a UUID, in lower case"
    for name in (settings.group, *settings.members_allowed):
        if not is_name(name):
            return f"name {quoted(name)}: expected 1 to 64 letters, digits, - and _"
    for tables in settings.postgresql_tables:
        if not re.fullmatch(TABLES, tables):
            return f"postgresql_tables has {quoted(tables)}: expected {TABLES_SHAPE}"
    return ""


def is_name(text: str) -> bool:
    """Returns whether a group or a member may have this name.

    >>> is_name("m1"), is_name(""), is_name("m1\\n")
    (True, False, False)
    """
    return re.fullmatch(NAME, text) is not None


def member_problem(member: ViewMember) -> str:
    """Returns the problem of a member of a proposed view; empty if there is none."""
    if not is_name(member.name):
        return f"name {quoted(member.name)}: expected 1 to 64 letters, digits, - and _"
    if not is_address(member.address):
        return f"address {quoted(member.address)}: expected host:port"
    return ""


def _is_uuid(text: str) -> bool:
    try:
        return parse_uuid(text) == text
    except InvalidGtid:
        return False
