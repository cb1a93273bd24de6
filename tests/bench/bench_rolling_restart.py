"""How long a client waits at most while every process of a group is restarted, one by one.

Three log servers that sync every write and three members on loopback, restarted by
`groupcert group restart`; six clients, two at each member, which know all members: `Client.run`,
plain transactions and `certify`. A stall is the longest time between two verdicts of one client.
Bound: 1 s. With `--results` the numbers also go to `results/rolling-restart.json`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from groupcert.members.benchmarks.machine import answer, circumstances
from groupcert.members.commands.rolling_restart import Commands, restart_group
from groupcert.members.security.credentials import ANONYMOUS
from tests.integration.watched_clients import WatchedClients
from tests.operated_group import Operated, operated_group

RESULTS = Path(__file__).parent / "results" / "rolling-restart.json"
BOUND_MS = 1_000
ANSWERS = 50


def measure(operated: Operated) -> dict[str, object]:
    """One rolling restart under load."""
    addresses = list(operated.group.addresses.values())
    with WatchedClients(addresses) as clients:
        clients.wait_for_answers(ANSWERS)
        before = time.monotonic()
        time.sleep(5)
        began = time.monotonic()
        code = restart_group(
            addresses,
            Commands(operated.command, operated.command),
            ANONYMOUS,
            limit_s=120,
            log_servers=True,
            members=True,
            dry_run=False,
        )
        ended = time.monotonic()
        clients.wait_for_answers(ANSWERS)
    return {
        "exit_code": code,
        "restarted": operated.restarted[-6:],
        "seconds": round(ended - began, 1),
        "errors": clients.errors,
        "verdicts": sum(map(len, clients.times)),
        "stall_ms_before": clients.stalls_ms(before, began),
        "stall_ms": clients.stalls_ms(began, ended),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="rolling restarts")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULTS.name}")
    options = parser.parse_args(arguments)
    rounds = []
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-") as folder,
        operated_group(Path(folder)) as operated,
    ):
        for _ in range(options.repeat):
            rounds.append(measure(operated))
            sys.stdout.write(f"{json.dumps(rounds[-1])}\n")
            sys.stdout.flush()
    document = {
        **circumstances(),
        "bound_ms": BOUND_MS,
        "rounds": rounds,
    }
    answer(document, as_json=False, output=RESULTS if options.results else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
