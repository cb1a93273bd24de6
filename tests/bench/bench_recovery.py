"""The benchmark of recovery as a command; `members/bench_recovery.py` says what is measured.

With `--results` the numbers also go to `results/recovery.json`, where claims about them point to.
"""

import argparse
from pathlib import Path

from members.bench_recovery import main

RESULTS = Path(__file__).parent / "results" / "recovery.json"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--size", type=int, default=550_000_000, help="bytes of rows")
    parser.add_argument("--transactions", type=int, default=400_000, help="read from the log")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    raise SystemExit(
        main(
            as_json=arguments.json,
            size=arguments.size,
            transactions=arguments.transactions,
            output=RESULTS if arguments.results else None,
        )
    )
