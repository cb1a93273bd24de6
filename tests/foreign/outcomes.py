"""What came of a program's tests: passed, refused by a server of a group, failed."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES_MAX = 6
LINE_CHARACTERS = 200
REFUSALS = frozenset(("0A000", "08007", "25006", "40001", "54000", "57014", "57P01"))
"""SQLSTATEs by which a server of a group refuses a transaction."""
OURS = re.compile(
    r"server of a group|this server is read-only|could not serialize access|cancelled at its COMMIT"
    r"|certified|groupcert|older than the group|administrator command|due to user request"
)
VARYING = re.compile(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"")


@dataclass
class Outcomes:
    """Counts, and groups of what did not pass with some of the tests' names."""

    passed: int = 0
    skipped: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    alone: list[str] = field(default_factory=list)
    """What fails at a server without a group, too."""

    def add(self, record: dict[str, Any], alone: frozenset[str] = frozenset()) -> None:
        """Takes a record of a test, as the parts in `inside/` write it."""
        if record["outcome"] in ("passed", "skipped"):
            setattr(self, record["outcome"], getattr(self, record["outcome"]) + 1)
        elif record["test"] in alone:
            self.alone.append(record["test"])
        else:
            for state, said in record["errors"]:
                if state in REFUSALS and OURS.search(said):
                    self.refused[f"{state} {_grouped(said)}"].append(record["test"])
                    return
            said = record["errors"][-1][1] if record["errors"] else "?"
            self.failed[_grouped(said)].append(record["test"])

    def document(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {
            "passed": self.passed,
            "skipped": self.skipped,
            "refused": _ordered(self.refused),
            "failed": _ordered(self.failed),
            "failed alone too": len(self.alone),
        }


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def failures(path: Path) -> frozenset[str]:
    """Returns the tests of a file that did not pass."""
    return frozenset(
        record["test"]
        for record in read_records(path)
        if record["outcome"] not in ("passed", "skipped")
    )


def outcomes_of(records: Iterable[dict[str, Any]], alone: frozenset[str]) -> Outcomes:
    """Returns the outcomes of records; `alone`: tests that fail without a group, too."""
    outcomes = Outcomes()
    for record in records:
        outcomes.add(record, alone)
    return outcomes


def _grouped(said: str) -> str:
    line = said.strip().partition("\n")[0][:LINE_CHARACTERS]
    return VARYING.sub("*", line)


def _ordered(groups: dict[str, list[str]]) -> dict[str, Any]:
    counts = Counter({name: len(tests) for name, tests in groups.items()})
    return {
        name: {"count": count, "tests": groups[name][:EXAMPLES_MAX]}
        for name, count in counts.most_common()
    }
