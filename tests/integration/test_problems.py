"""What is wrong is seen: a log server that is down, a log without a leader, a member that is gone.

Three real log servers and real members; each fault is made, and `groupcert status` is asked until
it says so.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from groupcert import Client
from groupcert.certifier.errors import NotServing
from groupcert.members.commands.status_views import show_status
from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.services.metrics import StatusCollector
from groupcert.v1 import group_pb2
from tests.commands import groupcert
from tests.frozen import frozen
from tests.integration.waiting import wait_for
from tests.log_servers import NatsServers

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

QUICK: dict[str, object] = {
    "stable_set_period_ms": 100,
    "suspicion_timeout_ms": 2_000,
    "member_expel_timeout_ms": 1_000,
}


class Seen(NamedTuple):
    """What `groupcert status` said, and its exit code."""

    code: int
    document: dict[str, Any]

    @property
    def problems(self) -> set[tuple[str, str]]:
        """Kind and name of each."""
        return {(each["kind"], each["name"]) for each in self.document["problems"]}


def status_at(address: str) -> Seen:
    """What `groupcert status --json` prints, in this process: it is asked again and again, and at
    first until the member answers.
    """

    def answered() -> list[Seen]:
        with suppress(NotServing), redirect_stdout(StringIO()) as printed:
            code = show_status(address, as_json=True, watch=False, period_ms=1)
            return [Seen(code, json.loads(printed.getvalue()))]
        return []

    (seen,) = wait_for("an answer", answered)
    return seen


def states_of(seen: Seen) -> dict[str, str]:
    """The log's servers as the member that was asked sees them."""
    return {each["name"]: each["state"] for each in seen.document["log"]["servers"]}


def wait_for_exactly(address: str, *problems: tuple[str, str]) -> Seen:
    """The status that has these problems, and no others."""

    def found() -> list[Seen]:
        seen = status_at(address)
        return [seen] if seen.problems == {*problems} else []

    (seen,) = wait_for(f"{problems} and nothing else", found)
    return seen


def wait_for_problem(address: str, kind: str, name: str) -> Seen:
    """The status that has a problem, with exit code 1."""

    def found() -> list[Seen]:
        seen = status_at(address)
        return [seen] if (kind, name) in seen.problems else []

    (seen,) = wait_for(f"{kind} of {name}", found)
    assert seen.code == 1
    return seen


def wait_until_well(address: str) -> Seen:
    """The status with exit code 0 and nothing to say."""

    def found() -> list[Seen]:
        seen = status_at(address)
        assert bool(seen.problems) == bool(seen.code)
        return [] if seen.code else [seen]

    (seen,) = wait_for("no problems", found)
    return seen


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """Three log servers."""
    with NatsServers(tmp_path_factory.mktemp("log")) as log:
        yield log


