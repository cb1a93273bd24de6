"""Rows of a certification log: what is chained of them, and what a certifier's decisions give.

The chain's bytes are spelled out here: members write them, audits derive them by other means, and
neither may change them alone.
"""

import json
from hashlib import sha256
from itertools import pairwise

import pytest

from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.history.recorder import HistoryRecorder, Report
from groupcert.certifier.history.schema import (
    CHAIN_START,
    CHAINED,
    COLUMNS,
    RecordKind,
    Row,
    Source,
    kind_at,
    link,
    place_of,
    position_at,
    signed,
    text_of,
)
from groupcert.certifier.position import log_index_of, log_sequence_of, position_of
from groupcert.certifier.records import (
    ExecutedElsewhere,
    GarbageCollection,
    Transaction,
    Verdict,
    ViewChange,
)
from tests.audit.histories import Workload, random_order, rows_of

GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
OTHER = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"


def recorded(**options: object) -> tuple[Certifier, HistoryRecorder]:
    """A new certifier, and who follows it."""
    settings = {"group_source": GROUP, "collection_period_transactions": 0, **options}
    certifier = Certifier(CertifierOptions(**settings))  # type: ignore[arg-type]
    return certifier, HistoryRecorder(certifier, "m1", Source.TRACE, "7f")


def decide(certifier: Certifier, recorder: HistoryRecorder, transaction: Transaction) -> list[Row]:
    """The rows of one transaction."""
    return recorder.transaction(transaction, certifier.certify(transaction), {"session": "s"})


class TestChain:
    """What ties a row to the one before it."""

    def test_every_column_but_the_chain_is_chained_under_its_number(self) -> None:
        for number, column in enumerate(CHAINED):
            value: object = {
                "int64": -5,
                "bool": True,
                "string": "a,b",
                "binary": b"\x0a\xff",
                "list<int64>": [3, -4],
                "list<string>": ["x", "y"],
            }[column.kind]
            word = {
                "int64": "-5",
                "bool": "true",
                "string": "3:a,b",
                "binary": "0AFF",
                "list<int64>": "[3,-4]",
                "list<string>": "[1:x,1:y]",
            }[column.kind]
            assert text_of({column.name: value}) == f"{number}={word}"  # type: ignore[dict-item]
        assert text_of({"chain": b"1"}) == ""
        assert [column.name for column in CHAINED] == [column.name for column in COLUMNS][:-1]

    def test_a_row_of_format_1_has_the_chain_that_it_was_written_with(self) -> None:
        row: Row = {
            "format_version": 1,
            "observer": "m1",
            "history": "7f",
            "number": 2,
            "place": 163,
            "kind": "transaction",
            "started_us": 5,
            "committed_us": 9,
            "reported_chain": b"\x01",
        }
        assert text_of(row).split("\x1f")[-3:] == ["34=5", "35=9", "51=01"]
        assert link(CHAIN_START, text_of(row)).hex() == "64526568b4346e48"
        assert text_of(row | {"executed_us": 7}) == f"{text_of(row)}\x1f52=7"

    def test_the_order_of_a_rows_columns_does_not_count_and_absent_is_none(self) -> None:
        row: Row = {
            "place": 1,
            "observer": "m1",
            "is_local": False,
            "write_set": [],
            "gtid_number": 0,
        }
        shuffled: Row = dict(reversed(row.items()))
        assert text_of(row) == text_of(shuffled) == text_of(row | {"reason": None})
        assert text_of(row) != text_of({**row, "reason": ""})

    def test_rows_that_differ_have_texts_that_differ(self) -> None:
        """Keys and names come from clients, and may have any character."""
        keys: list[list[str] | None] = [
            None,
            [],
            [""],
            ["", ""],
            ["a,b"],
            ["a", "b"],
            ["a,1:b"],
            ["null"],
            ["é"],
            ["]"],
        ]
        texts = {text_of({"write_keys": each}) for each in keys}
        assert len(texts) == len(keys)
        assert text_of({"write_set": []}) != text_of({"write_set": None})
        forged: Row = {"origin": "m1\x1f9=1:s"}
        assert text_of(forged) != text_of({"origin": "m1", "session": "s"})

    def test_a_link_is_made_of_the_chain_before_and_of_the_text(self) -> None:
        text = "1=é"
        expected = sha256(b"12345678" + sha256(text.encode()).digest()).digest()[:8]
        assert link(b"12345678", text) == expected
        assert link(CHAIN_START, text) != expected

    def test_places_order_what_follows_from_a_record_behind_it(self) -> None:
        places = [place_of(position, kind) for position in (1, 2) for kind in RecordKind]
        assert all(earlier < later for earlier, later in pairwise(places))
        assert {position_at(place) for place in places} == {1, 2}
        assert [kind_at(place) for place in places] == [*RecordKind, *RecordKind]
        assert kind_at(places[-1] + 1) is None

    @pytest.mark.parametrize("index", [0, 3, 2**20 - 1])
    def test_a_place_tells_which_record_of_which_message_it_is(self, index: int) -> None:
        place = place_of(position_of(7, index), RecordKind.COLLECTION)
        assert (log_sequence_of(position_at(place)), log_index_of(position_at(place))) == (7, index)
        assert [signed(item) for item in (0, 2**63 - 1, 2**63)] == [0, 2**63 - 1, -(2**63)]


