"""How long nobody, and the worst client, waits while a group in containers gets another image.

Three members and three log servers in containers; a client for each member, which knows all,
commits one small row after the other. In turns: the handbook's command, which replaces the
containers one by one, and `docker compose up --detach` for all of them at once. Bounds: 1 s, and an
election among log servers, 4 to 9 s. `--results` writes `results/upgrade.json`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from groupcert.members.benchmarks.machine import answer, circumstances
from tests.cluster.docker_cluster import DockerCluster
from tests.cluster.image import ensure_image
from tests.cluster.prober import Prober
from tests.cluster.test_handbook import next_release, operate, replace_all_at_once

RESULTS = Path(__file__).parent / "results" / "upgrade.json"
COMMITS = 20
ONE_BY_ONE, AT_ONCE = "one by one", "all at once"


def measure(cluster: DockerCluster, way: str, release: str) -> dict[str, object]:
    """One upgrade under load."""
    with Prober(cluster) as prober:
        prober.wait_for_commits(COMMITS)
        began = time.monotonic()
        if way == ONE_BY_ONE:
            operate(cluster, "Upgrade", image=release)
        else:
            replace_all_at_once(cluster, release)
        prober.wait_for_commits(COMMITS)
        ended = time.monotonic()
    stalls = prober.stalls(began, ended)
    return {
        "way": way,
        "seconds": round(ended - began, 1),
        "errors": len(prober.failures),
        "group_ms": stalls.group_ms,
        "worst_client_ms": stalls.worst_ms,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="of both")
    parser.add_argument("--results", action="store_true", help=f"also write {RESULTS.name}")
    options = parser.parse_args(arguments)
    rounds = []
    image = ensure_image()
    with (
        tempfile.TemporaryDirectory(prefix="groupcert-") as folder,
        DockerCluster(Path(folder), image) as cluster,
    ):
        for number in range(options.repeat):
            for way in (ONE_BY_ONE, AT_ONCE):
                name = f"{cluster.project}-{number}-{way.replace(' ', '-')}"
                with next_release(image, Path(folder), name) as release:
                    rounds.append(measure(cluster, way, release))
                sys.stdout.write(f"{json.dumps(rounds[-1])}\n")
                sys.stdout.flush()
    document = {
        **circumstances(),
        "rounds": rounds,
    }
    answer(document, as_json=False, output=RESULTS if options.results else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
