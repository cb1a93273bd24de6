"""What `groupcert whatif --like` predicts, beside what replicas were measured to reach.

The stream is that of `python -m tests.bench applier`; so is what was measured, in the result files
of its targets. A prediction is the rate of the whole run: work divided by the virtual time.
"""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from groupcert.applier.whatif.costs import LIKE
from groupcert.applier.whatif.scheme_comparison import Line, run_line
from groupcert.applier.whatif.workload import Work, Workload, load
from groupcert.members.wire.row_changes import decode_changes
from tests.bench.applier import SEED
from tests.bench.harness import Document, Load, Run, circumstances
from tests.bench.source_stream import SourceOptions, source_stream

RESULTS = Path(__file__).parent / "results"
MEASURED = {
    "mariadb": ("schemes-mariadb.json", "mariadb"),
    "mariadb-replica": ("schemes-mariadb.json", "mariadb replica"),
    "postgresql": ("schemes-postgresql.json", "postgresql"),
    "wait": ("schemes-slow.json", "slow"),
}
"""The file and the target that each was measured in."""
LINES = {
    "logical-clock at-most-one": Line("logical-clock"),
    **{name: Line(name) for name in ("commit-parent", "group-commit", "database", "table")},
    **{
        f"jobs {conflicts}": Line("jobs", conflicts=conflicts)
        for conflicts in ("ignore", "ordered", "barrier", "graph", "merge")
    },
    "rows": Line("rows"),
}
"""The lines of what-if, by the names that the applier's benchmark has for them."""
OWN_LINES = {
    "conservative": Line("group-commit"),
    "optimistic": Line("jobs", conflicts="ordered"),
}
"""Those of MariaDB's own replica, by its modes."""
NEAR = 0.3
"""Part of what was measured by which a good prediction is off, at most."""


def whatif_targets(
    run: Run, transactions: int = 4_000, workers: tuple[int, ...] = (1, 4, 8, 16)
) -> Document:
    """Predicts the rate of each scheme on each target.

    Args:
        transactions: Of the stream, from its begin on.
        workers: Numbers of them.
    """
    works = list(stream(transactions))
    loads = [Load(name, partial(predicted, name, works, workers)) for name in LIKE]
    results = run.measure(loads, nullcontext(None))
    rows = [row for name in LIKE for found in results.get(name, ()) for row in found]
    return {
        "benchmark": "whatif-targets",
        **circumstances(),
        "options": {"transactions": transactions, "workers": workers},
        "near": sum(abs(row["off"]) <= NEAR for row in rows),
        "of": len(rows),
        "results": rows,
    }


def stream(transactions: int) -> Iterator[Work]:
    """Yields the benchmark's stream as work."""
    for entry in source_stream(SourceOptions(transactions=transactions), SEED):
        keys = [key.decode() for key in decode_changes(entry.payload)[0]]
        last_committed, sequence_number = entry.last_committed, entry.sequence_number
        interval = sequence_number - last_committed
        yield Work(
            entry.gtid, last_committed, sequence_number, interval, entry.header, keys, len(keys)
        )


def predicted(name: str, works: list[Work], workers: tuple[int, ...], _: None) -> list[Document]:
    """Returns the rate of each line on a target, and how far it is off, in parts."""
    measured = measured_rates(name)
    workload = load(works, LIKE[name])
    rows = []
    for label, line in lines_of(name).items():
        for number in workers:
            rate = rate_of(workload, line, number)
            was = measured[label, number]
            rows.append(
                {
                    "target": name,
                    "scheme": label,
                    "workers": number,
                    "predicted": round(rate),
                    "measured": round(was),
                    "off": round(rate / was - 1, 2),
                }
            )
    return rows


def lines_of(name: str) -> dict[str, Line]:
    """Returns the lines that were measured at a target."""
    return OWN_LINES if name == "mariadb-replica" else LINES


def rate_of(workload: Workload, line: Line, workers: int) -> float:
    """Returns transactions a second of a line."""
    return workload.transactions / run_line([workload], line, workers).makespan_us * 1e6


def measured_rates(name: str) -> dict[tuple[str, int], float]:
    """Returns transactions a second of the applier on a target, by scheme and workers."""
    file, target = MEASURED[name]
    found = json.loads((RESULTS / file).read_text())["results"]
    return {
        (row["scheme"], row["workers"]): row["rate_median"]
        for row in found
        if row["target"] == target
    }


def table(workers: int = 8) -> str:
    """Returns the predictions of the result file beside what was measured, for a README."""
    results = json.loads((RESULTS / "whatif-targets.json").read_text())["results"]
    told: dict[tuple[str, str], str] = {}
    for row in results:
        name, scheme = row["target"], row["scheme"]
        if row["workers"] == 1 and scheme == next(iter(lines_of(name))):
            one = row
        if row["workers"] == workers:
            ratios = (row[kind] / one[kind] for kind in ("predicted", "measured"))
            texts = [*(f"{ratio:.2f}" for ratio in ratios), f"{row['off']:+.0%}"]
            told[scheme, name] = " | ".join(texts)
    names = [name for name in LIKE if lines_of(name) is LINES]
    lines = [
        "| scheme | " + " | ".join(f"{name}: predicted | measured | off" for name in names) + " |",
        "| --- " + "| --- " * 3 * len(names) + "|",
        *(f"| {each} | {' | '.join(told[each, name] for name in names)} |" for each in LINES),
        "",
        "| mariadb-replica | predicted | measured | off |",
        "| --- | --- | --- | --- |",
        *(f"| {each} | {told[each, 'mariadb-replica']} |" for each in OWN_LINES),
    ]
    misses = [
        f"`{row['scheme']}`, {row['workers']} workers, {row['target']}: {row['off']:+.0%}"
        for row in results
        if abs(row["off"]) > NEAR
    ]
    near = f"Within {NEAR:.0%} are {len(results) - len(misses)} of {len(results)}"
    return "\n".join([*lines, "", f"{near}; misses: {'; '.join(misses) or 'none'}."])