class TestRecorder:
    """What decisions look like as rows."""

    def test_a_history_begins_with_the_state_that_it_begins_with(self) -> None:
        certifier, recorder = recorded()
        for number in range(1, 4):
            decide(certifier, recorder, Transaction(number, "m1", number - 1, [number]))
        certifier.deliver(GarbageCollection(4, 2))
        row = HistoryRecorder(certifier, "m2", Source.MEMBER, "2").start(position_of(9, 0))
        assert (row["observer"], row["history"], row["kind"]) == ("m2", "2", "start")
        assert row["place"] == place_of(position_of(9, 0), RecordKind.START)
        assert (row["version"], row["stable_version"], row["collected_version"]) == (3, 2, 2)
        assert (row["sequence_number"], row["last_committed_global"]) == (4, 4)
        settings = json.loads(str(row["settings"]))
        assert (settings["source"], settings["group_source"]) == ("member", GROUP)
        assert recorder.settings(9)["kind"] == "settings"

    def test_each_verdict_says_what_there_is_to_say(self) -> None:
        certifier, recorder = recorded()
        (first,) = decide(certifier, recorder, Transaction(1, "m1", 0, [2**64 - 1, 7, 7]))
        assert first["verdict"] == "certified"
        assert (first["write_set"], first["version"], first["session"]) == ([-1, 7], 1, "s")
        assert (first["gtid_source"], first["gtid_number"]) == (GROUP, 1)
        assert (first["last_committed"], first["sequence_number"]) == (1, 2)
        assert "read_set" not in first
        (lost,) = decide(certifier, recorder, Transaction(2, "m2", 0, [3], [2**64 - 1]))
        assert (lost["verdict"], lost["read_set"], lost["version"]) == ("conflict", [-1], 1)
        assert (lost["winner_item"], lost["winner_version"]) == (-1, 1)
        assert (lost["winner_origin"], lost["snapshot_version"]) == ("m1", 0)
        (refused,) = decide(certifier, recorder, Transaction(3, "m2", 9, [3]))
        assert (refused["verdict"], "gtid_number" in refused) == ("refused", False)
        assert refused["reason"] == "snapshot version 9 is not certified yet"
        (local,) = decide(
            certifier, recorder, Transaction(4, "m1", 1, [4], gtid=Gtid(OTHER, 5), local=True)
        )
        assert (local["is_local"], local["gtid_brought"], local["gtid_source"]) == (
            True,
            True,
            OTHER,
        )
        assert "sequence_number" not in local
        certifier.deliver(GarbageCollection(5, 2))
        old, _ = decide(certifier, recorder, Transaction(6, "m1", 0, [9], gtid=Gtid(OTHER, 6)))
        assert (old["verdict"], old["gtid_number"]) == ("too_old", 6)

    def test_transactions_executed_elsewhere_have_a_row_before_who_knew_them(self) -> None:
        certifier, recorder = recorded(learn_snapshots=True)
        assert recorder.executed_elsewhere(ExecutedElsewhere(1, GtidSet())) == []
        snapshot = GtidSet.parse(f"{OTHER}:1-5")
        elsewhere, row = decide(certifier, recorder, Transaction(2, "m1", snapshot, [1]))
        assert (elsewhere["kind"], elsewhere["version"]) == ("executed_elsewhere", 1)
        assert elsewhere["snapshot_set"] == row["snapshot_set"] == str(snapshot)
        assert row["version"] == 2
        record = ExecutedElsewhere(3, GtidSet.parse(f"{OTHER}:9"))
        certifier.deliver(record)
        (later,) = recorder.executed_elsewhere(record)
        assert (later["version"], later["snapshot_set"]) == (3, f"{OTHER}:9")

    def test_a_stable_set_is_followed_by_what_was_collected_at_once(self) -> None:
        certifier, recorder = recorded()
        for number in range(1, 4):
            decide(certifier, recorder, Transaction(number, "m1", number - 1, [number]))
        record = GarbageCollection(4, 2)
        certifier.deliver(record)
        stable, collection = recorder.garbage_collection(record)
        assert (stable["stable_version"], "stable_set" in stable) == (2, False)
        assert (collection["collected_version"], collection["purged_items"]) == (2, 2)
        assert (collection["sequence_number"], collection["last_committed_global"]) == (4, 4)
        sets = GarbageCollection(5, GtidSet.parse(f"{GROUP}:1-3,{OTHER}:1"))
        certifier.deliver(sets)
        stable, collection = recorder.garbage_collection(sets)
        assert (stable["stable_version"], stable["stable_set"]) == (3, f"{GROUP}:1-3")
        assert collection["purged_items"] == 1

    def test_steps_of_a_collection_stand_behind_the_transaction_that_made_them(self) -> None:
        certifier, recorder = recorded(collection_period_transactions=2)
        first = Transaction(1, "m1", 0, [1])
        (row,) = recorder.transaction(first, certifier.certify(first))
        assert "session" not in row
        record = GarbageCollection(2, 1)
        certifier.deliver(record)
        assert [row["kind"] for row in recorder.garbage_collection(record)] == ["stable_set"]
        row, step = decide(certifier, recorder, Transaction(3, "m1", 1, [2]))
        assert (row["kind"], step["kind"]) == ("transaction", "collection")
        assert step["purged_items"] == 1

    def test_a_view_change_resets_the_clock_of_who_joined(self) -> None:
        certifier, recorder = recorded()
        certifier.deliver(ViewChange(1, True))
        row = recorder.view_change(ViewChange(1, True), "4", ["m1", "m2"])
        assert (row["last_committed"], row["sequence_number"]) == (0, 0)
        assert (row["view_id"], row["members"], row["resets_clock"]) == ("4", ["m1", "m2"], True)

    def test_a_repetition_decides_nothing(self) -> None:
        _, recorder = recorded()
        row = recorder.repetition(5, "m2", "a", "07")
        assert (row["kind"], row["transaction_id"], row["session"]) == ("repetition", "07", "a")
        assert "verdict" not in row

    @pytest.mark.parametrize("keeps_log", [False, True])
    def test_a_report_has_what_the_member_told(self, keeps_log: bool) -> None:
        _, recorder = recorded()
        written = (99, b"8 bytes.") if keeps_log else ()
        row = recorder.report(5, "m2", "a", Report(4, 3, b"\xff" * 7 + b"\x7f", *written))
        assert (row["origin"], row["session"], row["stable_version"]) == ("m2", "a", 4)
        assert (row["reported_sequence"], row["reported_digest"]) == (3, 2**63 - 1)
        assert ("reported_place" in row, "reported_chain" in row) == (keeps_log, keeps_log)

    def test_numbers_without_a_sign_are_cut_to_what_a_column_takes(self) -> None:
        """A client or another member may have put any 64 bits into the log."""
        certifier, recorder = recorded()
        (refused,) = decide(certifier, recorder, Transaction(1, "m1", 2**63, [1]))
        assert (refused["verdict"], refused["snapshot_version"]) == ("refused", 2**63 - 1)
        assert refused["reason"] == f"snapshot version {2**63} is not certified yet"
        most = 2**64 - 1
        row = recorder.report(5, "m2", "a", Report(most, most, b"\xff" * 9, most, b"chain"))
        for name in ("stable_version", "reported_sequence", "reported_place"):
            assert row[name] == 2**63 - 1
        assert row["reported_digest"] == -1

    def test_rows_of_a_random_order_tell_all_that_moved(self) -> None:
        """Versions step by one; what was purged adds up to what the certifier says."""
        workload = Workload()
        certifier = Certifier(
            CertifierOptions(group_source=GROUP, collection_period_transactions=16)
        )
        rows = rows_of(random_order(5, workload), "m1", workload, certifier=certifier)
        certified = [row["version"] for row in rows if row.get("verdict") == "certified"]
        assert certified == list(range(1, certifier.window.newest_version + 1))
        purged = sum(int(str(row.get("purged_items", 0))) for row in rows)
        assert purged == certifier.purged_total > 0
        assert {row.get("verdict") for row in rows} >= {
            verdict.name.lower() for verdict in Verdict if verdict is not Verdict.REFUSED
        }
