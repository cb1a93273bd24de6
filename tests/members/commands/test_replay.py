"""`groupcert replay`: what it reads, what it prints, and what it says of a damaged trace."""

import gzip
import io
import json
import random
from pathlib import Path

import pytest

from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.errors import InvalidTrace
from groupcert.members.commands.replay import ParallelismBound, read_lines, replay

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
OPTIONS = CertifierOptions(
    group_source=UUID, collection_period_transactions=0, learn_snapshots=True
)


def transaction(snapshot: str, *items: str, member: str = "m1") -> dict[str, object]:
    """Returns a line of a trace."""
    return {
        "type": "transaction",
        "member": member,
        "snapshot_version": f"{UUID}:{snapshot}" if snapshot else "",
        "write_set": list(items),
    }


TRACE: tuple[dict[str, object], ...] = (
    {"type": "view_change", "view_id": "1", "members": ["m1", "m2"], "joined": ["m2"]},
    transaction("", "t/a"),
    transaction("", "t/b", member="m2"),
    transaction("", "t/a", member="m2"),
    transaction("1-2", "t/a", "t/b"),
    {"type": "garbage_collection", "stable_set": f"{UUID}:1-3"},
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace in a file."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return path


def answers(
    capsys: pytest.CaptureFixture[str], trace: Path, observer: str | None = None
) -> list[dict[str, object]]:
    """Returns what `replay --json` prints."""
    replay(str(trace), OPTIONS, observer, as_json=True)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_line_in_has_its_line_out(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answers(capsys, trace) == [
        {"type": "view_change", "last_committed": 0, "sequence_number": 0},
        _certified(1, 1, 2),
        _certified(2, 1, 3),
        {
            "type": "transaction",
            "gtid": None,
            "decision": "conflict",
            "item": "t/a",
            "winner_gtid": f"{UUID}:1",
        },
        _certified(3, 3, 4),
        {"type": "garbage_collection", "purged": 2, "last_committed_global": 4},
    ]


def test_the_observers_own_transactions_have_no_stamps(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = answers(capsys, trace, "m2")
    assert printed[1:3] == [_certified(1, 1, 2), _certified(2, None, None)]


def test_a_compressed_trace_gives_the_same(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = answers(capsys, trace)
    compressed = trace.with_name("trace.of.any.name")
    compressed.write_bytes(gzip.compress(trace.read_bytes()))
    assert answers(capsys, compressed) == plain


def test_the_summary_counts_decisions_and_shows_the_parallelism(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay(str(trace), OPTIONS, None, as_json=False)
    cells = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()]
    counts = {row[0].strip(): row[1].strip() for row in cells if len(row) == 2}
    assert counts["certified"] == "3"
    assert counts["conflicts"] == "1"
    assert counts["items purged"] == "2"
    assert counts["longest chain of remote transactions"] == "2"
    assert counts["parallelism that the stamps allow, mean"] == "1.5"


def test_what_stands_before_a_malformed_line_is_answered(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with trace.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(InvalidTrace, match="trace line 7: it is not JSON"):
        replay(str(trace), OPTIONS, None, as_json=True)
    assert len(capsys.readouterr().out.splitlines()) == len(TRACE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(random.Random(1).randbytes(9_000).hex().encode())[:-9],
            "line 1: .* damaged",
        ),
        (b"\x1f\x8b\x08broken", "line 1: the compressed file is damaged"),
        (b'{"type": "\xff"}\n', "line 1: it is not UTF-8"),
    ],
    ids=["truncated", "no gzip", "no text"],
)
def test_damaged_bytes_are_a_malformed_trace(content: bytes, message: str) -> None:
    with pytest.raises(InvalidTrace, match=message):
        list(read_lines(io.BufferedReader(io.BytesIO(content))))


def test_chains_count_what_waits_for_each_other() -> None:
    bound = ParallelismBound()
    for number in range(2, 10):
        bound.add(1, number)
    assert (bound.levels, bound.mean) == (1, 8.0)
    bound.add(9, 10)
    assert bound.levels == 2


def test_a_barrier_puts_everything_after_it_on_top() -> None:
    bound = ParallelismBound()
    bound.add(1, 2)
    bound.add(2, 3)
    bound.add_barrier()
    bound.add(1, 2)
    bound.add(1, 3)
    assert (bound.transactions, bound.levels) == (4, 3)


def test_an_empty_trace_has_no_parallelism() -> None:
    assert ParallelismBound().mean == 0.0


def _certified(
    number: int, last_committed: int | None, sequence_number: int | None
) -> dict[str, object]:
    return {
        "type": "transaction",
        "gtid": f"{UUID}:{number}",
        "decision": "certified",
        "last_committed": last_committed,
        "sequence_number": sequence_number,
    }
