"""`python -m tests.fuzz --seconds N --seed N --order etcd`: fuzzes a live group under load.

It has three members. Half of the time goes over plain connections, half over TLS. Exits with 0 if
no member ended, left ONLINE, differed from the others, held its event loop or grew; else with 1,
after saying what happened, where the last calls are, and the command that makes them again. The
seed draws the same calls; what a member answers to them, and so the ids in later ones, it does not
draw.
"""

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.orders import ORDERS
from tests.fuzz.run import TRANSPORTS, Run, fuzz
from tests.fuzz.watcher import HELD_MS_MAX


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn (1)")
    parser.add_argument("--order", choices=ORDERS, default="nats", help="of the log (nats)")
    parser.add_argument(
        "--transport", choices=TRANSPORTS, help="in place of both, one after the other"
    )
    parser.add_argument(
        "--held-ms",
        type=int,
        default=HELD_MS_MAX,
        help=f"how long an event loop may be held ({HELD_MS_MAX}): more where others have the "
        "processors, too",
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    transports = [options.transport] if options.transport else TRANSPORTS
    wrong = 0
    for transport in transports:
        seconds = options.seconds / len(transports)
        run = Run(options.seed, options.order, transport, seconds, options.held_ms)
        fuzz(run, _progress)
        sys.stdout.write(_summary(run))
        sys.stdout.flush()
        wrong += bool(run.problems)
    return 1 if wrong else 0


def _progress(run: Run, elapsed: float) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(
            f"\r{run.order}, {run.transport}: {elapsed:.0f} of {run.seconds:.0f} s, "
            f"{run.statuses.total():,} calls, {run.log_messages.total():,} log messages, "
            f"{run.commits:,} commits \033[K"
        )


def _summary(run: Run) -> str:
    """Returns what a run did and found, in words."""
    codes: Counter[str] = Counter()
    by_method: dict[str, Counter[str]] = {}
    for (method, status), count in run.statuses.items():
        codes[status] += count
        by_method.setdefault(method, Counter())[status] += count
    grown = ", ".join(f"{name} {a} to {b} MiB" for name, (a, b) in run.resident_mib.items())
    lines = [
        f"seed {run.seed}, {run.order}, {run.transport}, {run.seconds:.0f} s: "
        f"{run.statuses.total():,} calls, "
        f"{run.connections.total():,} raw connections, {run.log_messages.total():,} log messages, "
        f"{run.skipped_messages:,} of them skipped, {run.came_back} members back as another run, "
        f"{run.commits:,} commits of honest clients",
        f"  longest hold of an event loop {run.worst_held_ms} ms, {run.worst_late_ms} ms late with "
        f"what other processes took; memory: {grown}",
        f"  statuses: {_counted(codes)}",
        *(f"  {method}: {_counted(counts)}" for method, counts in sorted(by_method.items())),
        f"  cases: {_counted(run.cases)}",
        f"  connections: {_counted(run.connections)}",
        f"  without a reader: {_counted(run.unread)}",
        f"  log messages: {_counted(run.log_messages)}",
        *(f"  left out {count:,}: {why}" for why, count in run.left_out.most_common()),
    ]
    if run.problems:
        lines += [f"WRONG: {problem}" for problem in run.problems]
        lines += [f"the last calls and the members' logs: {run.folder}", f"again: {run.replay}"]
    return "\n".join(lines) + "\n"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
