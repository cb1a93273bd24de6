"""A replica onto the embedded store, as real processes behind a real group: each scheme, crashes,
where it stops, what it says of itself, and what is wrong with what it is given.
"""

import json
import random
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest

from groupcert import Client
from groupcert.applier.engine.applier import ApplierOptions
from groupcert.applier.engine.until import AfterGtids
from groupcert.applier.queue.job import CommitGroup, Job
from groupcert.applier.queue.target_progress import Checkpoint, TargetProgress
from groupcert.applier.schemes.catalogue import scheme as scheme_of
from groupcert.applier.targets import Target
from groupcert.applier.targets.rocksdb import RowChanges
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.replica.follower import Replica, ReplicaEnd
from groupcert.members.replica.replica_process import EmbeddedTarget
from groupcert.members.replica.sources import ReplicaSources
from groupcert.v1 import binary_log_pb2
from groupcert.v1.binary_log_pb2_grpc import BinaryLogServiceStub
from tests.commands import groupcert
from tests.integration.replicas import (
    SCHEMES,
    TABLES,
    History,
    Load,
    ReplicaProcess,
    Rows,
    embedded,
    embedded_state,
    group_with_history,
    total,
)
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster]

FINE, FINDING, USAGE, UNAVAILABLE = range(4)
KILLS = 4
DELAY_SECONDS = 20
"""Longer than a machine stands still between two looks at a replica that is delayed."""
Shared = tuple[LocalGroup, History]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A group with a history that no test adds to."""
    with group_with_history(tmp_path_factory.mktemp("shared"), 600) as shared:
        yield shared


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """A group that tests write to."""
    with group_with_history(tmp_path_factory.mktemp("source"), 20) as (group, _):
        yield group


def replica_of(
    folder: Path, group: LocalGroup, scheme: str = "logical-clock", *arguments: str
) -> ReplicaProcess:
    """A replica of the group's first member, or the second, into a store in the folder."""
    sources = list(group.addresses.values())
    return ReplicaProcess(folder, sources, f"rocksdb:{folder / 'target'}", scheme, *arguments)


def assert_whole(folder: Path, history: History) -> None:
    """The replica has all that its source has."""
    rows, checkpoint = embedded_state(folder / "target")
    assert rows == history.rows
    assert checkpoint.gtid_executed == history.gtids
    assert (checkpoint.version, dict(checkpoint.parts)) == (history.version, {})


@pytest.mark.in_turns
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_ends_with_the_rows_of_the_source(
    shared: Shared, tmp_path: Path, scheme: str
) -> None:
    group, history = shared
    with replica_of(tmp_path, group, scheme) as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE, replica.last_line()
        (ended,) = replica.events("replica_ended")
    assert (ended["committed"], ended["executed"]) == (ended["committed"], str(history.gtids))
    assert_whole(tmp_path, history)


@pytest.mark.parametrize("scheme", ["logical-clock", "table"])
def test_without_workers_the_coordinator_executes_alone(
    shared: Shared, tmp_path: Path, scheme: str
) -> None:
    group, history = shared
    with replica_of(tmp_path, group, scheme, "--workers", "0") as replica:
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE, replica.last_line()
    assert_whole(tmp_path, history)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", [each for each in SCHEMES if "ignore" not in each])
def test_readers_only_ever_see_states_that_the_source_had(
    shared: Shared, tmp_path: Path, name: str
) -> None:
    """Any-time consistency, by a reader in the replica's own process; schemes that promise less
    show transactions whole all the same, but `table`, which divides them.
    """
    group, history = shared
    scheme, _, setting = name.partition(" --")
    kind, _, value = setting.partition(" ")
    watched: list[Watched] = []

    def open_target() -> Target[Any]:
        watched.append(Watched(tmp_path / "target"))
        return watched[-1]

    replica = Replica(
        "replica",
        ReplicaSources([group.addresses["m1"]], "replica"),
        open_target,
        lambda: scheme_of(
            scheme,
            conflicts=value if kind == "conflicts" else None,
            policy=value if kind == "policy" else None,
        ),
        4,
        ApplierOptions(scheme=name),
        make_until=lambda checkpoint: AfterGtids(history.gtids, checkpoint.gtid_executed),
    )
    assert replica.run() is ReplicaEnd.UNTIL
    (samples,) = (each.samples for each in watched)
    assert len(samples) > 3, "it was read while it was written"
    if scheme != "table":
        opened = [rows for rows in samples if f"{TABLES[0]}/0".encode() in rows]
        assert {total(rows) for rows in opened} == {total(history.rows)}
    if replica.scheme.consistency.value == "any-time" and scheme != "group-commit":
        states = list(history.states())
        assert [rows for rows in samples if rows not in states] == []
    assert_whole(tmp_path, history)


