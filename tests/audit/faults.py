"""Wrong histories: each fault makes a right group wrong in one way, and says what has to be found.

A fault of members is made before the rows are chained: their logs are faithful records of something
wrong. An edit is made after: a record is not what was written.
"""

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from groupcert.certifier.audit.answers.findings import Code
from groupcert.certifier.history.schema import (
    CHAIN_START,
    FORMAT_VERSION,
    RecordKind,
    Row,
    link,
    place_of,
    position_at,
    text_of,
)
from groupcert.certifier.position import log_sequence_of, position_of
from groupcert.certifier.records import GarbageCollection, Record, ViewChange
from tests.audit.histories import DIGEST_BEFORE, OTHER, Workload, random_order, rows_of

MEMBERS = ("m1", "m2", "m3")
Place = tuple[str, int]
"""The observer and the place that a finding names."""


@dataclass
class Scene:
    """A group of three members, named after the fault; `expected` is what an audit has to find."""

    name: str
    seed: int
    workload: Workload
    records: list[Record] = field(default_factory=list)
    histories: dict[str, list[Row]] = field(default_factory=dict)
    expected: set[tuple[Code, str, int]] = field(default_factory=set)
    may_follow: set[Code] = field(default_factory=set)
    """Codes that an audit may name below what is expected."""

    def __post_init__(self) -> None:
        joined = ViewChange(position_of(0, 1), resets_clock=True)
        self.records = [joined, *random_order(self.seed, self.workload)]
        self.certify({})

    def certify(self, lies: Mapping[int, int]) -> None:
        """Has all members decide; they are told other snapshots or stable versions at the
        positions of `lies`.
        """
        self.histories = {
            member: rows_of(
                self.records,
                member,
                self.workload,
                name=f"{self.name}-{member}",
                lies=lies,
            )
            for member in MEMBERS
        }
        exchange_reports(self.histories)

    def chain(self) -> None:
        """Numbers and chains all rows, and tells the members what the others' chains are. Reports
        are made anew: a fault of theirs is made by `exchange_reports(..., late)`.
        """
        exchange_reports(self.histories)

    def expect(self, code: Code, *rows: Row) -> None:
        """A finding of a code at each row."""
        self.expected |= {(code, str(row["observer"]), integer(row, "place")) for row in rows}

    def at_all(self, place: int) -> list[Row]:
        """The rows of all members at a place."""
        return [row for rows in self.histories.values() for row in rows if row["place"] == place]

    def pick(self, wanted: Callable[[Row], bool], member: str = "m1") -> Row:
        """A row in the middle of those of a member that are wanted."""
        found = [row for row in self.histories[member] if wanted(row)]
        assert found, f"{self.name}: the history has no such row, give it another seed"
        return found[len(found) // 2]


def exchange_reports(histories: Mapping[str, list[Row]], late: Container[int] = ()) -> None:
    """Numbers and chains the rows of all members; at each stable set one of them, in turn, tells
    how its chain is just before and what it has executed, and all record it. That is enough for the
    stable sets up to its next turn, but one version less in turns that are `late`.
    """
    for rows in histories.values():
        rows[:] = [dict(row) for row in rows if row["kind"] != RecordKind.REPORT]
    done: dict[str, list[Row]] = {member: [] for member in histories}
    left = {member: list(rows) for member, rows in histories.items()}
    stable_versions = {
        integer(row, "place"): integer(row, "stable_version")
        for rows in histories.values()
        for row in rows
        if row["kind"] == RecordKind.STABLE_SET
    }
    places = sorted(stable_versions)
    for turn, place in enumerate([*places, 1 << 62]):
        for member, rows in left.items():
            while rows and integer(rows[0], "place") < place:
                _append(done[member], rows.pop(0))
        reporter = MEMBERS[turn % len(MEMBERS)]
        if not all(left.values()) or not done[reporter]:
            continue
        last, stable = done[reporter][-1], left[reporter][0]
        for member in histories:
            row = _report(done[member][-1], last, stable)
            enough = stable_versions[places[min(turn + len(MEMBERS), len(places)) - 1]]
            _append(done[member], row | {"stable_version": enough - (turn in late)})
    for member, rows in histories.items():
        rows[:] = done[member]


def numbered(rows: Sequence[Row]) -> list[Row]:
    """The rows, numbered and chained."""
    made: list[Row] = []
    for row in rows:
        _append(made, dict(row))
    return made


def integer(row: Row, name: str) -> int:
    """A column that has a number."""
    value = row[name]
    assert isinstance(value, int)
    return value


def is_decided(row: Row, verdict: str) -> bool:
    """Whether a row is a transaction with that verdict."""
    return row["kind"] == RecordKind.TRANSACTION and row["verdict"] == verdict


def is_stamped(row: Row) -> bool:
    """Whether a row has stamps that its write set decides."""
    return (
        is_decided(row, "certified")
        and row.get("sequence_number") is not None
        and bool(row["write_set"])
    )


def _report(before: Row, told: Row, stable: Row) -> Row:
    """The row of what a member told just before a stable set: how its chain and its decisions are.
    `before` is the recorder's own last row, `told` that of the member.
    """
    position = position_at(integer(stable, "place"))
    return {
        "format_version": FORMAT_VERSION,
        "observer": before["observer"],
        "history": before["history"],
        "place": place_of(position, RecordKind.REPORT),
        "kind": RecordKind.REPORT.value,
        "version": before["version"],
        "decided_us": stable["decided_us"],
        "origin": told["observer"],
        "session": "1",
        "reported_sequence": log_sequence_of(position) - 1,
        "reported_digest": stable[DIGEST_BEFORE],
        "reported_place": told["place"],
        "reported_chain": told["chain"],
    }


def _append(rows: list[Row], row: Row) -> None:
    """Adds a row, numbered and chained in its history."""
    before = rows[-1] if rows and rows[-1]["history"] == row["history"] else None
    chain = before["chain"] if before else CHAIN_START
    assert isinstance(chain, bytes)
    row["number"] = integer(before, "number") + 1 if before else 1
    row["chain"] = link(chain, text_of(row))
    rows.append(row)


# The faults.


def certified_for_conflict(scene: Scene) -> None:
    """Members certify what they should abort."""
    wrong = scene.pick(lambda row: is_decided(row, "conflict"))
    scene.certify({position_at(integer(wrong, "place")): integer(wrong, "version")})
    scene.expect(Code.CONFLICT_MISSED, *scene.at_all(integer(wrong, "place")))


def conflict_for_certified(scene: Scene) -> None:
    """Members abort what they should certify, as if its snapshot were older."""
    last: dict[int, int] = {}
    lies: list[tuple[int, int]] = []
    stable = 0
    for row in scene.histories["m1"]:
        if row["kind"] == RecordKind.STABLE_SET:
            stable = integer(row, "stable_version")
        if not is_decided(row, "certified"):
            continue
        items = row["write_set"]
        assert isinstance(items, list)
        newest = max((last.get(int(item), 0) for item in items), default=0)
        if newest > stable:
            lies.append((integer(row, "place"), newest - 1))
        last.update(dict.fromkeys(map(int, items), integer(row, "version")))
    place, snapshot = lies[len(lies) // 2]
    scene.certify({position_at(place): snapshot})
    scene.expect(Code.CONFLICT_FALSE, *scene.at_all(place))


def too_old_for_certified(scene: Scene) -> None:
    """Members call a snapshot too old that is not."""
    wrong = scene.pick(
        lambda row: is_decided(row, "certified") and bool(row["write_set"]) and row["version"] != 1
    )
    scene.certify({position_at(integer(wrong, "place")): 0})
    scene.expect(Code.TOO_OLD_FALSE, *scene.at_all(integer(wrong, "place")))


def certified_for_too_old(scene: Scene) -> None:
    """Members certify what read before the collected window."""
    wrong = scene.pick(lambda row: is_decided(row, "too_old"))
    scene.certify({position_at(integer(wrong, "place")): integer(wrong, "version")})
    scene.expect(Code.TOO_OLD_MISSED, *scene.at_all(integer(wrong, "place")))


def stamp_too_low(scene: Scene) -> None:
    """A stamp that lets an applier run two dependent transactions at once."""
    wrong = scene.pick(lambda row: is_stamped(row) and integer(row, "last_committed") > 10)
    wrong["last_committed"] = integer(wrong, "last_committed") - 1
    scene.chain()
    scene.expect(Code.STAMP_TOO_LOW, wrong)


def stamp_too_high(scene: Scene) -> None:
    """A stamp that makes an applier wait for nothing."""
    wrong = scene.pick(
        lambda row: (
            is_stamped(row) and integer(row, "last_committed") + 2 < integer(row, "sequence_number")
        )
    )
    wrong["last_committed"] = integer(wrong, "last_committed") + 1
    scene.chain()
    scene.expect(Code.STAMP_TOO_HIGH, wrong)


def winner_that_did_not_win(scene: Scene) -> None:
    """A conflict that names another winner; all members name the same."""
    wrong = scene.pick(lambda row: is_decided(row, "conflict") and row["winner_version"] != 1)
    for row in scene.at_all(integer(wrong, "place")):
        row["winner_version"] = integer(row, "winner_version") - 1
    scene.chain()
    scene.expect(Code.WINNER_WRONG, *scene.at_all(integer(wrong, "place")))


def missing_record(scene: Scene) -> None:
    """The record of a certified transaction is taken out of a log."""
    rows = scene.histories["m2"]
    gone = scene.pick(is_stamped, "m2")
    at = rows.index(gone)
    del rows[at]
    scene.expect(Code.RECORD_MISSING, rows[at])


def missing_abort(scene: Scene) -> None:
    """The record of an aborted transaction is taken out of a log."""
    rows = scene.histories["m2"]
    at = rows.index(scene.pick(lambda row: is_decided(row, "conflict"), "m2"))
    del rows[at]
    scene.expect(Code.RECORD_MISSING, rows[at])


def record_never_written(scene: Scene) -> None:
    """A member has never recorded an abort that the others have."""
    rows = scene.histories["m3"]
    gone = scene.pick(lambda row: is_decided(row, "conflict"), "m3")
    rows.remove(gone)
    scene.chain()
    scene.expect(Code.RECORD_MISSING, gone)


def members_disagree(scene: Scene) -> None:
    """A member has recorded another run of the sender than the others have."""
    wrong = scene.pick(lambda row: is_decided(row, "conflict"), "m3")
    wrong["session"] = "2"
    scene.chain()
    scene.expect(Code.MEMBERS_DISAGREE, wrong)


def purged_too_early(scene: Scene) -> None:
    """All members purge what one of them has not executed."""
    rows = scene.histories["m1"]
    olds = {row["snapshot_version"] for row in rows if is_decided(row, "too_old")}
    purging = [
        row["place"]
        for before, row in itertools.pairwise(rows)
        if row["kind"] == RecordKind.STABLE_SET
        and integer(row, "stable_version") not in olds
        and integer(row, "stable_version") + 1 < integer(row, "version")
    ]
    place = purging[len(purging) // 2]
    record = next(
        each
        for each in scene.records
        if isinstance(each, GarbageCollection) and each.position == position_at(int(str(place)))
    )
    assert isinstance(record.stable, int)
    scene.certify({record.position: record.stable + 1})
    for member in MEMBERS:
        rows = scene.histories[member]
        early = next(
            row
            for row in rows
            if row["kind"] == RecordKind.COLLECTION
            and integer(row, "collected_version") == record.stable + 1
        )
        scene.expect(Code.PURGED_TOO_EARLY, early)


def stable_set_beyond_a_report(scene: Scene) -> None:
    """Members take for stable what one of them has not told that it had executed."""
    stable = [row for row in scene.histories["m1"] if row["kind"] == RecordKind.STABLE_SET]
    turn = len(stable) - 4
    exchange_reports(scene.histories, {turn})
    scene.expect(Code.STABLE_SET_WRONG, *scene.at_all(integer(stable[turn + 2], "place")))


def wrong_collection(scene: Scene) -> None:
    """A collection tells another number of items."""
    wrong = scene.pick(
        lambda row: row["kind"] == RecordKind.COLLECTION and row["purged_items"] != 0
    )
    for row in scene.at_all(integer(wrong, "place")):
        row["purged_items"] = integer(row, "purged_items") + 1
    scene.chain()
    scene.expect(Code.COLLECTION_WRONG, *scene.at_all(integer(wrong, "place")))


def wrong_view_change(scene: Scene) -> None:
    """A view change has stamps."""
    wrong = scene.pick(lambda row: row["kind"] == RecordKind.VIEW_CHANGE)
    wrong["sequence_number"] = 7
    scene.chain()
    scene.expect(Code.VIEW_CHANGE_WRONG, wrong)


def duplicate_gtid(scene: Scene) -> None:
    """Two transactions have the same GTID, at all members."""
    wrong = scene.pick(
        lambda row: (
            is_decided(row, "certified")
            and not row["gtid_brought"]
            and integer(row, "gtid_number") > 20
        )
    )
    for row in scene.at_all(integer(wrong, "place")):
        row["gtid_number"] = integer(row, "gtid_number") - 9
    scene.chain()
    scene.expect(Code.GTID_DUPLICATE, *scene.at_all(integer(wrong, "place")))


def edited_record(scene: Scene) -> None:
    """A record is changed in a file."""
    wrong = scene.pick(lambda row: is_decided(row, "conflict"))
    wrong["decided_us"] = integer(wrong, "decided_us") + 1
    scene.expect(Code.RECORD_EDITED, wrong)


def edited_and_chained(scene: Scene) -> None:
    """A record is changed in a file, and all after it are chained anew; what the member had told
    the group before is in the other members' logs.
    """
    rows = scene.histories["m1"]
    wrong = scene.pick(lambda row: is_decided(row, "conflict"))
    wrong["decided_us"] = integer(wrong, "decided_us") + 1
    at = rows.index(wrong)
    chained = rows[:at]
    for row in rows[at:]:
        _append(chained, row)
    told = [row for row in rows if row["kind"] == RecordKind.REPORT]
    own = [row for row in told if row["origin"] == wrong["observer"]]
    before = {integer(row, "place") for row in rows[:at]}
    late = {integer(row, "reported_place") for row in own} - before
    scene.expect(Code.REPORT_WRONG, *[row for row in rows if row["place"] in late])


def swapped_records(scene: Scene) -> None:
    """Two records have changed places."""
    rows = scene.histories["m2"]
    at = rows.index(scene.pick(lambda row: is_decided(row, "conflict"), "m2"))
    one, other = rows[at], rows[at + 1]
    one["number"], other["number"] = other["number"], one["number"]
    scene.expect(Code.RECORD_REORDERED, one)


def applier_overlap(scene: Scene) -> None:
    """An applier starts a transaction before one that wrote the same item is visible."""
    last: dict[object, Row] = {}
    found: list[tuple[Row, Row]] = []
    for row in scene.histories["m2"]:
        if not is_decided(row, "certified"):
            continue
        items = row["write_set"]
        assert isinstance(items, list)
        if row["started_tick"]:
            found += [(last[item], row) for item in items if item in last]
        last.update(dict.fromkeys(items, row))
    before, wrong = found[len(found) // 2]
    wrong["started_tick"] = integer(before, "committed_tick") - 1
    scene.chain()
    scene.expect(Code.APPLIED_TOGETHER, wrong)


def decisions_that_were_not_told(scene: Scene) -> None:
    """All members' logs say otherwise than what they told the group while it ran."""
    wrong = scene.pick(lambda row: is_decided(row, "refused"))
    for row in scene.at_all(integer(wrong, "place")):
        row["kind"] = RecordKind.REPETITION.value
    scene.chain()
    for rows in scene.histories.values():
        told = next(
            row
            for row in rows
            if row["kind"] == RecordKind.REPORT and integer(row, "place") > integer(wrong, "place")
        )
        scene.expect(Code.DIGEST_WRONG, told)


def told_record_never_written(scene: Scene) -> None:
    """A record that its member told the chain of is taken out of its log, and all after it are
    chained anew.
    """
    rows = scene.histories["m1"]
    told = [row for row in rows if row["kind"] == RecordKind.REPORT]
    places = {row["reported_place"] for row in told if row["origin"] == rows[0]["observer"]}
    gone = scene.pick(lambda row: row["place"] in places and is_decided(row, "conflict"))
    scene.expect(Code.RECORD_MISSING, gone)
    at = rows.index(gone)
    scene.expect(Code.REPORT_WRONG, *[row for row in rows[at:] if row["place"] in places])
    chained = rows[:at]
    for row in rows[at + 1 :]:
        _append(chained, row)
    rows[:] = chained


def record_there_twice(scene: Scene) -> None:
    """A record stands in a log twice."""
    rows = scene.histories["m2"]
    twice = scene.pick(lambda row: is_decided(row, "conflict"), "m2")
    rows.insert(rows.index(twice), dict(twice))
    scene.expect(Code.RECORD_REORDERED, twice)


def digest_wrong_after_a_warning(scene: Scene) -> None:
    """Decisions that were not told, behind a stamp that is merely too high."""
    wrong = next(
        row
        for row in scene.histories["m1"]
        if is_stamped(row) and integer(row, "last_committed") + 8 < integer(row, "sequence_number")
    )
    wrong["last_committed"] = integer(wrong, "last_committed") + 1
    decisions_that_were_not_told(scene)
    scene.expect(Code.STAMP_TOO_HIGH, wrong)


def cut_off(scene: Scene) -> None:
    """The end of a log is cut off, of which its member had told the others how far it was."""
    rows = scene.histories["m3"]
    del rows[-150:]
    scene.expect(Code.HISTORY_CUT, rows[-1])


def flipped_verdict(scene: Scene) -> None:
    """A verdict is changed in one copy."""
    wrong = scene.pick(lambda row: is_decided(row, "certified") and bool(row["write_set"]), "m2")
    wrong["verdict"] = "too_old"
    scene.expect(Code.RECORD_EDITED, wrong)
    scene.may_follow = {
        Code.MEMBERS_DISAGREE,
        Code.TOO_OLD_FALSE,
        Code.VERSION_WRONG,
        Code.SEQUENCE_WRONG,
        Code.GTID_GAP,
        Code.GTID_ORDER,
        Code.COLLECTION_WRONG,
    }


def changed_start(scene: Scene) -> None:
    """One copy says that it began with another state than the others."""
    begin = scene.histories["m2"][0]
    begin["stable_version"] = 5
    scene.chain()
    scene.expect(Code.SETTINGS_WRONG, begin)
    scene.may_follow = {Code.TOO_OLD_MISSED, Code.CONFLICT_FALSE}


def changed_settings(scene: Scene) -> None:
    """One copy says that it ran under other settings than the others."""
    begin = scene.histories["m2"][0]
    begin["settings"] = str(begin["settings"]).replace('"close"', '"tight"')
    scene.chain()
    scene.expect(Code.SETTINGS_WRONG, begin)
    scene.may_follow = {Code.WINDOW_WRONG}


def of_another_group_by_its_word(scene: Scene) -> None:
    """One copy says that it is of another group, where it would be compared with nobody."""
    begin = scene.histories["m2"][0]
    begin["settings"] = str(begin["settings"]).replace(scene.workload.group, OTHER)
    wrong = scene.pick(lambda row: is_decided(row, "conflict"), "m2")
    wrong["transaction_id"] = "00"
    scene.chain()
    scene.expect(Code.SETTINGS_WRONG, begin)
    scene.expect(Code.MEMBERS_DISAGREE, wrong)


def called_a_binary_log(scene: Scene) -> None:
    """Who rewrote a copy has it say that it is a binary log, which is compared with nobody."""
    _called(scene, "binary_log")


def called_an_export(scene: Scene) -> None:
    """Who rewrote a copy has it say that it is an export, which outvotes the members."""
    _called(scene, "total_order")


def _called(scene: Scene, source: str) -> None:
    """A transaction has another id, the end is cut off, and all is chained anew."""
    rows = scene.histories["m2"]
    begin, wrong = rows[0], scene.pick(lambda row: is_decided(row, "conflict"), "m2")
    begin["settings"] = str(begin["settings"]).replace('"member"', f'"{source}"')
    wrong["transaction_id"] = "00"
    rows[:] = numbered(rows[:-150])
    scene.expect(Code.SETTINGS_WRONG, begin)
    scene.expect(Code.MEMBERS_DISAGREE, wrong)
    scene.expect(Code.HISTORY_CUT, rows[-1])
    scene.may_follow = {Code.REPORT_WRONG}


def exchanged_histories(scene: Scene) -> None:
    """Two members' histories have each other's names, and all chains and reports fit that."""
    histories = scene.histories
    histories["m1"], histories["m2"] = histories["m2"], histories["m1"]
    for member in ("m1", "m2"):
        for row in histories[member]:
            row["observer"] = f"{scene.name}-{member}"
    scene.chain()
    for member in ("m1", "m2"):
        own = next(row for row in histories[member] if row.get("is_local"))
        scene.expect(Code.ORIGIN_WRONG, own)


def under_another_name(scene: Scene) -> None:
    """The rows of a history have the name of an observer that has not written them."""
    rows = scene.histories["m2"]
    for row in rows:
        row["observer"] = str(row["observer"]) + "9"
    scene.expect(Code.RECORD_EDITED, rows[0])
    scene.expect(Code.ORIGIN_WRONG, next(row for row in rows if row.get("is_local")))


FAULTS: Sequence[Callable[[Scene], None]] = (
    certified_for_conflict,
    conflict_for_certified,
    too_old_for_certified,
    certified_for_too_old,
    stamp_too_low,
    stamp_too_high,
    winner_that_did_not_win,
    missing_record,
    missing_abort,
    record_never_written,
    members_disagree,
    purged_too_early,
    wrong_collection,
    wrong_view_change,
    duplicate_gtid,
    edited_record,
    edited_and_chained,
    swapped_records,
    applier_overlap,
    decisions_that_were_not_told,
    told_record_never_written,
    record_there_twice,
    digest_wrong_after_a_warning,
    stable_set_beyond_a_report,
    cut_off,
    flipped_verdict,
    changed_start,
    changed_settings,
    of_another_group_by_its_word,
    called_a_binary_log,
    called_an_export,
    exchanged_histories,
    under_another_name,
)
