"""A mind that was stored and restored decides what follows as the one that went on."""

import json

from hypothesis import given
from hypothesis import strategies as st

from certifier import checkpoint
from members.log_records import LoggedTransaction, StableReport
from members.member import Member
from members.member_checkpoint import checkpoint_of, restore
from members.member_state import MemberState
from tests.members.minds import SETTINGS, batch_of, deliver, mind, names, online, send, versions

writes = st.tuples(
    st.sampled_from([b"", b"a", b"b", b"c"]), st.integers(0, 5), st.lists(st.integers(0, 5))
).map(lambda fields: LoggedTransaction(*fields))
reports = st.integers(0, 6).map(lambda version: StableReport(version, version, 0, b""))
messages = st.one_of(
    st.builds(lambda writes: batch_of(2, 0, writes), st.lists(writes, min_size=1, max_size=3)),
    st.builds(lambda number, report: batch_of(number, 0, (), [report]), st.integers(1, 2), reports),
)
"""What m2 writes and both report; numbered by who uses it."""


def restored_from(member: Member) -> Member:
    """Another run of m1, from what this one would have stored; its stamps are not compared."""
    restored = mind(run=5)
    restore(restored, json.loads(json.dumps(checkpoint_of(member))))
    window = member.certifier.window
    no_sets: dict[str, dict[str, str]] = {}
    pieces = [(first, piece, no_sets) for first, piece in window.dump(window.first_version)]
    dumped = checkpoint.dump(member.certifier)
    checkpoint.restore(restored.certifier, json.loads(json.dumps(dumped)), pieces)
    for transaction_id, outcome in member.outcomes:
        restored.outcomes.remember(transaction_id, outcome)
    return restored


@given(st.data())
def test_a_restored_member_decides_as_one_that_never_stopped(data: st.DataObject) -> None:
    batches = data.draw(st.lists(messages, max_size=20))
    numbered = [batch._replace(batch_number=index) for index, batch in enumerate(batches, 2)]
    cut = data.draw(st.integers(0, len(batches)))
    going_on = online(2)
    deliver(going_on, *numbered[:cut])
    restored = restored_from(going_on)
    for batch in numbered[cut:]:
        assert versions(deliver(going_on, batch)) == versions(deliver(restored, batch))
        assert going_on.certifier.digest() == restored.certifier.digest()
    assert json.dumps(checkpoint_of(going_on)) == json.dumps(checkpoint_of(restored))
    assert checkpoint.dump(going_on.certifier) == checkpoint.dump(restored.certifier)


def test_a_member_without_a_group_can_be_restored() -> None:
    restored = restored_from(mind())
    restored.caught_up()
    send(restored)
    assert restored.settings == SETTINGS


def test_a_restored_member_waits_for_a_view_of_its_own() -> None:
    restored = restored_from(online(2))
    assert names(restored) == ["m1", "m2"]
    states = [restored.state]
    restored.caught_up()
    states.append(restored.state)
    assert states == [MemberState.RECOVERING, MemberState.JOINING]
