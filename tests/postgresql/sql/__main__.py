"""`python -m tests.postgresql.sql --seconds N --seed N`: drawn schemas and sessions.

Each seed draws types, tables, functions and what six sessions do, as roles without rights, at the
three servers of a group. Afterwards all servers have the same rows, each acknowledged transaction
and none that failed, nobody has rights that he had not before, and all take commits. Exits with 1
if it is not so: for each kind of problem the first seed is cut down and printed with the command
that replays it. A statement that fails is rolled back, to its savepoint or with its transaction,
and the steps behind it go on.
"""

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.laboratory.mutants import VARIABLE, environment_of
from tests.postgresql.sql.arena import Arena, Outcome
from tests.postgresql.sql.case import Case
from tests.postgresql.sql.mutants import MUTANTS
from tests.postgresql.sql.session_drawing import draw_case
from tests.postgresql.sql.shrinking import shrink

CHARACTERS_MAX = 600
"""Of a problem's text, and of each line of a case."""


@dataclass(slots=True)
class Run:
    """What a run has done and found."""

    cases: int = 0
    told: Counter[str] = field(default_factory=Counter)
    attached: int = 0
    kept_out: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    found: dict[str, list[int]] = field(default_factory=dict)
    """Seeds by the kind of problem."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    wrong = environment_of("tests.postgresql.sql.mutants", options.mutant or "")
    if options.mutant and os.environ.get(VARIABLE) != wrong[VARIABLE]:
        # Its processes are wrong from their start on.
        command = [sys.executable, "-m", "tests.postgresql.sql", *given]
        os.execve(sys.executable, command, {**os.environ, **wrong})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What was started ends with it.
    run = Run()
    began = time.monotonic()
    with Arena() as arena:
        for seed in _seeds(options.seed, options.seeds, options.seconds):
            case = draw_case(seed)
            if options.show:
                sys.stdout.write("".join(f"{line}\n" for line in case.lines()))
            outcome = arena.run(case)
            _count(run, outcome)
            if options.show and arena.last_failures:
                sys.stdout.write("".join(f"left out: {line}\n" for line in arena.last_failures))
            _note(run, arena, case, outcome, options)
        missed = [name for name in options.finds if not _finds(arena, name)]
        started_count = arena.started_count
    seconds = time.monotonic() - began
    sys.stdout.write(_summary(run, seconds, started_count))
    return 1 if run.found or missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.postgresql.sql", description=__doc__)
    parser.add_argument("--seconds", type=float, help="begins no case later; None: no limit")
    parser.add_argument("--seed", type=int, default=1, help="of the first case (1)")
    parser.add_argument("--seeds", type=int, help="how many cases (1, or what --seconds takes)")
    parser.add_argument(
        "--shrink-seconds", type=float, default=300.0, help="to cut down each kind of problem (300)"
    )
    parser.add_argument("--mutant", choices=[*MUTANTS], help="what is wrong on purpose")
    parser.add_argument(
        "--finds",
        nargs="*",
        default=[],
        metavar="MUTANT",
        help="tries mutants of what `attach` makes behind the cases, each in the case of its seed",
    )
    parser.add_argument("--show", action="store_true", help="prints each case before it is run")
    return parser


def _finds(arena: Arena, name: str) -> bool:
    """Returns whether a mutant is found by its seed."""
    mutant = MUTANTS[name]
    with mutant.install():
        if not mutant.is_of_tables:
            arena.stop()
        kinds = [problem.kind for problem in arena.run(draw_case(mutant.seed)).problems]
    if not mutant.is_of_tables:
        arena.stop()
    is_found = any(mutant.kind in kind for kind in kinds)
    word = "found" if is_found else "MISSED"
    sys.stdout.write(f"{word}: {name} by seed {mutant.seed}: {'; '.join(kinds)}\n")
    return is_found


def _seeds(first: int, count: int | None, seconds: float | None) -> Iterator[int]:
    """Yields seeds for as long, or as often, as was asked."""
    if count is None:
        count = 1 if seconds is None else sys.maxsize
    deadline = time.monotonic() + (sys.maxsize if seconds is None else seconds)
    for seed in range(first, first + count):
        if time.monotonic() > deadline:
            return
        yield seed


def _count(run: Run, outcome: Outcome) -> None:
    run.cases += 1
    run.told += outcome.told.answers
    run.attached += len(outcome.attached)
    run.kept_out.update(outcome.kept_out.values())
    run.left_out += outcome.left_out


def _note(
    run: Run, arena: Arena, case: Case, outcome: Outcome, options: argparse.Namespace
) -> None:
    """Writes what a case has found, and cuts it down if a kind is new."""
    is_shrunk = False
    for kind, problem in {problem.kind: problem for problem in outcome.problems}.items():
        is_new = kind not in run.found
        run.found.setdefault(kind, []).append(case.seed)
        sys.stdout.write(f"WRONG: seed {case.seed}: {kind}: {problem.text[:CHARACTERS_MAX]}\n")
        mutant = f" --mutant {options.mutant}" if options.mutant else ""
        sys.stdout.write(f"again: python -m tests.postgresql.sql --seed {case.seed}{mutant}\n")
        sys.stdout.flush()
        if not is_new or is_shrunk or not options.shrink_seconds:
            continue

        def fails(fewer: Case, kind: str = kind) -> bool:
            _progress(run, f"cut down to {len(fewer.definitions)} and {len(fewer.steps)}")
            return any(problem.kind == kind for problem in arena.run(fewer).problems)

        is_shrunk = True
        shrunk = shrink(case, fails, options.shrink_seconds)
        sys.stdout.write("".join(f"  {line[:CHARACTERS_MAX]}\n" for line in shrunk.lines()))
        sys.stdout.flush()
    _progress(run, "")


def _progress(run: Run, text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{run.cases} cases, {len(run.found)} kinds of problems {text}\033[K")


def _summary(run: Run, seconds: float, started_count: int) -> str:
    """Returns what a run did and found, in words."""
    kept_out = sum(run.kept_out.values())
    lines = [
        f"{run.cases} cases in {seconds:.0f} s, {started_count} groups: {run.attached} tables"
        f" attached, {kept_out} kept out, {run.left_out} definitions left out",
        f"  answers: {_counted(run.told)}",
        *(f"  kept out {count}: {why}" for why, count in run.kept_out.most_common()),
        *(f"  {kind}: seeds {', '.join(map(str, seeds))}" for kind, seeds in run.found.items()),
    ]
    return "\n".join(lines) + "\n"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