@pytest.fixture(scope="module")
def address(log: NatsServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A member of a group on them."""
    folder = tmp_path_factory.mktemp("group")
    settings = {**log.settings, "log_connect_ms": 30_000}
    with LocalGroup(folder, members=2, settings=settings) as group:
        yield group.addresses["m1"]


def current_servers(address: str) -> list[float]:
    """How many servers have all of the log, as a member's metrics say."""
    with Client(address, timeout_ms=60_000) as client:
        metrics = list(StatusCollector(client.status).collect())
    (current,) = (each for each in metrics if each.name == "groupcert_log_servers_current")
    return [sample.value for sample in current.samples]


class TestLogServers:
    """Three of them, of which one or two are down."""

    @pytest.mark.parametrize("is_leader", [False, True])
    def test_one_that_is_killed_is_named_until_it_is_back(
        self, log: NatsServers, address: str, is_leader: bool
    ) -> None:
        wait_until_well(address)
        leader = wait_for("a leader", log.leader)
        victim = next(name for name in log.names if (name == leader) is is_leader)
        log.kill(victim)
        try:
            seen = wait_for_problem(address, "log_server", victim)
            assert f"log server {victim} is " in str(seen.document["problems"])
            expected = {**dict.fromkeys(log.names, "CURRENT"), victim: "SILENT"}

            def is_led_by_another() -> bool:
                seen = status_at(address)
                leader = seen.document["log"]["leader"]
                return states_of(seen) == expected and leader in {*log.names} - {victim}

            wait_for("one that is silent, and another that leads", is_led_by_another)
            wait_for("two of three in the metrics", lambda: current_servers(address) == [2.0])
        finally:
            log.start(victim)
        wait_until_well(address)

    @pytest.mark.parametrize("leader_survives", [False, True])
    def test_without_two_of_three_there_is_no_leader(
        self, log: NatsServers, address: str, leader_survives: bool
    ) -> None:
        wait_until_well(address)
        leader = wait_for("a leader", log.leader)
        others = [name for name in log.names if name != leader]
        down = others if leader_survives else [leader, others[0]]
        for name in down:
            log.kill(name)
        try:
            seen = wait_for_problem(address, "log_leader", "log")
            (text,) = (each["text"] for each in seen.document["problems"] if each["name"] == "log")
            assert text.startswith("the log has had no leader with a majority for ")
            wait_for_problem(address, "log_unacknowledged", "m1")
        finally:
            for name in down:
                log.start(name)
        wait_until_well(address)

    def test_a_member_of_a_group_that_is_not_there_says_so(
        self, log: NatsServers, address: str, tmp_path: Path
    ) -> None:
        with waiting_member(tmp_path, group="typo", log_servers=list(log.addresses)) as typo:
            told = wait_for_reason(typo, "there is no group typo at nats://")
            assert "which has logs of local: is the name right?" in told
            wait_for_exactly(typo, ("member_state", "m9"))


def test_a_member_that_reaches_no_log_server_says_which(tmp_path: Path) -> None:
    nobody = f"nats://{HOST}:{free_port()}"
    with waiting_member(tmp_path, group="shop", log_servers=[nobody]) as address:
        told = wait_for_reason(address, "refused")
        assert told.startswith(f"connecting to the log servers at {nobody}")


@contextmanager
def waiting_member(folder: Path, group: str, log_servers: list[str]) -> Iterator[str]:
    """A member as a process that waits for its log; its address."""
    address = f"{HOST}:{free_port()}"
    settings = {
        "group": group,
        "member": "m9",
        "address": address,
        "data_folder": str(folder / "m9"),
        "log_servers": log_servers,
        "create_log": False,
        "log_connect_ms": 600_000,
    }
    path = folder / "m9.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    command = ("member", "--config", str(path))
    with CommandProcess(command, folder / "m9.log", stop_signal=signal.SIGKILL):
        yield address


def wait_for_reason(address: str, words: str) -> str:
    """What a member gives as the reason why it is not ONLINE, once that has some words."""

    def found() -> str:
        seen = status_at(address)
        assert seen.code == 1
        (row,) = seen.document["members"]
        return str(row["reason"]) if words in row["reason"] else ""

    return wait_for(words, found)


class TestMembers:
    """Members that fall silent, die, leave and come back."""

    def test_one_that_stands_still_is_named_before_it_is_suspected(self, tmp_path: Path) -> None:
        settings = {"suspicion_timeout_ms": 60_000}
        with LocalGroup(tmp_path, members=2, settings=settings) as group:
            wait_for("no silence", lambda: not any(each.silent_ms for each in view_of(group)))
            with frozen(group.processes["m2"].pid):
                wait_for("a silence", lambda: any(each.silent_ms for each in view_of(group)))
                wait_for_exactly(
                    group.addresses["m1"], ("member_silent", "m2"), ("member_unreachable", "m2")
                )
                assert not any(each.suspected for each in view_of(group))
            wait_until_well(group.addresses["m1"])

    def test_who_died_or_left_is_named_until_it_returns_or_is_forgotten(
        self, tmp_path: Path
    ) -> None:
        with LocalGroup(tmp_path, settings=QUICK) as group:
            m1 = group.addresses["m1"]
            group.kill("m3")
            seen = wait_for_exactly(m1, ("member_departed", "m3"))
            assert departed(seen) == {"m3": "SILENT"}
            assert group.stop_member("m2") == 0
            seen = wait_for_exactly(m1, ("member_departed", "m2"), ("member_departed", "m3"))
            assert departed(seen) == {"m2": "LEFT", "m3": "SILENT"}
            assert all(each["since"] for each in seen.document["departed"])
            assert group.stop_member("m1") == 0
            for name in ("m1", "m2"):
                group.start_member(name)
            group.wait_online()
            for name in ("m1", "m2"):  # A restart keeps it.
                wait_for_exactly(group.addresses[name], ("member_departed", "m3"))
            assert groupcert("group", "forget", "m3", m1).returncode == 0
            for name in ("m1", "m2"):
                wait_until_well(group.addresses[name])
            again = groupcert("group", "forget", "m3", m1)
            assert again.returncode == 2
            assert "expected one that has departed: nobody has" in again.stderr
            group.start_member("m3")
            group.wait_online()
            wait_until_well(m1)

    def test_members_count_the_same_transactions_whenever_they_were_started(
        self, tmp_path: Path
    ) -> None:
        with LocalGroup(tmp_path, settings=QUICK) as group:
            for name in group.names:
                with Client(group.addresses[name]) as client:
                    client.run(lambda transaction: transaction.put(b"a", b"1"))
                    first, second = client.transaction(), client.transaction()
                    first.put(b"a", b"2")
                    second.put(b"a", b"3")
                    first.commit()
                    with pytest.raises(Exception, match="conflict"):
                        second.commit()
                group.stop_member(name)
                group.start_member(name)
                group.wait_online()

            def same() -> list[list[int]]:
                rows = status_at(group.addresses["m1"]).document["members"]
                counts = [[row[each] for each in ("certified", "conflicts")] for row in rows]
                return counts if counts[0] == counts[1] == counts[2] else []

            assert wait_for("the same counts", same)[0] == [6, 3]
            runs = [group.status(name).observer.run_verdicts for name in group.names]
            assert runs[2].certified < 6, "a metric counts what one run decided"


def view_of(group: LocalGroup) -> list[group_pb2.ViewMember]:
    """The view as m1 has it."""
    return list(group.status("m1").members)


def departed(seen: Seen) -> dict[str, str]:
    """Who has gone, and why."""
    return {each["name"]: each["cause"] for each in seen.document["departed"]}
