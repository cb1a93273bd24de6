"""How long clients wait while something breaks, is restarted, or gets another image.

Clients know all members and commit one small row after the other. A stall is the longest time
without an acknowledgement: of the group, to anybody; of the worst client. Bounds: an election among
log servers takes 4 to 9 s; everything else has 1 s.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from groupcert.members.commands.rolling_restart import Commands, restart_group
from groupcert.members.security.credentials import ANONYMOUS
from tests.bench.harness import Document, Load, Run, circumstances, in_turns, scratch, spread
from tests.cluster.docker_cluster import LOG_SERVERS, MEMBERS, DockerCluster
from tests.cluster.faults import Fault, Killed, Paused, Stopped, heal_all, isolated
from tests.cluster.image import ensure_image
from tests.cluster.test_handbook import next_release, operate, replace_all_at_once
from tests.laboratory.watched_clients import WatchedClients, prober
from tests.operated_group import Operated, operated_group

SEED = 1
COMMITS = 20
HOLD_SECONDS = 13.0
"""Longer than the longest election, and than members wait to put a silent one out."""
SETTLE_SECONDS = 3.0
ONE_BY_ONE, AT_ONCE = "one by one", "all at once"
RESTART_BOUND_MS = 1_000
RESTART_SECONDS_MAX = 120
ANSWERS = 50
CALM_SECONDS = 5


class Containers(NamedTuple):
    """A group in containers: three members and three log servers, of an image."""

    cluster: DockerCluster
    image: str
    folder: Path


class Stalls(NamedTuple):
    """The longest time without an acknowledgement: of nobody's commit, and of the worst client."""

    group_ms: int
    worst_ms: int


@contextmanager
def _containers() -> Iterator[Containers]:
    image = ensure_image()
    with scratch() as folder, DockerCluster(folder, image) as cluster:
        yield Containers(cluster, image, folder)


def _leader(cluster: DockerCluster) -> str:
    """Returns the log server that leads."""
    cluster.wait_for("a leader", cluster.stream_leader)
    return cluster.stream_leader() or LOG_SERVERS[0]


def _follower(cluster: DockerCluster, chance: random.Random) -> str:
    """Returns a log server that does not lead."""
    led = _leader(cluster)
    return chance.choice([name for name in LOG_SERVERS if name != led])


FAULTS: dict[str, tuple[int | None, Callable[[DockerCluster, random.Random], Fault]]] = {
    "kill -9 of the log's leader": (10_000, lambda c, _: Killed(c, [_leader(c)])),
    "kill -9 of another log server": (1_000, lambda c, chance: Killed(c, [_follower(c, chance)])),
    "kill -9 of a member": (1_000, lambda c, chance: Killed(c, [chance.choice(MEMBERS)])),
    "SIGTERM of the log's leader": (None, lambda c, _: Stopped(c, [_leader(c)])),
    "SIGTERM of a member": (None, lambda c, chance: Stopped(c, [chance.choice(MEMBERS)])),
    "pause of a member": (None, lambda c, chance: Paused(c, [chance.choice(MEMBERS)])),
    "pause of the log's leader": (None, lambda c, _: Paused(c, [_leader(c)])),
    "partition of a member": (None, lambda c, chance: isolated(c, [chance.choice(MEMBERS)])),
    "partition of the log's leader": (None, lambda c, _: isolated(c, [_leader(c)])),
}
"""What breaks, and in how many ms every client shall commit again."""


def cluster_stalls(run: Run, repeat: int = 5, only: str = "") -> Document:
    """Breaks a part of a group in containers, and heals it; the group is whole before each fault.

    Args:
        repeat: Of each fault.
        only: Faults whose names have this text.
    """
    chance = random.Random(SEED)
    loads = [
        Load(name, partial(_break, draw, chance))
        for name, (_, draw) in FAULTS.items()
        if only in name
    ]
    results = run.measure(in_turns(loads, repeat), _containers())
    rows = {name: _row(stalls, FAULTS[name][0]) for name, stalls in results.items()}
    return {**circumstances(), "seed": SEED, "repeat": repeat, "rows": rows}


