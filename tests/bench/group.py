"""A group of three members, its log server and clients on this machine, beside a Galera Cluster.

A rate counts what every member has certified and applied; the clock stops when the slowest member
has committed the last transaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.servers import Server
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from tests.bench.clients import Answers, Work, commit, for_seconds, random_row, run_beside, stream
from tests.bench.galera import galera_cluster, run_clients
from tests.bench.harness import (
    Clock,
    Document,
    Load,
    Run,
    in_turns,
    machine,
    medians,
    scratch,
)
from tests.certificates import Authority, tls_settings
from tests.integration.waiting import wait_for
from tests.log_servers import NatsServers
from tests.servers import MariaDbServer

CLIENTS = (8, 32)
STREAMS = 3
GROUPCERT, THREE_LOGS, GALERA = "groupcert", "groupcert_three_log_servers", "galera"
RATE = "commits_per_second"
COMPARED = (RATE, "p50_ms", "p99_ms", "cpu_us")
SETTLE_SECONDS = 60.0
Stages = Mapping[str, tuple[float, int]]


class Logged(NamedTuple):
    """A group, and the servers of its log."""

    group: LocalGroup
    log: Sequence[Server]


class Systems(NamedTuple):
    """What is compared: groups by the number of their log's servers, and a Galera Cluster's nodes.
    Without Galera there is one group, on one server.
    """

    groups: Mapping[int, Logged]
    nodes: Sequence[MariaDbServer]


def group(
    run: Run,
    seconds: float = 10.0,
    rounds: int = 1,
    galera: bool = False,
    certification_log: bool = False,
    tls: bool = False,
) -> Document:
    """Streams batches of 64 to three members, then has 8 and 32 clients commit one row each.

    Args:
        seconds: How long each load lasts.
        rounds: Turns, of which the median counts.
        galera: As many clients in turns at a Galera Cluster of three nodes, as durable: each commit
            is synced at one of them. It has each write set at all three, which is what a log of
            three servers does, so that a group on such a one takes its turns, too.
        certification_log: Members write what an audit reads.
        tls: Members and clients speak TLS.
    """
    loads = {
        GROUPCERT: [
            Load(f"commits of {n} clients", partial(_commits, seconds, 1, n)) for n in CLIENTS
        ]
    }
    if galera:
        loads |= {
            THREE_LOGS: [
                Load(f"{n} clients, three log servers", partial(_commits, seconds, 3, n))
                for n in CLIENTS
            ],
            GALERA: [Load(f"Galera, {n} clients", partial(_galera, seconds, n)) for n in CLIENTS],
        }
    compared = [load for same in zip(*loads.values(), strict=True) for load in same]
    results = run.measure(
        [Load("stream", partial(_streams, seconds)), *in_turns(compared, rounds)],
        _systems(galera, certification_log, tls),
    )
    document: Document = {"machine": machine()}
    complete = min(len(results.get(load.name, [])) for load in compared)
    if galera and complete:
        found = {
            system: {
                str(clients): _compared(results[load.name][:complete])
                for clients, load in zip(CLIENTS, each, strict=True)
            }
            for system, each in loads.items()
        }
        ratios = {
            system: {
                clients: {
                    name: round(mine[name] / found[GALERA][clients][name], 3) for name in COMPARED
                }
                for clients, mine in found[system].items()
            }
            for system in (GROUPCERT, THREE_LOGS)
        }
        document |= {**found, "ratios": ratios, "rounds": complete}
    turns = [results.get(load.name, []) for load in compared if load not in loads.get(GALERA, ())]
    by_turn = [each for turn in zip_longest(*turns) for each in turn if each]
    return {**document, "results": [*results.get("stream", []), *by_turn]}


@contextmanager
def _systems(galera: bool, certification_log: bool, tls: bool) -> Iterator[Systems]:
    with scratch() as folder, ExitStack() as stack:
        files = Authority(folder / "tls").issue("bench") if tls else None
        # With the store that is embedded, threads of the applier only cost.
        settings = {"workers": 0, **(tls_settings(files) if files else {})}
        credentials = Credentials(tls=files) if files else ANONYMOUS
        logs = folder / "certification-logs" if certification_log else None

        def started(name: str, more: Mapping[str, object]) -> LocalGroup:
            members = LocalGroup(
                folder / name,
                certification_logs=logs,
                settings={**settings, **more},
                credentials=credentials,
            )
            return stack.enter_context(members)

        nodes = stack.enter_context(galera_cluster(folder / "galera")) if galera else ()
        one = started("group", {})
        groups = {1: Logged(one, [one.log_server])}
        if galera:
            servers = stack.enter_context(NatsServers(folder / "logs"))
            three = started("three", servers.settings)
            groups[3] = Logged(three, list(servers.processes.values()))
        yield Systems(groups, nodes)


def _streams(seconds: float, systems: Systems) -> Document:
    return _measured("stream", STREAMS, systems.groups[1], stream, seconds)


def _commits(seconds: float, log_servers: int, clients: int, systems: Systems) -> Document:
    return _measured("commits", clients, systems.groups[log_servers], commit, seconds)


def _measured(
    kind: str,
    clients: int,
    logged: Logged,
    work: Work,
    seconds: float,
) -> Document:
    group = logged.group
    settle(group)
    answers, stages, version = Answers(), _stages(group), min(_versions(group))
    clock = Clock(
        members=[process.pid for process in group.processes.values()],
        log_server=[server.pid for server in logged.log],
    )
    addresses, row = list(group.addresses.values()), random_row()
    run_beside(
        lambda goes_on: work(addresses, clients, row, goes_on, answers, group.credentials),
        for_seconds(seconds),
    )
    settle(group)
    result = _result(kind, clients, clock, answers, min(_versions(group)) - version)
    spent = _stage_means(stages, _stages(group))
    return result | {"log_servers": len(logged.log), "microseconds_per_stage": spent}


def _galera(seconds: float, clients: int, systems: Systems) -> Document:
    clock = Clock(nodes=[node.pid for node in systems.nodes])
    answers = run_clients(systems.nodes, clients, seconds)
    return _result("galera", clients, clock, answers, answers.certified)


def _result(kind: str, clients: int, clock: Clock, answers: Answers, commits: int) -> Document:
    """Returns the numbers of a load that ends now.

    `cpu_cores`: processor time by part of the system, per second of load; `cpu_us`: of all of them,
    for each commit.
    """
    elapsed, took = clock.spent()
    latencies = answers.latencies()
    return {
        "load": kind,
        "clients": clients,
        "seconds": round(elapsed, 2),
        RATE: round(commits / elapsed, 1),
        "rejected": answers.rejected,
        "p50_ms": latencies["p50"],
        "p99_ms": latencies["p99"],
        "cpu_cores": {part: round(seconds / elapsed, 3) for part, seconds in took.items()},
        "cpu_us": round(sum(took.values()) / commits * 1e6, 1),
    }


def _compared(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return medians([{name: each[name] for name in COMPARED} for each in results])


def settle(group: LocalGroup) -> None:
    """Returns when every member has committed all that any of them has certified."""

    def is_settled() -> bool:
        observed = [group.status(name).observer for name in group.names]
        newest = max(status.certified_version for status in observed)
        return all(status.committed_version == newest for status in observed)

    wait_for("every member has everything", is_settled, SETTLE_SECONDS)


def _versions(group: LocalGroup) -> list[int]:
    return [group.status(name).observer.committed_version for name in group.names]


def _stages(group: LocalGroup) -> Stages:
    """Returns for each stage of own commits the microseconds spent, and how many passed it."""
    totals: dict[str, tuple[float, int]] = {}
    for name in group.names:
        for stage in group.status(name).observer.stages:
            spent, count = totals.get(stage.name, (0.0, 0))
            totals[stage.name] = (spent + stage.total_us, count + stage.count)
    return totals


def _stage_means(before: Stages, after: Stages) -> dict[str, float]:
    means = {}
    for stage, (spent, count) in after.items():
        spent_before, count_before = before.get(stage, (0.0, 0))
        if count > count_before:
            means[stage] = round((spent - spent_before) / (count - count_before), 1)
    return means
