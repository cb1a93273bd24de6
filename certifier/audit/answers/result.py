"""The result of a job."""

from collections import Counter
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from .findings import Finding

JsonObject = dict[str, object]
SAMPLE = "sample.jsonl.gz"
"""The trace that `profile` writes for `groupcert whatif`."""


@dataclass(slots=True)
class Result:
    """The answers of a job; a job is a function from a `Log` to a `Result`.

    `findings`: at most `ROWS_MAX` of a code; `counts`: all of them, by code. `summary`: numbers for
    people, small enough for one page, as JSON. `tables`: larger answers, by the name that they are
    written under; they are computed when they are written. `files`: what stands beside the summary.
    `kept`: what this job needs to know of these rows in an audit of later ones; `rows`: the rows of
    the log that it needs then, by history and number.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    summary: JsonObject = field(default_factory=dict)
    tables: dict[str, DataFrame] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    kept: JsonObject = field(default_factory=dict)
    rows: set[tuple[int, int]] = field(default_factory=set)

    def add(self, findings: list[Finding]) -> None:
        """Adds findings that are all of their kind."""
        self.findings += findings
        self.counts.update(finding.code.value for finding in findings)
