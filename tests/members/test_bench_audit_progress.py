"""Where a long benchmark is: a few lines in a file, bars on a terminal."""

import io

import pytest

from members.bench_audit_progress import Bars, Lines, shown


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def test_lines_are_few() -> None:
    stream, now = io.StringIO(), 100.0
    lines = Lines(stream, 7, clock=lambda: now)
    lines.begin("spark, 1,000 uniform")
    for tenth in range(250):
        now = 100 + tenth / 10
        lines.tell(f"peak {tenth} MB")
    lines.end("25.0 s")
    lines.begin("duckdb, 1,000 uniform")
    lines.tell("peak 1 MB")
    assert stream.getvalue().splitlines() == [
        "[1/7] spark, 1,000 uniform: begins",
        "[1/7] spark, 1,000 uniform: peak 100 MB, 10 s",
        "[1/7] spark, 1,000 uniform: peak 200 MB, 20 s",
        "[1/7] spark, 1,000 uniform: 25.0 s",
        "[2/7] duckdb, 1,000 uniform: begins",
    ]


def test_a_terminal_gets_a_bar_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    with shown(2, terminal) as steps:
        assert isinstance(steps, Bars)
        steps.begin("history, 10,000,000 uniform, 200 wrong", 10_000_000)
        steps.tell("3,276,800 transactions", 3_276_800)
        steps.end("1,351 MB, there after 301.5 s")
        steps.begin("spark, 10,000,000 uniform, 200 wrong")
        steps.end("141.2 s, 3,100 MB, 200 findings")
    first, second = (line for line in terminal.getvalue().splitlines()[-3:] if "200" in line)
    for words in ("history, 10,000,000 uniform, 200 wrong", "1,351 MB, there after 301.5 s"):
        assert words in first
    for words in ("spark, 10,000,000 uniform, 200 wrong", "141.2 s, 3,100 MB, 200 findings"):
        assert words in second