class Watched(EmbeddedTarget):
    """A store that is read whole, again and again, while it is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "replica")
        self.samples: list[Rows] = []
        self._ended = Event()
        self._reader = Thread(target=self._sample)
        self._reader.start()

    def close(self) -> None:
        """Ends the reader first."""
        self._ended.set()
        self._reader.join()
        super().close()

    def _sample(self) -> None:
        while not self._ended.is_set():
            self.samples.append(dict(self.open_snapshot().scan()))


@pytest.mark.in_turns
@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_killed_again_and_again_it_fills_its_gaps(
    source: LocalGroup, tmp_path: Path, scheme: str
) -> None:
    chance = random.Random(scheme)
    load = Load(list(source.addresses.values()))
    with replica_of(tmp_path, source, scheme) as replica:
        with load.running():
            for run in range(1, KILLS + 1):
                replica.start()
                replica.wait_for_start(run)
                time.sleep(chance.uniform(0, 0.2))
                replica.kill()
                _, checkpoint = embedded_state(tmp_path / "target")
        history = History(source.addresses["m1"])
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE, replica.last_line()
        *_, found = replica.events("replica_started")
    executed = checkpoint.gtid_executed
    assert found["executed"] == str(executed)
    assert found["missing"] == checkpoint.version - executed.count()
    assert found["in_part"] == len(checkpoint.parts)
    assert_whole(tmp_path, history)


def test_where_its_source_dies_it_goes_on_at_the_next_one(
    source: LocalGroup, tmp_path: Path
) -> None:
    with replica_of(tmp_path, source) as replica:
        replica.start()
        replica.wait_for_start()
        for name, other in (("m1", "m2"), ("m2", "m1")):
            put(source.addresses[other], name.encode())
            source.kill(name)
            version = put(source.addresses[other], name.encode())
            _wait_for_version(replica, version)
            source.start_member(name)
            source.wait_online()
        assert replica.stop() == FINE, replica.last_line()
        assert "source_unavailable" in {event["event"] for event in replica.events()}
    assert_whole(tmp_path, History(source.addresses["m1"]))


def put(address: str, value: bytes) -> int:
    """Commits a transaction of one row; its version."""
    with Client(address) as client:
        client.run(lambda transaction: transaction.put(b"shop.last/1", value))
        return client.version


def _wait_for_version(replica: ReplicaProcess, version: int) -> None:
    wait_for("what is new", lambda: _has(replica, version))


def _has(replica: ReplicaProcess, version: int) -> bool:
    """Whether a replica has everything up to a version."""
    coordinator = replica.status().get("coordinator", {})
    executed = GtidSet.parse(coordinator.get("gtid_executed", ""))
    return executed.count() >= version


class TestUntil:
    """The five conditions, each on the history that does not change."""

    @pytest.mark.parametrize("scheme", ["logical-clock", "jobs --conflicts graph"])
    def test_after_gtids(self, shared: Shared, tmp_path: Path, scheme: str) -> None:
        group, history = shared
        assert stop_at(tmp_path, group, scheme, "--until-after-gtids", gtids(history, 100)) == 100
        assert stop_at(tmp_path, group, scheme, "--until-after-gtids", gtids(history, 200)) == 200
        assert stop_at(tmp_path, group, scheme, "--until-after-gtids", gtids(history, 50)) == 200
        rows, _ = embedded_state(tmp_path / "target")
        assert rows == list(history.states())[200]

    @pytest.mark.parametrize("scheme", ["commit-parent", "table"])
    def test_before_gtids(self, shared: Shared, tmp_path: Path, scheme: str) -> None:
        group, history = shared
        first = str(history.entries[100].gtid)
        assert stop_at(tmp_path, group, scheme, "--until-before-gtids", first) == 100
        assert embedded_state(tmp_path / "target")[0] == list(history.states())[100]

    @pytest.mark.parametrize("index", [0, 100, -1])
    def test_after_a_position(self, shared: Shared, tmp_path: Path, index: int) -> None:
        group, history = shared
        entry = history.entries[index]
        place = f"{entry.header.file}:{entry.sequence_number}"
        assert stop_at(tmp_path, group, "rows", "--until-position", place) == entry.version

    def test_after_a_view_change(self, shared: Shared, tmp_path: Path) -> None:
        """The group's first views came before its first transaction."""
        group, _ = shared
        assert stop_at(tmp_path, group, "database", "--until-view", "1") == 0

    def test_after_gaps_where_there_are_none(self, shared: Shared, tmp_path: Path) -> None:
        group, history = shared
        assert stop_at(tmp_path, group, "table", "--until-after-gtids", gtids(history, 60)) == 60
        assert stop_at(tmp_path, group, "table", "--until-after-gaps") == 60


