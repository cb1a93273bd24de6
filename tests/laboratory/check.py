"""`python -m tests.laboratory.check FILE`: checks a saved history, and prints what was found.

Exits with 0 if nothing was, with 1 if something was, with 2 if the file is no history.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.laboratory.agreement import check_agreement
from tests.laboratory.append import check_append
from tests.laboratory.findings import Finding
from tests.laboratory.history import History, Workload, load_history
from tests.laboratory.invariants import check_bank, check_register, check_set
from tests.laboratory.relay import check_relay
from tests.laboratory.sessions import check_sessions
from tests.laboratory.summary import summary_of

SHOWN_MAX = 3
"""Findings of one code that are told."""

CHECKS: dict[str, Callable[[History, Workload], Iterator[Finding]]] = {
    "append": check_append,
    "bank": check_bank,
    "register": check_register,
    "set": check_set,
}


def check_history(history: History) -> list[Finding]:
    """Everything that is wrong with a run; final states, where there are none, are not missed."""
    findings = [
        finding
        for workload in history.workloads
        for finding in CHECKS[workload.kind](history, workload)
    ]
    for check in (check_sessions, check_agreement, check_relay):
        findings += check(history)
    return findings


def first_of_each(findings: Iterable[Finding]) -> list[str]:
    """The first findings of each code, in words."""
    shown: Counter[str] = Counter()
    texts = []
    for finding in findings:
        shown[finding.code] += 1
        if shown[finding.code] <= SHOWN_MAX:
            texts.append(str(finding))
    return texts


def report(history: History, findings: Sequence[Finding]) -> str:
    """The first findings of each code, then the summary."""
    return "\n".join([*first_of_each(findings), str(summary_of(history, findings)), ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.laboratory.check", description=__doc__)
    parser.add_argument("file", type=Path, help="a history, as `History.save` writes it")
    path = parser.parse_args(arguments).file
    try:
        history = load_history(path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    findings = check_history(history)
    sys.stdout.write(report(history, findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
