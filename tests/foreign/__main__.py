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

from tests.foreign.suites import SUITES, run_suite


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("program", choices=[*SUITES])
    sources = os.environ.get("FOREIGN_SOURCES", ".build/foreign")
    parser.add_argument("--sources", type=Path, default=Path(sources), help=f"({sources})")
    parser.add_argument("--keep", type=Path, default=Path(".build/foreign-runs"), help="of records")
    parser.add_argument("labels", nargs="*", help="which tests; all, if none is given")
    options = parser.parse_intermixed_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    options.keep.mkdir(parents=True, exist_ok=True)
    sources, kept = options.sources.absolute(), options.keep.absolute()
    document = run_suite(options.program, sources, kept, options.labels)
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 1 if document.get("group", {}).get("rows differ") else 0


if __name__ == "__main__":
    sys.exit(main())
