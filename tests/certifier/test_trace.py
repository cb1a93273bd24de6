"""Traces: what comes out for each line, and what is said of a line that is none."""

import json

import pytest

from certifier.core import Certifier
from certifier.errors import InvalidTrace
from certifier.trace import LINE_CHARACTERS_MAX, WRITE_SET_ITEMS_MAX, Replay, ReplaySummary
from tests.certifier.histories import GROUP, OTHER, options

TRANSACTION: dict[str, object] = {
    "type": "transaction",
    "member": "m1",
    "session": "7",
    "gtid": None,
    "snapshot_version": "",
    "write_set": ["shop.orders/PRIMARY/42"],
    "local": False,
}


def replayed(*lines: dict[str, object], observer: str | None = None) -> list[object]:
    """Returns what a new replay says of the lines."""
    replay = Replay(Certifier(options(learn=True)), observer)
    return [replay.replay(json.dumps(line)) for line in lines]


def test_each_kind_of_line_has_the_answer_of_the_design() -> None:
    collection: dict[str, object] = {"type": "garbage_collection", "stable_set": f"{GROUP}:1"}
    view: dict[str, object] = {
        "type": "view_change",
        "view_id": "1",
        "members": ["m1", "m2"],
        "joined": ["m2"],
    }
    assert replayed(view, TRANSACTION, TRANSACTION, collection, TRANSACTION) == [
        {"type": "view_change", "last_committed": 0, "sequence_number": 0},
        {
            "type": "transaction",
            "gtid": f"{GROUP}:1",
            "decision": "certified",
            "last_committed": 1,
            "sequence_number": 2,
        },
        {
            "type": "transaction",
            "gtid": None,
            "decision": "conflict",
            "item": "shop.orders/PRIMARY/42",
            "winner_gtid": f"{GROUP}:1",
        },
        {"type": "garbage_collection", "purged": 1, "last_committed_global": 2},
        {
            "type": "transaction",
            "gtid": None,
            "decision": "too_old",
            "reason": "the snapshot lacks some of version 1, whose items were collected: "
            "take a new snapshot and run the transaction again",
        },
    ]


def test_a_local_transaction_has_null_stamps_whether_it_says_so_or_its_member_does() -> None:
    other = {**TRANSACTION, "member": "m2", "write_set": ["a"], "local": None}
    marked = {**TRANSACTION, "local": True}
    for line, observer in ((marked, None), (other, "m2")):
        [answer] = replayed(line, observer=observer)
        assert isinstance(answer, dict)
        assert (answer["last_committed"], answer["sequence_number"]) == (None, None)


def test_the_observer_that_joined_starts_again() -> None:
    view: dict[str, object] = {"type": "view_change", "joined": ["m2"], "executed": f"{OTHER}:1-5"}
    following = {**TRANSACTION, "write_set": ["a"], "snapshot_version": f"{OTHER}:1-5"}
    for observer, sequence_number in (("m2", 2), ("m3", 3), (None, 3)):
        answer = replayed(TRANSACTION, view, following, observer=observer)[-1]
        assert isinstance(answer, dict)
        assert answer["sequence_number"] == sequence_number


def test_a_read_set_and_a_gtid_of_its_own_are_heeded() -> None:
    reader = {**TRANSACTION, "write_set": [], "read_set": ["shop.orders/PRIMARY/42"]}
    named = {**TRANSACTION, "write_set": ["b"], "gtid": f"{OTHER}:9"}
    _, conflict, certified, refused = replayed(TRANSACTION, reader, named, named)
    assert isinstance(conflict, dict)
    assert isinstance(certified, dict)
    assert isinstance(refused, dict)
    assert (conflict["decision"], conflict["item"]) == ("conflict", "shop.orders/PRIMARY/42")
    assert certified["gtid"] == f"{OTHER}:9"
    assert refused["decision"] == "conflict"


def test_the_summary_counts_what_became_of_the_lines() -> None:
    replay = Replay(Certifier(options(learn=True)))
    later = {**TRANSACTION, "snapshot_version": f"{GROUP}:1"}
    named = {**TRANSACTION, "write_set": [], "gtid": f"{GROUP}:1"}
    lines = [TRANSACTION, TRANSACTION, later, named, {"type": "view_change"}]
    collection: dict[str, object] = {"type": "garbage_collection", "stable_set": f"{GROUP}:1-2"}
    for line in [*lines, collection, TRANSACTION]:
        replay.replay(json.dumps(line))
    assert replay.replay("  \n") is None
    assert replay.summary == ReplaySummary(
        certified=2,
        conflict=1,
        too_old=1,
        refused=1,
        view_changes=1,
        garbage_collections=1,
        purged=1,
        dependent=1,
    )


def changed(**fields: object) -> str:
    """Returns a transaction's line with some fields changed."""
    return json.dumps({**TRANSACTION, **fields})


@pytest.mark.parametrize(
    ("text", "problem", "expected"),
    [
        ("{", "it is not JSON (", "one JSON object a line"),
        ("[" * 100_000, "it is not JSON (", "one JSON object a line"),
        ("[1]", "it is a JSON list", "one JSON object a line"),
        ("{}", "type is missing", "type: a JSON string"),
        ('{"type":"commit"}', "type is 'commit'", "transaction, view_change or garbage"),
        (changed(member=None), "member is missing", "member: a JSON string"),
        (changed(local=1), "local is 1", "local: a JSON true or false"),
        (changed(write_set="a"), 'write_set is "a"', "write_set: a JSON array"),
        (changed(write_set=[1]), "write_set holds 1", "items that are strings"),
        (changed(write_set=["\ud800"]), "write_set: ", "items that are text in UTF-8"),
        (changed(read_set=[None]), "read_set holds missing", "items that are strings"),
        (changed(snapshot_version=None), "snapshot_version is missing", "a JSON string"),
        (changed(snapshot_version="x:1"), "snapshot_version: ", "a GTID set such as"),
        (changed(gtid=5), "gtid is 5", "gtid: a JSON string"),
        (changed(gtid="x"), "gtid: ", "null or a GTID such as <uuid>:7"),
        ('{"type":"garbage_collection"}', "stable_set is missing", "a JSON string"),
        ('{"type":"view_change","joined":7}', "joined is 7", "joined: a JSON array"),
        (" " * (LINE_CHARACTERS_MAX + 1) + "x", "it has 67108866 characters", "at most 67108864"),
        (
            changed(write_set=["a"] * (WRITE_SET_ITEMS_MAX + 1)),
            "write_set has 1000001 items",
            "at most 1000000 a transaction",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_a_malformed_line_is_named_with_what_was_expected(
    text: str, problem: str, expected: str
) -> None:
    replay = Replay(Certifier(options(learn=True)))
    replay.replay(json.dumps(TRANSACTION))
    with pytest.raises(InvalidTrace) as caught:
        replay.replay(text)
    assert caught.value.line == 2
    assert caught.value.problem.startswith(problem)
    assert expected in caught.value.expected
    assert str(caught.value).startswith("trace line 2: ")