def gtids(history: History, count: int) -> str:
    """The first transactions."""
    executed = GtidSet()
    for entry in history.entries[:count]:
        assert entry.gtid
        executed.add(entry.gtid)
    return str(executed)


def stop_at(folder: Path, group: LocalGroup, scheme: str, *arguments: str) -> int:
    """Runs a replica until its condition is met; how many transactions are executed then."""
    with replica_of(folder, group, scheme) as replica:
        assert replica.run(*arguments) == FINE, replica.last_line()
    _, checkpoint = embedded_state(folder / "target")
    assert checkpoint.version == checkpoint.gtid_executed.count(), "it has no gaps"
    return checkpoint.version


@pytest.mark.parametrize("scheme", ["logical-clock", "table", "jobs --conflicts ignore"])
def test_it_stops_within_its_limit_while_a_backlog_waits_and_leaves_no_gaps(
    shared: Shared, tmp_path: Path, scheme: str
) -> None:
    group, history = shared
    with replica_of(tmp_path, group, scheme) as replica:
        replica.start()
        replica.wait_for_start()
        assert replica.stop() == FINE, replica.last_line()
        (ended,) = replica.events("replica_ended")
        assert ended["end"] == "stopped"
        _, checkpoint = embedded_state(tmp_path / "target")
        assert checkpoint.version == checkpoint.gtid_executed.count()
        assert replica.run("--until-after-gtids", str(history.gtids)) == FINE
    assert_whole(tmp_path, history)


def test_it_stops_while_no_source_answers(tmp_path: Path) -> None:
    """And says before that that it waits."""
    nowhere = f"{HOST}:{free_port()}"
    with ReplicaProcess(tmp_path, [nowhere], f"rocksdb:{tmp_path / 't'}", "table") as replica:
        replica.start()
        events = wait_for("a word", lambda: replica.events("source_unavailable"))
        assert events[0]["source"] == nowhere
        expected = ("running", "not connected", "connecting to its source")
        wait_for(
            "a status that says so",
            lambda: (
                tuple(map(_coordinator(replica).get, ("state", "source", "waits_for"))) == expected
            ),
        )
        assert replica.stop() == FINE, replica.last_line()


@pytest.mark.in_turns
def test_delayed_it_lags_and_says_so_and_then_has_everything(
    source: LocalGroup, tmp_path: Path
) -> None:
    """Status as JSON and metrics say the same of one replica."""
    metrics = f"{HOST}:{free_port()}"
    arguments = ("--delay-s", str(DELAY_SECONDS), "--metrics-address", metrics)
    with replica_of(tmp_path, source, "jobs", *arguments) as replica:
        put(source.addresses["m1"], b"old")
        before = History(source.addresses["m1"])
        replica.start()
        wait_for("all that is old", lambda: _has(replica, before.version))
        began = time.monotonic()
        put(source.addresses["m1"], b"new")
        status = wait_for(
            "the news",
            lambda: (
                (found := _coordinator(replica))["behind_transactions"] == "1"
                and found["waits_for"] == f"delaying by {DELAY_SECONDS} s"
                and found
            ),
        )
        assert 0 < status["lag_seconds"] < 60
        assert _lag(metrics) >= status["lag_seconds"]
        assert _lag(metrics) < _lag(metrics), "it grows"
        status = wait_for(
            "nothing behind",
            lambda: (
                (found := _coordinator(replica))["behind_transactions"] == "0"
                and found["waits_for"] == "waiting for its source"
                and found
            ),
        )
        assert time.monotonic() - began >= DELAY_SECONDS - 0.5
        assert (status["lag_seconds"], _lag(metrics)) == (0, 0)
        assert status["source"] in source.addresses.values()
        assert (status["scheme"], status["consistency"]) == ("jobs", "any-time")
        assert status["gtid_executed"] == str(History(source.addresses["m1"]).gtids)
        assert replica.stop() == FINE


def _coordinator(replica: ReplicaProcess) -> dict[str, Any]:
    """What its status says of the coordinator, once it answers."""
    coordinator: dict[str, Any] = wait_for(
        "an answer", lambda: replica.status().get("coordinator", {})
    )
    return coordinator


