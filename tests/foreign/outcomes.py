"""What came of a program's tests: passed, refused by a server of a group, known to fail, failed."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.foreign.known import KNOWN

EXAMPLES_MAX = 6
LINE_CHARACTERS = 200
REFUSALS = frozenset(("0A000", "08007", "25006", "40001", "54000", "57014", "57P01"))
"""SQLSTATEs by which a server of a group refuses a transaction."""
OURS = re.compile(
    r"server of a group|this server is read-only|could not serialize access|cancelled at its COMMIT"
    r"|certified|groupcert|older than the group|administrator command|due to user request"
)
VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")
FINE = ("passed", "skipped")


class Groups:
    """How often something was said, and in which tests first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._tests: dict[str, list[str]] = {}

    def add(self, said: str, test: str, count: int = 1) -> None:
        """Counts what a test has said."""
        self._counts[said] += count
        tests = self._tests.setdefault(said, [])
        if test not in tests and len(tests) < EXAMPLES_MAX:
            tests.append(test)

    @property
    def count(self) -> int:
        """Of all tests."""
        return self._counts.total()

    def document(self) -> dict[str, Any]:
        """All of it, as JSON takes it; the most frequent first."""
        return {
            said: {"count": count, "tests": self._tests[said]}
            for said, count in self._counts.most_common()
        }


@dataclass
class Outcomes:
    """Counts, and groups of what did not pass with some of the tests' names."""

    program: str
    passed: int = 0
    skipped: int = 0
    alone: int = 0
    """What fails at a server without a group, too."""
    refused: Groups = field(default_factory=Groups)
    known: Groups = field(default_factory=Groups)
    """What fails for a reason of `KNOWN`."""
    failed: Groups = field(default_factory=Groups)
    more: dict[str, Any] = field(default_factory=dict)
    """What else is to be known of the run."""

    def fails(self, test: str, errors: Iterable[tuple[str | None, str]]) -> None:
        """Counts a test that did not pass: refused, known or failed.

        Args:
            errors: SQLSTATE and text of what led to its end, that one last.
        """
        said = "?"
        for state, said in errors:
            if state in REFUSALS and OURS.search(said):
                self.refused.add(f"{state} {_grouped(said)}", test)
                return
        for pattern, reason in KNOWN.get(self.program.partition("-")[0], {}).items():
            if re.search(pattern, f"{test}: {said}"):
                self.known.add(reason, test)
                return
        self.failed.add(_grouped(said), test)

    def differ(self, what: Iterable[str]) -> None:
        """Counts rows, sums or columns that are not the same at all servers as failures."""
        for each in what:
            self.failed.add(f"differs: {each}", self.program)

    def counts(self) -> dict[str, int]:
        """The numbers alone."""
        return {
            "passed": self.passed,
            "refused": self.refused.count,
            "known": self.known.count,
            "failed": self.failed.count,
            "skipped": self.skipped,
            "alone too": self.alone,
        }

    def document(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        groups = {name: getattr(self, name).document() for name in ("refused", "known", "failed")}
        return {"counts": self.counts(), **groups, **self.more}


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file, as the parts in `inside/` write them."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def outcomes_of(
    program: str,
    records: Iterable[dict[str, Any]],
    alone: Iterable[dict[str, Any]] = (),
    *,
    is_whole: bool = True,
) -> Outcomes:
    """Returns the outcomes of records.

    Args:
        alone: The records of a run without a group.
        is_whole: Whether all of these tests were to run.
    """
    outcomes = Outcomes(program)
    before = {record["test"]: record["outcome"] for record in alone}
    not_run = {test for test, outcome in before.items() if outcome in FINE}
    for record in records:
        test, outcome = record["test"], record["outcome"]
        not_run.discard(test)
        if outcome == "passed":
            outcomes.passed += 1
        elif outcome == "skipped" and before.get(test) != "passed":
            outcomes.skipped += 1
        elif outcome == "rows" or before.get(test, "passed") in FINE:
            outcomes.fails(test, record["errors"])
        else:
            outcomes.alone += 1
    for test in sorted(not_run) if is_whole else ():
        outcomes.fails(test, [(None, "it was not run")])
    return outcomes


def _grouped(said: str) -> str:
    line = said.strip().partition("\n")[0][:LINE_CHARACTERS]
    return VARYING.sub("*", line)
