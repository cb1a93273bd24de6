"""The table of control records: a kind comes with a format of the log that is its own.

Members of two releases skip the same messages only if a record that one of them does not know is in
a message whose format it does not know either.
"""

from collections.abc import Iterable

from groupcert.internal.v1 import log_pb2
from groupcert.members.core.record_kinds import RECORD_KINDS, RecordKind
from groupcert.members.core.views import FORMAT_FIRST, FORMAT_VERSION

FIRST = {
    *("view_proposal", "report", "group_settings", "appointment"),
    *("abandonment", "forgetting", "skip"),
}
KINDS_OF_FORMAT = {FORMAT_FIRST: FIRST, 3: FIRST | {"comparison", "row_digests"}}
"""Written by hand for each format that a release has written, and never changed."""


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
