"""A member that was stored and restored decides what follows as one that went on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier import certifier_state
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import (
    Abandonment,
    Fragment,
    LoggedTransaction,
    MemberReport,
)
from groupcert.members.core.member_checkpoint import checkpoint_of, restore
from groupcert.members.core.views import FORMAT_VERSION, View
from groupcert.members.errors.membership import ReleaseTooOld
from tests.members.state_machines import (
    SETTINGS,
    batch_of,
    deliver,
    joining,
    new_member,
    online,
    restored_from,
    run_of,
    send,
    versions,
    write,
)

STORED = Path(__file__).parents[2] / "testdata" / "member_checkpoint.json"
"""What a member of an earlier release has stored: never changed."""
writes = st.tuples(
    st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(0, 5), st.lists(st.integers(0, 5))
).map(lambda fields: LoggedTransaction(*fields))
reports = st.integers(0, 6).map(lambda version: MemberReport(version, version, 0, b""))
messages = st.one_of(
    st.builds(lambda writes: batch_of(2, 0, writes), st.lists(writes, min_size=1, max_size=3)),
    st.builds(lambda number, report: batch_of(number, 0, (), [report]), st.integers(1, 2), reports),
)
"""What m2 writes and both report; numbered by who uses it."""


@given(st.data())
def test_a_restored_member_decides_as_one_that_never_stopped(data: st.DataObject) -> None:
    batches = data.draw(st.lists(messages, max_size=20))
    numbered = [batch._replace(batch_number=index) for index, batch in enumerate(batches, 2)]
    cut = data.draw(st.integers(0, len(batches)))
    going_on = online(2)
    deliver(going_on, *numbered[:cut])
    restored = restored_from(going_on, run_of(1, run=5))
    for batch in numbered[cut:]:
        assert versions(deliver(going_on, batch)) == versions(deliver(restored, batch))
        assert going_on.certifier.digest() == restored.certifier.digest()
    assert json.dumps(checkpoint_of(going_on)) == json.dumps(checkpoint_of(restored))
    assert certifier_state.dump(going_on.certifier) == certifier_state.dump(restored.certifier)


def test_settings_are_the_same_after_a_restart() -> None:
    settings = SETTINGS._replace(members_allowed=("m1", "m2"), postgresql_tables=("public.*",))
    restored = restored_from(online(2, settings=settings), run_of(1, run=5))
    assert restored.settings == settings


def test_what_a_later_release_has_stored_is_refused_where_the_group_writes_its_format() -> None:
    later = replace(run_of(2), format_version=3, release="3.0")
    member = new_member()
    member.view = View().follow(0, [later])  # type: ignore[assignment]  # it follows view 0
    assert member.view.format_version == 3
    stored, earlier = checkpoint_of(member), new_member(run=1)
    with pytest.raises(ReleaseTooOld, match=r"m2 runs 3\.0"):
        restore(earlier, stored)
    assert checkpoint_of(earlier) == checkpoint_of(new_member())
    read_on = new_member()
    read_on.me = later
    restore(read_on, stored)
    assert checkpoint_of(read_on) == stored


def test_what_an_earlier_release_has_stored_is_restored() -> None:
    stored = json.loads(STORED.read_text())
    member = new_member()
    member.me = replace(member.me, format_version=FORMAT_VERSION)
    restore(member, stored)
    again = json.loads(json.dumps(checkpoint_of(member)))
    again["settings"] = again["settings"][: len(stored["settings"])]  # Later ones are at the end.
    assert {name: again[name] for name in stored} == stored


def test_what_has_to_be_stored_can_be_put_together() -> None:
    member, stored = online(2, record_history=True), Delivered()
    pieces = batch_of(2, 2)._replace(fragments=[Fragment(1, 0, b"x")])
    deliver(member, pieces)
    writes = [batch_of(2, 3, [write(0, 3)]), batch_of(2, 4, [write(0, 4)], [Abandonment(1)])]
    for batch in (*writes, joining(member, 3)):
        stored.absorb(deliver(member, batch))
    assert (versions(stored), stored.dropped) == ([1, 2], [(2, 1)])
    assert [version for _, _, version, _, _ in stored.noted.transactions] == [1, 2]
    assert [row["kind"] for row in stored.noted.rows] == ["view_change"]


def test_what_members_need_of_the_log_is_what_they_reported_last() -> None:
    member = online(2)
    assert member.durable_log_sequences() == [0, 0], "nobody has reported"
    report = MemberReport(0, 0, 1, member.certifier.digest(), durable_log_sequence=1)
    deliver(member, batch_of(2, 2, controls=[report]))
    assert member.durable_log_sequences() == [0, 1]


def test_the_log_is_kept_for_who_departed_with_all_rows() -> None:
    """It would find nobody to copy from."""
    member = online()
    member.view = replace(member.view, members=(replace(member.me, without_rows=True),))
    report = MemberReport(0, 0, 1, b"", durable_log_sequence=1)
    member.reports.take(member.me.incarnation, report)
    assert member.durable_log_sequences() == [1]
    deliver(member, joining(member, 2))
    member.expel("m2")
    send(member)
    assert [each.name for each in member.departures.named()] == ["m2"]
    assert member.durable_log_sequences() == [0]
    member.forget("m2")
    send(member)
    assert member.durable_log_sequences() == [1]
