"""`python -m tests.sim --seed N --steps M`: one run of the simulated group, or many in a row."""

import argparse
import sys
import traceback

from tests.sim.cluster import Cluster
from tests.sim.mutants import MUTANTS, installed

STEPS = 1_000


def main(arguments: list[str] | None = None) -> int:
    """Runs the seeds; 1 if one of them failed, after saying how to replay it."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run (1)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"events of a run ({STEPS})")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break this on purpose")
    options = parser.parse_args(arguments)
    certified = acknowledged = messages = 0
    for seed in range(options.seed, options.seed + options.seeds):
        with installed(options.mutant):
            cluster = Cluster(seed)
            try:
                cluster.run(options.steps)
            except Exception as error:
                _report(cluster, error)
                replay = f"python -m tests.sim --seed={seed} --steps={options.steps}"
                mutant = f" --mutant={options.mutant}" if options.mutant else ""
                sys.stdout.write(f"FAILED; replay with: {replay}{mutant}\n")
                return 1
        certified += len(cluster.checks.history)
        acknowledged += len(cluster.checks.acknowledged)
        messages += cluster.log.state().last_sequence
    sys.stdout.write(
        f"seeds {options.seeds}, steps {options.steps} each, messages {messages}, "
        f"certified {certified}, acknowledged {acknowledged}, lost 0\n"
    )
    return 0


def _report(cluster: Cluster, error: Exception) -> None:
    """What happened last, and what was found."""
    sys.stdout.write("\n".join(["The last events:", *cluster.trace, ""]))
    sys.stdout.write("".join(traceback.format_exception(error)))


if __name__ == "__main__":
    sys.exit(main())
