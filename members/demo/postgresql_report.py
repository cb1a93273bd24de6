"""Reports what the demo on PostgreSQL servers has seen: what clients were told, the server that was
killed, and conflicts as psql prints them.
"""

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .load import LoadCounts
from .postgresql_bank import Conflict
from .report import DemoSummary, checks_table


class Kill(NamedTuple):
    """A server that was killed and started again."""

    server: str
    not_on_disk: int
    """Commits that it had acknowledged and came back without; the group's log had them."""
    back_seconds: float
    """From its start to the first commit of a client there."""


class Outcome(NamedTuple):
    """What the demo has seen, beside what its summary says."""

    summary: DemoSummary
    postgresql: str
    """Version of the servers."""
    kill: Kill
    counts: LoadCounts
    unknown_committed: int
    """How many of the transfers are there whose outcome no client was told."""
    companion_restarts: int
    conflicts: Sequence[Conflict]
    """One of each server, if there were any between servers."""

    def document(self) -> dict[str, object]:
        """Returns the part of the JSON document beside the summary."""
        told = self.counts.document(self.summary.seconds)
        return {
            "postgresql": self.postgresql,
            "p50_ms": told["p50_ms"],
            "p99_ms": told["p99_ms"],
            "retried": self.counts.conflicts,
            "unknown": len(self.counts.unknown_ids),
            "unknown_committed": self.unknown_committed,
            "killed": self.kill._asdict(),
            "companion_restarts": self.companion_restarts,
            "conflict_examples": [each._asdict() for each in self.conflicts],
        }


def show(outcome: Outcome) -> None:
    """Prints the checks, what the clients were told, and conflicts as they got them."""
    out = Console()
    converged = "all servers, and all members, are equal row for row"
    out.print(checks_table(outcome.summary, converged=converged, place="server"))
    story = Table.grid(padding=(0, 2))
    story.add_column(style="bold", no_wrap=True)
    for title, text in _story(outcome):
        story.add_row(title, text)
    out.print()
    out.print(story)
    for conflict in outcome.conflicts:
        out.print(f"\nCOMMIT at {conflict.server}, as psql prints it:")
        out.print(Text(_as_psql_prints(conflict, out.width)))


def _as_psql_prints(conflict: Conflict, columns: int) -> str:
    """Returns an error as psql prints it where VERBOSITY is verbose, in lines of some length."""
    parts = {
        "ERROR": f"{conflict.sqlstate}: {conflict.message}",
        "DETAIL": conflict.detail,
        "HINT": conflict.hint,
    }
    return "\n".join(
        fill(f"{part}:  {text}", columns, initial_indent="  ", subsequent_indent="      ")
        for part, text in parts.items()
    )


def _story(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yields the events, with a title each."""
    summary, counts, kill = outcome.summary, outcome.counts, outcome.kill
    told = counts.document(summary.seconds)
    yield (
        "acknowledged",
        f"{summary.acknowledged:,} commits in {summary.seconds:.1f} s "
        f"({summary.commits_per_second:,.0f}/s) by {summary.members} PostgreSQL "
        f"{outcome.postgresql}; {told['p50_ms']:.1f} ms (p50), {told['p99_ms']:.1f} ms (p99)",
    )
    yield (
        "conflicts",
        f"SQLSTATE 40001 in {counts.conflicts:,} transactions, of which {summary.conflicts:,} lost "
        "to another server; their clients ran them again",
    )
    yield (
        "unknown",
        f"the outcome of {commits_in_words(len(counts.unknown_ids))}, of which "
        f"{outcome.unknown_committed} are there",
    )
    yield (
        f"{kill.server} killed",
        f"it came back without {commits_in_words(kill.not_on_disk)} that it had acknowledged, "
        "executed them from the group's log, and took new ones "
        f"{kill.back_seconds:.1f} s after its start",
    )


def commits_in_words(count: int) -> str:
    """Returns a number of commits, as a text has it.

    >>> commits_in_words(1), commits_in_words(1_200)
    ('1 commit', '1,200 commits')
    """
    return f"{count:,} commit" + ("" if count == 1 else "s")
