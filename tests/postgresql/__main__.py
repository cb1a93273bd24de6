"""`python -m tests.postgresql --seconds N --seed N`: three PostgreSQL servers under load and kills.

`pgbench` runs a load like TPC-B at all three at once, clients beside it write ids, and others run
the laboratory's workloads, while sessions, backends, servers and members are killed and started
again. At the end sums and rows are equal everywhere, each acknowledged commit is there
once, and the checkers find nothing in the workloads' history. Exits with 1 if it is not so.
"""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence

from tests.postgresql.run import check

PROBLEMS_MAX = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.postgresql", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (60)")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn (1)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    run = check(options.seed, options.seconds, _progress)
    killed = ", ".join(
        f"{kind} {count} (back in {run.longest[kind]:.1f} s)"
        for kind, count in sorted(run.killed.items())
    )
    sys.stdout.write(
        f"seed {run.seed}, {run.seconds:.0f} s: {run.committed:,} transactions certified, "
        f"{run.pgbench:,} acknowledged to pgbench; killed: {killed}\n"
    )
    for name, counts in run.told.items():
        told = ", ".join(f"{answer} {count:,}" for answer, count in sorted(counts.items()))
        sys.stdout.write(f"{name}: {told}\n")
    skew = "seen" if run.has_write_skew else "not seen"
    sys.stdout.write(f"write skew {skew}; violations {len(run.problems)}\n")
    for problem in run.problems[:PROBLEMS_MAX]:
        sys.stdout.write(f"WRONG: {problem}\n")
    if run.problems:
        sys.stdout.write(
            f"the history and all logs: {run.folder}\nagain: python -m tests.postgresql "
            f"--seconds {options.seconds:g} --seed {run.seed}\n"
        )
    elif run.folder:
        shutil.rmtree(run.folder)
    return 1 if run.problems else 0


def _progress(killed: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{killed} killed \033[K")


if __name__ == "__main__":
    sys.exit(main())
