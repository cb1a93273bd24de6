"""The table of control records: a kind comes with a format of the log that is its own.

Members of two releases skip the same messages only if a record that one of them does not know is in
a message whose format it does not know either.
"""

from collections.abc import Iterable, Mapping

import pytest

from groupcert.certifier.position import position_of
from groupcert.internal.v1 import log_pb2
from groupcert.members.core.log_records import (
    RANGE_BYTES,
    RANGES,
    Abandonment,
    Appointment,
    Comparison,
    Control,
    Forgetting,
    Fragment,
    MemberReport,
    RowDigests,
    Skip,
    ViewProposal,
)
from groupcert.members.core.member import Member
from groupcert.members.core.record_kinds import RECORD_KINDS, RecordKind, always_valid
from groupcert.members.core.views import FORMAT_FIRST, FORMAT_VERSION
from tests.members.state_machines import (
    SETTINGS,
    batch_of,
    deliver,
    online,
    restored_from,
    run_of,
)

FIRST = {
    "view_proposal",
    "report",
    "group_settings",
    "appointment",
    "abandonment",
    "forgetting",
    "skip",
}
KINDS_OF_FORMAT = {FORMAT_FIRST: FIRST, 3: FIRST | {"comparison", "row_digests"}}
"""Written by hand for each format that a release has written, and never changed."""
ALWAYS_VALID = {
    "abandonment": "its number was checked with the bytes; it drops the sender's own fragments",
    "forgetting": "a name that nobody has departed under forgets nobody",
    "skip": "who can read the message that it names has read it",
    "comparison": "a clock may show anything",
}
"""Kinds with no rule of what is wrong with a record, and why they need none."""
EXAMPLES: Mapping[str, Control] = {
    "view_proposal": ViewProposal(4, (run_of(1),)),
    "report": MemberReport(0, 0, 0, b""),
    "group_settings": SETTINGS._replace(settings_version=2, single_primary=False),
    "appointment": Appointment("m1"),
    "abandonment": Abandonment(1),
    "forgetting": Forgetting("m3"),
    "skip": Skip(1),
    "comparison": Comparison(5),
    "row_digests": RowDigests(position_of(5, 1), 1, bytes(RANGES * RANGE_BYTES)),
}
"""A record of each kind, which m2 sends to `a_member`."""
OF_A_RUN = {"digests", "log_sequence", "suspicions"}
"""What a member knows of the messages that it has read itself, and of when."""


def problems(kinds: Iterable[RecordKind], format_version: int) -> list[str]:
    """What is wrong with a table, in a release that writes that format."""
    kinds = list(kinds)
    found = []
    for version in range(FORMAT_FIRST, format_version + 1):
        known = {kind.field for kind in kinds if kind.since_format <= version}
        if version not in KINDS_OF_FORMAT:
            found.append(f"format {version} is not written down here")
        elif known != KINDS_OF_FORMAT[version]:
            found.append(f"format {version} has {sorted(known ^ KINDS_OF_FORMAT[version])} besides")
    found += [
        f"{kind.field} came with format {kind.since_format}, which nobody writes"
        for kind in kinds
        if kind.since_format > format_version
    ]
    return found


def test_each_kind_came_with_the_format_that_is_written_down() -> None:
    assert problems(RECORD_KINDS, FORMAT_VERSION) == []


def test_a_new_kind_without_a_new_format_is_found() -> None:
    new = RECORD_KINDS[-1]._replace(field="unheard_of")
    assert problems([*RECORD_KINDS, new], FORMAT_VERSION)
    assert problems([*RECORD_KINDS, new._replace(since_format=FORMAT_VERSION)], FORMAT_VERSION)
    later = new._replace(since_format=FORMAT_VERSION + 1)
    assert problems([*RECORD_KINDS, later], FORMAT_VERSION)


def test_each_record_of_the_log_has_a_row() -> None:
    record = log_pb2.ControlRecord.DESCRIPTOR.oneofs_by_name["record"]
    assert {field.name for field in record.fields} == {kind.field for kind in RECORD_KINDS}
    for kind in RECORD_KINDS:
        field = log_pb2.ControlRecord.DESCRIPTOR.fields_by_name[kind.field]
        assert field.message_type
        assert set(kind.record._fields) == {each.name for each in field.message_type.fields}


def test_what_no_rule_looks_at_is_written_down() -> None:
    found = {kind.field for kind in RECORD_KINDS if kind.why_not is always_valid}
    assert found == set(ALWAYS_VALID)


def a_member() -> Member:
    """Member m1 in view 4 with m2, which is the primary, and has compared rows; m3 has left."""
    member = online(2, 3, settings=SETTINGS._replace(single_primary=True))
    without = member.view.without_member("m3")
    deliver(member, batch_of(3, 2, controls=[ViewProposal(member.view.view_id, without)]))
    pieces = [Fragment(1, 0, b"x"), Fragment(2, 0, b"x")]
    deliver(member, batch_of(2, 2, controls=[Appointment("m2"), Comparison(4)]))
    deliver(member, batch_of(2, 3)._replace(fragments=pieces))
    return member


def facts(member: Member) -> dict[str, str]:
    """A member's attributes, as text."""
    return {name: repr(getattr(each, "__dict__", each)) for name, each in vars(member).items()}


def test_there_is_an_example_of_each_kind() -> None:
    assert set(EXAMPLES) == {kind.field for kind in RECORD_KINDS}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_a_record_changes_is_there_after_a_restart(kind: str) -> None:
    member = a_member()
    before = facts(member)
    deliver(member, batch_of(2, 4, controls=[EXAMPLES[kind]]))
    assert not member.skipped.total
    now, restored = facts(member), facts(restored_from(member, member.me))
    changed = {name for name in now if now[name] != before[name]} - OF_A_RUN
    assert len(changed) > 1 or kind == "skip", "the example has no effect"
    assert {name: restored[name] for name in changed} == {name: now[name] for name in changed}
