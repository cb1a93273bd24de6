"""`python -m tests.checker --kills N --seed N --order etcd`: kills, and checks what clients got.

Four members, three log servers and a replica run on this machine; members (but one, whose stamps
are compared), the replica and the log's servers, its leader too, are killed one after the other
while clients transact. Then the log is read by a model that shares no code with the group. Exits
with 1 if a client was told something else, or something else is there.
"""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence

from tests.checker.orders import ORDERS
from tests.checker.run import Run, check


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="processes to kill (20)")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn (1)")
    parser.add_argument("--order", choices=ORDERS, default="nats", help="the total order (nats)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    run = check(options.seed, options.kills, options.order, _progress)
    killed = ", ".join(f"{name} {count}" for name, count in sorted(run.killed.items()))
    told = ", ".join(f"{name} {count:,}" for name, count in sorted(run.told.items()))
    sys.stdout.write(
        f"seed {run.seed}, {run.order}, {run.seconds:.0f} s: {run.processes_killed} processes "
        f"killed ({killed}); clients were told: {told}; in the log {run.in_log:,} decisions, "
        f"{run.certified:,} certified; violations {len(run.problems)}\n"
    )
    for problem in run.problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    if run.problems:
        sys.stdout.write(f"the history and all logs: {run.folder}\nagain: {run.replay}\n")
    elif run.folder:
        shutil.rmtree(run.folder)
    return 1 if run.problems else 0


def _progress(run: Run) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(
            f"\r{run.processes_killed} of {run.kills} killed, {run.told['committed']:,} "
            "committed \033[K"
        )


if __name__ == "__main__":
    sys.exit(main())
