"""`python -m tests.sim --seed N --steps M`: one run of the simulated group, or many in a row.

What a run says depends on its arguments alone, so many may run at once, and one that failed is
replayed by the command that is printed.
"""

import argparse
import os
import sys

from tests.sim.mutants import MUTANTS
from tests.sim.runs import STEPS, Run, run_seeds
from tests.sim.scenarios import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """Runs the seeds; 1 if one of them failed, after saying how to replay it."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run (1)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"events of a run ({STEPS})")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="in place of the seed's own")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break this on purpose")
    parser.add_argument(
        "--clients-alone",
        action="store_true",
        help="look into no member: the workloads' checkers have to find what is wrong",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that share the seeds (1); 0: all cores"
    )
    parser.add_argument(
        "--without-rows", action="append", default=[], metavar="NAME", help="keeps none; repeatable"
    )
    options = parser.parse_args(arguments)
    run = Run(
        steps=options.steps,
        scenario=options.scenario,
        mutant=options.mutant,
        clients_alone=options.clients_alone,
        without_rows=tuple(options.without_rows),
    )
    seeds = range(options.seed, options.seed + options.seeds)
    results = []
    for result in run_seeds(run, seeds, options.jobs or os.cpu_count() or 1):
        if result.failure:
            sys.stdout.write(result.failure)
            return 1
        sys.stdout.write(f"{result.text}\n")
        results.append(result)
    sys.stdout.write(
        f"seeds {options.seeds}, steps {options.steps} each, "
        f"faults {sum(each.faults for each in results)}, "
        f"operations {sum(each.operations for each in results)}, "
        f"acknowledged {sum(each.acknowledged for each in results)}, "
        f"unknown {sum(each.unknown for each in results)}, "
        f"lost {sum(each.lost for each in results)}, "
        f"longest stall {max((each.stall_ms for each in results), default=0)} ms\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
