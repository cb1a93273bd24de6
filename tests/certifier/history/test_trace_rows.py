"""A trace as a certification log: what stands in its rows, and in which order.

Method: the script tests/testdata/trace_rows.txt has lines and their rows; `A` and `B` stand for the
UUIDs of the group and of another source.
"""

import json
from pathlib import Path

from groupcert.certifier.errors import InvalidTrace
from groupcert.certifier.history.schema import STEP_BITS, RecordKind, Row, place_of, signed
from groupcert.certifier.history.trace_rows import TraceHistory
from groupcert.certifier.position import log_index_of, log_sequence_of
from groupcert.certifier.write_set import item_from_text
from tests.certifier.histories import GROUP, OTHER, options
from tests.certifier.history.test_trace import full
from tests.datadriven import Command, run_script

SCRIPT = Path(__file__).parents[2] / "testdata" / "trace_rows.txt"
LEFT_OUT = {"format_version", "observer", "history", "place", "kind"}
ITEMS: dict[object, object] = {signed(item_from_text(text)): text for text in "abc"}
LINE: dict[str, object] = {"type": "transaction", "member": "m1", "snapshot_version": ""}


def line_of(text: str) -> str:
    """Returns a line; `T {...}` is a transaction with these fields."""
    return json.dumps(LINE | json.loads(full(text[2:]))) if text[:2] == "T " else full(text)


def row_text(row: Row) -> str:
    """Returns a row with its line, its kind and its values, items by their texts."""
    place = int(str(row["place"])) >> STEP_BITS
    assert row["place"] == place_of(place, RecordKind(str(row["kind"])))
    assert log_index_of(place) == 0
    shown: dict[str, object] = {
        name: [ITEMS.get(each, each) for each in value] if isinstance(value, list) else value
        for name, value in row.items()
        if name not in LEFT_OUT and value is not None
    }
    shown |= {"winner_item": ITEMS[row["winner_item"]]} if "winner_item" in row else {}
    words = [f"{name}={value!r}" for name, value in shown.items()]
    text = " ".join([f"{log_sequence_of(place)} {row['kind']!r}", *words]).replace("'", "")
    return text.replace(GROUP, "A").replace(OTHER, "B")


def rows(command: Command) -> str:
    """rows [observer=] [keys]: lines of a trace; the first row is drawn only of none."""
    observer, keys = command.take("observer", "keys")
    history = TraceHistory(options(learn=True), observer, keys=keys is not None)
    try:
        found = list(history.rows(map(line_of, command.body)))
    except InvalidTrace as error:
        return str(error)
    assert history.line == len(command.body)
    assert {row["observer"] for row in found} == {observer or "trace"}
    places = [int(str(row["place"])) for row in found]
    assert places == sorted(set(places))
    assert found[0]["kind"] == "start"
    return "\n".join(map(row_text, found[1:] if command.body else found))


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    run_script(SCRIPT, {"rows": rows}, rewrite=rewrite)
