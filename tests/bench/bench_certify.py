"""The certifier's benchmark as a command; `members/bench_certify.py` says what is measured.

With `--results` the numbers also go to `results/certify.json`, where claims about them point to.
"""

import argparse
from pathlib import Path

from members.bench_certify import main

RESULTS = Path(__file__).parent / "results" / "certify.json"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    raise SystemExit(main(json=arguments.json, output=RESULTS if arguments.results else None))
