"""`groupcert replay`: certifies a trace offline and prints each decision.

The rule it keeps: nothing is decided here; `history.trace` decides. A trace is read and answered
line by line, so that its length does not matter.
"""

import gzip
import io
import json
import sys
import zlib
from array import array
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...certifier.core import Certifier, CertifierOptions
from ...certifier.errors import InvalidTrace
from ...certifier.history.trace import LINE_CHARACTERS_MAX, JsonObject, Replay, ReplaySummary
from ..host.progress_bar import progress

GZIP_MAGIC = b"\x1f\x8b"
PROGRESS_LINES = 1_000
SNAPSHOT_LAG_MAX = 1 << 62


class ParallelismBound:
    """The largest parallelism of an applier with enough workers, if all transactions take equally
    long.

    A transaction may start when all those up to its `last_committed` have committed: its level is
    one above the highest of theirs. The mean parallelism is transactions by levels (Brent).

    >>> bound = ParallelismBound()
    >>> for stamps in [(1, 2), (1, 3), (2, 4), (3, 5)]:
    ...     bound.add(*stamps)
    >>> bound.transactions, bound.levels
    (4, 2)
    """

    def __init__(self) -> None:
        self.transactions = 0
        self.levels = 0
        self._first_number: int | None = None
        self._levels_before = 0
        self._highest = array("Q")
        """The highest level up to each sequence number since the last barrier."""

    def add(self, last_committed: int, sequence_number: int) -> None:
        """Takes the stamps of the next transaction."""
        if self._first_number is None:
            self._first_number = sequence_number
        assert sequence_number == self._first_number + len(self._highest), "a stamp is missing"
        waits_for = last_committed - self._first_number
        below = self._highest[waits_for] if waits_for >= 0 else self._levels_before
        self.levels = max(self.levels, below + 1)
        self._highest.append(self.levels)
        self.transactions += 1

    def add_barrier(self) -> None:
        """Takes a transaction that is applied alone: after all before it, before all after it."""
        self._levels_before = self.levels
        self._first_number = None
        self._highest = array("Q")

    @property
    def mean(self) -> float:
        """Transactions at a time; 0 for none."""
        return self.transactions / self.levels if self.levels else 0.0


def replay(trace: str, options: CertifierOptions, observer: str | None, *, as_json: bool) -> None:
    """Prints the decision on each line of a trace (a path, or `-`), or a summary of them.

    Raises:
        InvalidTrace: A line cannot be read; the lines before it are answered.
        OSError: There is no such file, or it cannot be read.
    """
    run, bound = Replay(Certifier(options), observer), ParallelismBound()
    with ExitStack() as stack:
        source = stack.enter_context(opened(trace))
        lines: Iterator[str] = stack.enter_context(closing(read_lines(source)))
        state = stack.enter_context(progress("certifying", number="{:,.0f} lines".format))
        for line in state.counted(lines, PROGRESS_LINES):
            answer = run.replay(line)
            if answer is None:
                continue
            _count(bound, answer)
            if as_json:
                sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    if not as_json:
        Console().print(_summary(run.summary, bound))


def read_lines(source: io.BufferedReader) -> Generator[str, None, None]:
    """Yields the lines of a trace, which may be compressed.

    Raises:
        InvalidTrace: The bytes are damaged, are no text, or have a line that never ends.
    """
    is_compressed = source.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
    content = gzip.GzipFile(fileobj=source) if is_compressed else source
    text = io.TextIOWrapper(content, encoding="utf-8", newline="\n")
    number = 0
    try:
        while line := text.readline(LINE_CHARACTERS_MAX + 1):
            number += 1
            yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"the compressed file is damaged here ({error})"
        raise InvalidTrace(line=number + 1, problem=problem, expected="a whole .gz file") from None
    except UnicodeDecodeError as error:
        raise InvalidTrace(
            line=number + 1, problem=f"it is not UTF-8 ({error.reason})", expected="UTF-8 text"
        ) from None
    finally:
        text.detach()


@contextmanager
def opened(trace: str) -> Iterator[io.BufferedReader]:
    """Opens a trace: a path, or `-` for standard input."""
    if trace == "-":
        assert isinstance(sys.stdin.buffer, io.BufferedReader)
        yield sys.stdin.buffer
    else:
        with Path(trace).open("rb") as source:
            yield source


def _count(bound: ParallelismBound, answer: JsonObject) -> None:
    stamps = answer.get("last_committed"), answer.get("sequence_number")
    if stamps == (0, 0):
        bound.add_barrier()
    elif isinstance(stamps[0], int) and isinstance(stamps[1], int):
        bound.add(stamps[0], stamps[1])


def _summary(summary: ReplaySummary, bound: ParallelismBound) -> Table:
    table = Table(title="Replay", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    for name, count in (
        ("certified", summary.certified),
        ("  of these, waiting for another one", summary.dependent),
        ("conflicts", summary.conflict),
        ("too old", summary.too_old),
        ("refused", summary.refused),
        ("view changes", summary.view_changes),
        ("garbage collections", summary.garbage_collections),
        ("items purged", summary.purged),
    ):
        table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row("longest chain of remote transactions", f"{bound.levels:,}")
    table.add_row("parallelism that the stamps allow, mean", f"{bound.mean:.1f}")
    return table
