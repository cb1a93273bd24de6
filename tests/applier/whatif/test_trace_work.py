"""A trace as work: what is certified, what is derived, what is refused.

Method: the script tests/testdata/trace_work.txt has traces and the work in them; `A` stands
for the UUID of the group.
"""

import json
from pathlib import Path

import pytest

from groupcert.applier.whatif.trace_work import LOCK_INTERVAL_MAX, TraceWork
from groupcert.applier.whatif.workload import Work
from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.errors import InvalidTrace
from tests.datadriven import Command, run_script

SCRIPT = Path(__file__).parents[2] / "testdata" / "trace_work.txt"
UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
OPTIONS = CertifierOptions(
    group_source=UUID, collection_period_transactions=0, learn_snapshots=True
)


def line_of(text: str) -> str:
    """Returns a line: of `T <snapshot> <items> [<fields>]` a transaction, of others themselves."""
    if not text.startswith("T "):
        return text.replace('"A:', f'"{UUID}:')
    _, snapshot, items, *more = text.split(" ", 3)
    fields = {
        "type": "transaction",
        "member": "m1",
        "snapshot_version": "" if snapshot == "-" else f"{UUID}:{snapshot}",
        "write_set": [] if items == "-" else items.split(","),
    }
    return json.dumps(fields | json.loads(more[0] if more else "{}"))


def text_of(work: Work) -> str:
    """Returns the work as the script draws it: its stamps, and what else is known."""
    if work.gtid is None:
        assert work == Work(None)
        return "alone"
    header = work.header
    databases, tables = (
        "any" if names is None else " ".join(map(repr, names))
        for names in (header.databases, header.tables)
    )
    more = {"domain": header.domain_id, "commit": header.commit_id, "us": work.duration_us}
    words = [f"{name} {value}" for name, value in more.items() if value]
    words.append(f"parent {header.commit_parent}, interval {work.lock_interval}")
    return (
        f"{str(work.gtid).replace(UUID, 'A')} {work.last_committed} {work.sequence_number}: "
        f"databases {databases}, tables {tables}, keys {work.keys}, {', '.join(words)}"
    )


def work(command: Command) -> str:
    """work [interval_max=]: lines of a trace."""
    [limit] = command.take("interval_max")
    reader = TraceWork(OPTIONS, lock_interval_max=int(limit or LOCK_INTERVAL_MAX))
    try:
        found = list(reader.read(map(line_of, command.body)))
    except InvalidTrace as error:
        return str(error)
    assert all(one.gtid is None or one.rows == len(one.keys or ()) for one in found)
    left_out = {
        name: count
        for name in ("conflict", "too_old", "refused", "garbage_collections")
        if (count := getattr(reader.summary, name))
    }
    return "\n".join([*map(text_of, found), *(f"{name} {n}" for name, n in left_out.items())])


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    assert LOCK_INTERVAL_MAX == 2**16 - 1, "WL#7165: the difference has 16 bits"
    run_script(SCRIPT, {"work": work}, rewrite=rewrite)


@pytest.mark.parametrize("text", ['{"local"', '["local"]', '"local"'])
def test_a_damaged_line_is_refused_by_certification(text: str) -> None:
    with pytest.raises(InvalidTrace, match="line 1: it is"):
        list(TraceWork(OPTIONS).read([text]))
