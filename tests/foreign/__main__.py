"""`python -m tests.foreign PROGRAM --sources FOLDER`: a program of others at a server of a group.

Prints how many of its tests pass, are refused by the group, fail for a reason that is known
(`known.py`), or fail; tests that fail at a server without a group, in REPEATABLE READ, are counted
apart. Then come the failures, grouped by what was said. Exits with 1 if a test fails for a reason
that is not known, or if rows are not equal at all servers.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests import servers
from tests.foreign.outcomes import Outcomes
from tests.foreign.suites import SUITES, SourcesMissing, run_alembic, run_load_program, run_suite

LOADS = ("pgbench", "pgbouncer")
PROGRAMS = (*SUITES, *LOADS, "alembic")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("program", choices=[*PROGRAMS, "all"])
    sources = os.environ.get("FOREIGN_SOURCES", ".build/foreign")
    parser.add_argument("--sources", type=Path, default=Path(sources), help=f"({sources})")
    kept = Path(".build/foreign-runs")
    parser.add_argument(
        "--keep", type=Path, default=kept, help=f"gets records of all tests ({kept})"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load of pgbench (15)")
    parser.add_argument("labels", nargs="*", help="which tests; all, if none is given")
    options = parser.parse_intermixed_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    options.keep.mkdir(parents=True, exist_ok=True)
    done = []
    for program in PROGRAMS if options.program == "all" else (options.program,):
        try:
            outcomes = _run(program, options)
        except (servers.ServerMissing, SourcesMissing) as error:
            sys.stdout.write(f"{program} is skipped: {error}\n")
            continue
        document = json.dumps(outcomes.document(), indent=2)
        (options.keep / f"{program}.json").write_text(document + "\n")
        done.append(outcomes)
        sys.stdout.write(f"{program}: {outcomes.counts()}\n")
        sys.stdout.flush()
    sys.stdout.write("\n".join(_report(done)) + "\n")
    return 1 if any(outcomes.failed.count for outcomes in done) else 0


def _run(program: str, options: argparse.Namespace) -> Outcomes:
    sources, kept = options.sources.absolute(), options.keep.absolute()
    if program in SUITES:
        return run_suite(program, sources, kept, options.labels)
    if program in LOADS:
        return run_load_program(program, options.seconds)
    return run_alembic(sources)


def _report(done: Iterable[Outcomes]) -> Iterable[str]:
    """Yields a table of counts, and what failed."""
    columns = Outcomes("").counts()
    yield f"\n{'program':12}" + "".join(f"{name:>12}" for name in columns)
    for outcomes in done:
        counts = outcomes.counts().values()
        yield f"{outcomes.program:12}" + "".join(f"{count:12,}" for count in counts)
    for outcomes in done:
        for said, group in outcomes.failed.document().items():
            yield f"\n{outcomes.program}, {group['count']} times: {said}"
            yield from (f"  {test}" for test in group["tests"])


if __name__ == "__main__":
    sys.exit(main())