def _break(
    draw: Callable[[DockerCluster, random.Random], Fault],
    chance: random.Random,
    containers: Containers,
) -> Stalls:
    cluster = containers.cluster
    fault = draw(cluster, chance)
    with prober(list(cluster.addresses.values())) as clients:
        clients.wait_for_answers(COMMITS)
        began = time.monotonic()
        fault.inject()
        time.sleep(max(0.0, began + HOLD_SECONDS - time.monotonic()))
        held = time.monotonic()
        heal_all(cluster)
        cluster.wait_online()
        clients.wait_for_answers(COMMITS)
        time.sleep(SETTLE_SECONDS)
    return _stalls(clients, began, held)


def _stalls(clients: WatchedClients, began: float, ended: float) -> Stalls:
    stalls_ms = clients.stalls_ms(began, ended)
    return Stalls(clients.stall_of_all_ms(began, ended), max(stalls_ms))


def _row(stalls: Sequence[Stalls], bound_ms: int | None) -> Document:
    group = [each.group_ms for each in stalls]
    worst = [each.worst_ms for each in stalls]
    return {
        "bound_ms": bound_ms,
        "group_ms": spread(group),
        "worst_client_ms": spread(worst),
        "group_ms_all": group,
        "worst_client_ms_all": worst,
    }


def upgrade(run: Run, repeat: int = 3) -> Document:
    """Gives a group in containers another image, in turns by the handbook's command, which replaces
    the containers one by one, and by `docker compose up --detach`, for all of them at once.

    Args:
        repeat: Of both.
    """
    loads = [
        Load(f"{way}, round {number}", partial(_upgrade, way, number))
        for number in range(1, repeat + 1)
        for way in (ONE_BY_ONE, AT_ONCE)
    ]
    results = run.measure(loads, _containers())
    return {**circumstances(), "rounds": [each for (each,) in results.values()]}


def _upgrade(way: str, number: int, containers: Containers) -> Document:
    cluster, image, folder = containers
    name = f"{cluster.project}-{number}-{way.replace(' ', '-')}"
    probing = prober(list(cluster.addresses.values()))
    with next_release(image, folder, name) as release, probing as clients:
        clients.wait_for_answers(COMMITS)
        began = time.monotonic()
        if way == ONE_BY_ONE:
            operate(cluster, "Upgrade", image=release)
        else:
            replace_all_at_once(cluster, release)
        clients.wait_for_answers(COMMITS)
        ended = time.monotonic()
    stalls = _stalls(clients, began, ended)
    return {
        "way": way,
        "seconds": round(ended - began, 1),
        "errors": len(clients.errors),
        "group_ms": stalls.group_ms,
        "worst_client_ms": stalls.worst_ms,
    }


def rolling_restart(run: Run, repeat: int = 3) -> Document:
    """Restarts three log servers and three members on loopback by `groupcert group restart`.

    Six clients, two at each member: `Client.run`, plain transactions and `certify`. A stall is the
    longest time between two verdicts of one client.

    Args:
        repeat: Rolling restarts.
    """
    load = Load("a rolling restart", _restart)
    results = run.measure(in_turns([load], repeat), _operated())
    rounds = results.get(load.name, [])
    return {**circumstances(), "bound_ms": RESTART_BOUND_MS, "rounds": rounds}


@contextmanager
def _operated() -> Iterator[Operated]:
    with scratch() as folder, operated_group(folder) as operated:
        yield operated


def _restart(operated: Operated) -> Document:
    addresses = list(operated.group.addresses.values())
    with WatchedClients(addresses) as clients:
        clients.wait_for_answers(ANSWERS)
        before = time.monotonic()
        time.sleep(CALM_SECONDS)
        began = time.monotonic()
        code = restart_group(
            addresses,
            Commands(operated.command, operated.command),
            ANONYMOUS,
            limit_s=RESTART_SECONDS_MAX,
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
