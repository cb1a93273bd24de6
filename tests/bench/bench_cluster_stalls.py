"""How long nobody is acknowledged when something breaks.

A group in containers; a client for each member, which knows all, commits one small row after the
other. Each fault is repeated; the group is whole before each. Bounds: an election among log servers
takes 4 to 9 s; everything else has 1 s.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from groupcert.members.benchmarks.machine import answer, circumstances
from tests.cluster.docker_cluster import LOG_SERVERS, MEMBERS, DockerCluster
from tests.cluster.faults import Fault, Killed, Paused, Stopped, heal_all, isolated
from tests.cluster.image import ensure_image
from tests.cluster.prober import Prober, Stalls

RESULT = Path(__file__).parent / "results" / "cluster-stalls.json"
SEED = 1
COMMITS = 20
HOLD_SECONDS = 13.0
"""Longer than the longest election, and than members wait to put a silent one out."""
SETTLE_SECONDS = 3.0


def leader(cluster: DockerCluster) -> str:
    """The log server that leads."""
    cluster.wait_for("a leader", cluster.stream_leader)
    return cluster.stream_leader() or LOG_SERVERS[0]


def follower(cluster: DockerCluster, dice: random.Random) -> str:
    """A log server that does not lead."""
    led = leader(cluster)
    return dice.choice([name for name in LOG_SERVERS if name != led])


FAULTS: dict[str, tuple[int | None, Callable[[DockerCluster, random.Random], Fault]]] = {
    "kill -9 of the log's leader": (10_000, lambda c, _: Killed(c, [leader(c)])),
    "kill -9 of another log server": (1_000, lambda c, dice: Killed(c, [follower(c, dice)])),
    "kill -9 of a member": (1_000, lambda c, dice: Killed(c, [dice.choice(MEMBERS)])),
    "SIGTERM of the log's leader": (None, lambda c, _: Stopped(c, [leader(c)])),
    "SIGTERM of a member": (None, lambda c, dice: Stopped(c, [dice.choice(MEMBERS)])),
    "pause of a member": (None, lambda c, dice: Paused(c, [dice.choice(MEMBERS)])),
    "pause of the log's leader": (None, lambda c, _: Paused(c, [leader(c)])),
    "partition of a member": (None, lambda c, dice: isolated(c, [dice.choice(MEMBERS)])),
    "partition of the log's leader": (None, lambda c, _: isolated(c, [leader(c)])),
}
"""What breaks, and in how many ms every client shall commit again."""


def measure(cluster: DockerCluster, prober: Prober, fault: Fault) -> tuple[float, float]:
    """Injects a fault, holds it and heals it; returns when it began, and when it was held."""
    prober.wait_for_commits(COMMITS)
    began = time.monotonic()
    fault.inject()
    time.sleep(max(0.0, began + HOLD_SECONDS - time.monotonic()))
    held = time.monotonic()
    heal_all(cluster)
    cluster.wait_online()
    prober.wait_for_commits(COMMITS)
    time.sleep(SETTLE_SECONDS)
    return began, held


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="of each fault")
    parser.add_argument("--only", default="", help="faults whose names have this text")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULT.name}")
    options = parser.parse_args(arguments)
    dice = random.Random(SEED)
    rows: dict[str, dict[str, object]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-") as folder,
        DockerCluster(Path(folder), ensure_image()) as cluster,
    ):
        for name, (bound_ms, draw) in FAULTS.items():
            if options.only not in name:
                continue
            stalls = []
            for _ in range(options.repeat):
                fault = draw(cluster, dice)
                with Prober(cluster) as prober:
                    began, held = measure(cluster, prober, fault)
                stalls.append(prober.stalls(began, held))
                sys.stderr.write(f"{fault}: {stalls[-1]} {prober.failures[-1:]}\n")
            rows[name] = _row(stalls, bound_ms)
            sys.stdout.write(f"{name}: {rows[name]}\n")
            sys.stdout.flush()
            if options.results:
                _write(rows, options.repeat)
    return 0


def _write(rows: dict[str, dict[str, object]], repeat: int) -> None:
    document = {**circumstances(), "seed": SEED, "repeat": repeat, "rows": rows}
    answer(document, as_json=False, output=RESULT)


def _row(stalls: Sequence[Stalls], bound_ms: int | None) -> dict[str, object]:
    group = [each.group_ms for each in stalls]
    worst = [each.worst_ms for each in stalls]
    return {
        "bound_ms": bound_ms,
        "group_ms": {"median": statistics.median(group), "min": min(group), "max": max(group)},
        "worst_client_ms": {
            "median": statistics.median(worst),
            "min": min(worst),
            "max": max(worst),
        },
        "group_ms_all": group,
        "worst_client_ms_all": worst,
    }


if __name__ == "__main__":
    sys.exit(main())