def _lag(metrics: str) -> float:
    """What Prometheus would get."""
    with urllib.request.urlopen(f"http://{metrics}/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith("groupcert_applier_lag_seconds "):
                return float(line.split()[1])
    raise AssertionError("no such metric")


def test_a_member_answers_for_its_applier_too(shared: Shared) -> None:
    group, history = shared

    def document() -> Any:
        """What the command prints, once the member has what another one has committed."""
        done = groupcert("status", "--applier", "--json", group.addresses["m2"])
        if done.returncode != FINE:
            return None
        found = json.loads(done.stdout)
        return found if found["coordinator"]["gtid_executed"] == str(history.gtids) else None

    assert len(wait_for("all transactions", document)["workers"]) == 4
    done = groupcert("status", "--applier", group.addresses["m2"])
    assert (done.returncode, "applier of" in done.stdout) == (FINE, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scheme", "magic"), "setting scheme is 'magic': expected one of logical-clock, "),
        (("--policy", "magic"), "setting policy is 'magic': expected one of at-most-one, first-"),
        (("--scheme", "rows", "--conflicts", "graph"), "setting conflicts is 'graph': expected no"),
        (("--scheme", "jobs", "--conflicts", "magic"), "setting conflicts is 'magic': expected on"),
        (("--scheme", "table", "--preserve-commit-order"), "setting preserve_commit_order is 'Tr"),
        (("--target", "sqlite:x"), "setting target is 'sqlite:x': expected rocksdb:FOLDER, post"),
        (("--target", "postgresql://u@h/d"), "target h/d: there is no mapping of rows"),
        (("--target", "mysql://u@h/d", "--mapping", "/none"), "/none: No such file"),
        (("nowhere",), "sources is 'nowhere': expected host:port"),
        (("--until-view", "1", "--until-after-gaps"), "until_view and until_after_gaps are given"),
        (("--until-after-gtids", "5"), "until_after_gtids: "),
        (("--workers", "1025"), "workers is 1025: input should be less than or equal to 1024"),
    ],
)
def test_what_settings_are_wrong_about_is_said_before_anything_is_written(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    folder = tmp_path / "target"
    given = ("127.0.0.1:1", "--target", f"rocksdb:{folder}")
    done = groupcert("replica", *given, *arguments)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not folder.exists()


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = ("127.0.0.1:1", "--target", f"rocksdb:{tmp_path / 't'}")
        done = groupcert("replica", *given, "--address", address)
        assert (done.returncode, address in done.stderr) == (UNAVAILABLE, True), done.stderr
        done = groupcert("replica", *given, "--metrics-address", address)
        assert (done.returncode, address in done.stderr) == (UNAVAILABLE, True), done.stderr


def test_two_replicas_do_not_share_a_store(shared: Shared, tmp_path: Path) -> None:
    group, _ = shared
    with replica_of(tmp_path, group) as replica:
        replica.start()
        replica.wait_for_start()
        with replica_of(tmp_path, group) as second:
            second.log = tmp_path / "second.log"
            assert second.run() != FINE
            assert "target" in second.last_line()
        assert replica.stop() == FINE


def test_what_its_sources_have_purged_is_named(tmp_path: Path, source: LocalGroup) -> None:
    with grpc.insecure_channel(source.addresses["m1"]) as channel:
        service = BinaryLogServiceStub(channel)
        file = service.Rotate(binary_log_pb2.RotateRequest()).file
        service.Purge(binary_log_pb2.PurgeRequest(to_file=file))
    with replica_of(tmp_path, source) as replica:
        arguments = ("--until-after-gtids", str(History(source.addresses["m2"]).gtids))
        assert replica.run(*arguments) == FINE, "the other source has it"
        refused = replica.events("source_refuses")
    assert {event["source"] for event in refused} == {source.addresses["m1"]}
    target = f"rocksdb:{tmp_path / 'alone' / 'target'}"
    alone = [source.addresses["m1"]]
    with ReplicaProcess(tmp_path / "alone", alone, target, "logical-clock") as replica:
        assert replica.run() == FINDING
        assert "source m1 has purged" in replica.last_line()


def test_a_replica_that_has_more_than_its_source_is_refused(shared: Shared, tmp_path: Path) -> None:
    group, history = shared
    foreign = Gtid(str(history.entries[0].gtid).rpartition(":")[0], 900_000)
    with embedded(tmp_path / "target") as target:
        job: Job[RowChanges] = Job([history.entries[0]._replace(gtid=foreign)])
        job.execution = target.execute(job)
        target.commit(CommitGroup(2, [job]), TargetProgress(Checkpoint(scheme="logical-clock")))
    with replica_of(tmp_path, group) as replica:
        assert replica.run() == FINDING
        assert f"replica has '{foreign}', which source m2 has not" in replica.last_line()
