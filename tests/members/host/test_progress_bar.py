"""Progress of long work: lines where there is no terminal, a bar where there is one."""

import io
import os
import pty
import threading

import pytest

from groupcert.members.host.progress_bar import Progress, progress


class Told(io.StringIO):
    """A stream that says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_line = threading.Event()

    def write(self, text: str) -> int:
        """Takes text, and notes it."""
        count = super().write(text)
        self.has_line.set()
        return count


@pytest.mark.parametrize(
    ("done", "total", "seconds", "expected"),
    [
        (0, None, 3, "at work, 3 s"),
        (7_000, None, 3, "7,000 rows, 3 s"),
        (0, 8, 3, "0 rows of 8 rows (0%), 3 s"),
        (2, 8, 3, "2 rows of 8 rows (25%), 3 s, about 9 s left"),
        (9, 8, 3, "9 rows of 8 rows (100%), 3 s, about 0 s left"),
    ],
)
def test_the_words_have_what_is_done_of_how_much_and_what_is_left(
    done: int, total: int | None, seconds: float, expected: str
) -> None:
    times = iter([0.0, 10.0, 10.0 + seconds])
    state = Progress(lambda: next(times))
    state.step("exporting", total, "{:,.0f} rows".format)
    state.at(done)
    assert str(state) == expected


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    stream = Told()
    with progress("scheduling", 65, stream=stream, period_seconds=0.01) as state:
        for _ in state.counted(iter(range(13))):
            pass
        stream.has_line.clear()
        assert stream.has_line.wait(60)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("groupcert: scheduling: 13 of 65 (20%), ")


def test_what_ends_soon_says_nothing() -> None:
    stream = Told()
    with progress("scheduling", 65, stream=stream) as state:
        assert list(state.counted(iter("abc"))) == ["a", "b", "c"]
    assert stream.getvalue() == ""


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    near, far = pty.openpty()
    monkeypatch.setenv("COLUMNS", "100")
    shown = b""
    with os.fdopen(far, "w") as stream, progress("scheduling", 65, stream=stream) as state:
        state.at(13)
        while b"13 of 65 (20%)" not in shown:
            shown += os.read(near, 65_536)
    os.close(near)
    assert b"scheduling" in shown
