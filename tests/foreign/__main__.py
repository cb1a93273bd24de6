"""`python -m tests.foreign PROGRAM --sources FOLDER`: a program of others at a server of a group.

Prints what passed, what was refused with which SQLSTATE, what failed, and whether rows are equal at
all servers, as JSON. Exits with 1 if rows differ.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.foreign.suites import SUITES, run_alembic, run_load_program, run_suite

LOADS = ("pgbench", "pgbouncer")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("program", choices=[*SUITES, *LOADS, "alembic"])
    sources = os.environ.get("FOREIGN_SOURCES", ".build/foreign")
    parser.add_argument("--sources", type=Path, default=Path(sources), help=f"({sources})")
    parser.add_argument("--keep", type=Path, default=Path(".build/foreign-runs"), help="of records")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load of pgbench (15)")
    parser.add_argument("labels", nargs="*", help="which tests; all, if none is given")
    options = parser.parse_intermixed_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    options.keep.mkdir(parents=True, exist_ok=True)
    sources, kept = options.sources.absolute(), options.keep.absolute()
    if options.program in SUITES:
        document = run_suite(options.program, sources, kept, options.labels)
    elif options.program in LOADS:
        is_bouncer = options.program == "pgbouncer"
        document = run_load_program(options.seconds, has_bouncer=is_bouncer)
    else:
        document = run_alembic(sources)
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    group = document.get("group", document)
    return 1 if group.get("rows differ") or group.get("problems") else 0


if __name__ == "__main__":
    sys.exit(main())
