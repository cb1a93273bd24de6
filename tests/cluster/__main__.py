"""`python -m tests.cluster --seed N --scenario X --seconds S`: breaks a cluster, and checks it.

Several scenarios, separated by commas, are taken in turn on one cluster's life; `each` runs every
one by itself, `list` names them. Prints a summary of each run, and with `--table` a line of JSON.
Exits with 0 if nothing is wrong, with 1 if something is.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.cluster.image import ensure_image
from tests.cluster.log_kinds import LogKind
from tests.cluster.nemesis import Run, new_cluster, run_nemesis
from tests.cluster.scenarios import SCENARIOS, scenarios_of


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--scenario", default="mixed", help="of `list`; several with commas; each")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a run breaks things")
    parser.add_argument("--table", type=Path, help="add a line of JSON for each run to this file")
    kinds = [each.value for each in LogKind]
    parser.add_argument("--log", choices=kinds, default="nats", help="what the log servers are")
    options = parser.parse_args(arguments)
    log = LogKind(options.log)
    if options.scenario == "list":
        sys.stdout.write("\n".join([*SCENARIOS, ""]))
        return 0
    names = scenarios_of(log) if options.scenario == "each" else options.scenario.split(",")
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"no scenario is called {', '.join(unknown)}: see --scenario list")
    turns = [[name] for name in names] if options.scenario == "each" else [names]
    seeds = range(options.seed, options.seed + options.seeds)
    image = ensure_image()
    wrong = 0
    for scenarios in turns:
        for run in _runs(image, scenarios, seeds, options.seconds, log):
            sys.stdout.write(f"{run}\n")
            sys.stdout.flush()
            wrong += run.is_wrong
            if options.table:
                _add_line(options.table, run)
    return 1 if wrong else 0


def _runs(
    image: str, scenarios: Sequence[str], seeds: Iterable[int], seconds: float, log: LogKind
) -> Iterator[Run]:
    """One run after the other on one cluster; after one that failed there is a new cluster."""
    clock_steps = any(SCENARIOS[name].clock_steps for name in scenarios)
    left = deque(seeds)
    while left:
        with (
            tempfile.TemporaryDirectory(prefix="groupcert-") as folder,
            new_cluster(Path(folder), image, clock_steps=clock_steps, log=log) as cluster,
        ):
            while left:
                seed = left.popleft()
                run = run_nemesis(cluster, scenarios, seed=seed, seconds=seconds, say=_say)
                yield run
                if run.is_wrong:
                    break


def _add_line(path: Path, run: Run) -> None:
    summary = run.summary
    line = {
        "scenario": "+".join(run.scenarios),
        "log": run.log.value,
        "seed": run.seed,
        "seconds": run.seconds,
        "faults": sum(what.startswith("begin") for _, what in summary.faults),
        "operations": summary.operations,
        "acknowledged": summary.acknowledged,
        "unknown": summary.unknown,
        "unknown_committed": summary.unknown_committed,
        "lost": summary.lost,
        "stall_ms": summary.stall_ms,
        "whole_again_s": round(run.heal_seconds, 1),
        "findings": dict(summary.findings),
        "failure": run.failure,
        "noted": [what for _, what in summary.faults if not what.startswith(("begin", "end K"))],
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
