"""`python -m tests.foreign PROGRAM --sources FOLDER`: a program of others at a server of a group.

Prints what passed, what was refused with which SQLSTATE, what failed, and whether rows are equal at
all servers, as JSON. Tests that fail at a server without a group, in REPEATABLE READ, are counted
apart. Exits with 1 if rows differ, or if a test fails that is not refused.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.foreign.suites import SUITES, run_alembic, run_load_program, run_suite

LOADS = ("pgbench", "pgbouncer")
PROGRAMS = (*SUITES, *LOADS, "alembic")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("program", choices=[*PROGRAMS, "all"])
    sources = os.environ.get("FOREIGN_SOURCES", ".build/foreign")
    parser.add_argument("--sources", type=Path, default=Path(sources), help=f"({sources})")
    parser.add_argument(
        "--keep", type=Path, default=Path(".build/foreign-runs"), help="records of all tests"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load of pgbench (15)")
    parser.add_argument("labels", nargs="*", help="which tests; all, if none is given")
    options = parser.parse_intermixed_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    options.keep.mkdir(parents=True, exist_ok=True)
    is_wrong = False
    for program in PROGRAMS if options.program == "all" else (options.program,):
        document = _run(program, options)
        sys.stdout.write(json.dumps({program: document}, indent=2) + "\n")
        sys.stdout.flush()
        group = document.get("group", document)
        findings = (group.get("rows differ"), document.get("problems"), document.get("failed"))
        is_wrong |= any(findings)
    return 1 if is_wrong else 0


def _run(program: str, options: argparse.Namespace) -> dict[str, Any]:
    sources, kept = options.sources.absolute(), options.keep.absolute()
    if program in SUITES:
        return run_suite(program, sources, kept, options.labels)
    if program in LOADS:
        return run_load_program(options.seconds, has_bouncer=program == "pgbouncer")
    return run_alembic(sources)


if __name__ == "__main__":
    sys.exit(main())
