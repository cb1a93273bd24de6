"""What a job hands back."""

from collections import Counter
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from certifier.audit.findings import Finding

JsonObject = dict[str, object]


@dataclass(slots=True)
class Result:
    """What a job found out: a job is a function from a `Log` to one of these.

    `findings`: at most `ROWS_MAX` of a code; `counts`: all of them, by code. `summary`: numbers for
    people, small enough for one page, as JSON. `tables`: larger answers, by the name that they are
    written under; they are computed when they are written.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    summary: JsonObject = field(default_factory=dict)
    tables: dict[str, DataFrame] = field(default_factory=dict)

    def add(self, findings: list[Finding]) -> None:
        """Takes findings that are all there are of their kind."""
        self.findings += findings
        self.counts.update(finding.code.value for finding in findings)
