"""Who is in the group: silence, expulsion and rejoining; one primary; fences that last.

Members are real processes with short times, so that a test sees in seconds what takes a minute
otherwise. Stopping a process with SIGSTOP is how a member falls silent and knows nothing of it.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from groupcert import Client, Consistency
from groupcert.certifier.errors import CorruptStore
from groupcert.members.commands import cli
from groupcert.members.demo.local_group import LocalGroup
from groupcert.v1 import group_pb2
from tests.frozen import frozen
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow]

COMMITS = 50
TIMES: dict[str, object] = {
    "stable_set_period_ms": 100,
    "suspicion_timeout_ms": 700,
    "member_expel_timeout_ms": 300,
    "autorejoin_interval_ms": 1_000,
}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members that are quick to suspect each other."""
    with LocalGroup(tmp_path, settings=TIMES, certification_logs=tmp_path / "logs") as group:
        yield group


def view_of(group: LocalGroup, name: str) -> list[str]:
    """The names in the view that a member sees."""
    return [each.name for each in group.status(name).members]


def state_of(group: LocalGroup, name: str) -> int:
    """A member's own word of its state."""
    return group.status(name).observer.state


def held_at(group: LocalGroup, name: str) -> group_pb2.MemberStatus | None:
    """A member's status if its clients wait for a slow one."""
    observer = group.status(name).observer
    return observer if observer.flow_control else None


def is_online(group: LocalGroup, name: str) -> bool:
    return state_of(group, name) == group_pb2.MEMBER_STATE_ONLINE


def command(*words: str) -> int:
    """The exit code of a command, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["groupcert", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    return int(caught.value.code or 0)


class TestSilence:
    """A member that says nothing is put out; it comes back by itself and has lost nothing."""

    def test_a_member_that_stood_still_is_expelled_and_rejoins(self, group: LocalGroup) -> None:
        load = BankLoad()
        with load.running([group.addresses["m1"], group.addresses["m2"]], seed=1):
            load.wait_for_commits(COMMITS)
            with frozen(group.processes["m3"].pid):
                wait_for("a view without it", lambda: view_of(group, "m1") == ["m1", "m2"])
                load.wait_for_commits(COMMITS)
            wait_for("its return", lambda: view_of(group, "m1") == ["m1", "m2", "m3"])
            wait_for("m3 ONLINE", lambda: is_online(group, "m3"))
            load.wait_for_commits(COMMITS)
        assert_whole(group, load)

    def test_its_clients_go_on_elsewhere(self, group: LocalGroup) -> None:
        """They notice that it stands still, long before the time of an attempt is up: half of an
        hour, which no test has.
        """
        addresses = [group.addresses["m3"], group.addresses["m1"]]
        with Client(addresses, timeout_ms=3_600_000) as client:
            client.run(lambda transaction: transaction.put(b"a", b"1"))
            assert client.address == group.addresses["m3"]
            with frozen(group.processes["m3"].pid):
                client.run(lambda transaction: transaction.put(b"a", b"2"))
                assert client.address == group.addresses["m1"]

    def test_a_member_that_was_killed_holds_nobody_up(self, group: LocalGroup) -> None:
        group.kill("m3")
        wait_for("a view without it", lambda: view_of(group, "m1") == ["m1", "m2"])
        with Client(group.addresses["m1"], consistency=Consistency.AFTER) as client:
            client.run(lambda transaction: transaction.put(b"key", b"1"))

            def is_collected() -> bool:
                observer = client.status().observer
                return observer.stable_version == observer.certified_version

            wait_for("a stable set", is_collected)
        assert wait_for("the same view", lambda: view_of(group, "m1") == ["m1", "m2"])

    def test_nobody_is_expelled_while_the_log_is_away(self, tmp_path: Path) -> None:
        """For longer than a member may be silent, which is longer than one has no processor."""
        settings = {**TIMES, "suspicion_timeout_ms": 3_000, "member_expel_timeout_ms": 2_000}
        with LocalGroup(tmp_path, settings=settings) as group:
            view_id = group.status("m1").view_id
            group.log_server.kill()
            wait_for("an outage", lambda: group.status("m2").observer.log_unacknowledged_ms > 7_000)
            group.log_server.start()
            with Client(group.addresses["m2"]) as client:
                client.run(lambda transaction: transaction.put(b"key", b"2"))
            assert group.status("m1").view_id == view_id

    def test_a_member_that_gives_the_log_up_says_so_and_comes_back(self, tmp_path: Path) -> None:
        settings = {**TIMES, "unreachable_majority_timeout_ms": 2_000, "autorejoin_tries": 100}
        with LocalGroup(tmp_path, settings={**settings, "log_connect_ms": 500}) as group:
            group.log_server.kill()
            wait_for("an error", lambda: state_of(group, "m1") != group_pb2.MEMBER_STATE_ONLINE)
            group.log_server.start()
            wait_for("all ONLINE", lambda: all(is_online(group, name) for name in group.names))
            assert wait_for("its return", lambda: view_of(group, "m1") == list(group.names))

    def test_without_tries_it_does_as_its_settings_say_until_its_operator_acts(
        self, tmp_path: Path
    ) -> None:
        """It answers reads, ends, or answers nothing but its status."""
        settings = {**TIMES, "autorejoin_tries": 0}
        own = {
            "m3": {"exit_state_action": "ABORT_SERVER"},
            "m4": {"exit_state_action": "OFFLINE_MODE"},
        }
        with LocalGroup(tmp_path, members=4, settings=settings, own_settings=own) as group:
            for name in ("m2", "m3", "m4"):
                assert command("group", "expel", name, group.addresses["m1"]) == 0
            assert group.processes.pop("m3").wait(120) == 3
            out = [group_pb2.MEMBER_STATE_ERROR] * 2
            wait_for("errors", lambda: [state_of(group, name) for name in ("m2", "m4")] == out)

            def refuses() -> bool:
                with Client(group.addresses["m4"], timeout_ms=1_000) as client:
                    try:
                        client.transaction().rollback()
                    except Exception as error:
                        return "m4 is ERROR" in str(error)
                return False

            wait_for("no reads", refuses)
            address = group.addresses["m2"]
            with Client(address) as client:
                assert client.transaction().get(b"key") is None, "reads go on"
            assert command("group", "rejoin", address) == 0
            wait_for("m2 ONLINE", lambda: is_online(group, "m2"))
            assert command("group", "rejoin", address) == 2

    def test_leaving_and_coming_back(self, group: LocalGroup) -> None:
        address = group.addresses["m2"]
        assert command("group", "leave", address) == 0
        wait_for("a view without it", lambda: view_of(group, "m1") == ["m1", "m3"])
        wait_for("m2 LEFT", lambda: state_of(group, "m2") == group_pb2.MEMBER_STATE_LEFT)
        assert command("group", "rejoin", address) == 0
        wait_for("its return", lambda: view_of(group, "m1") == ["m1", "m2", "m3"])


class TestFlowControl:
    """A member that lags slows the group before it is left behind, and is named."""

    def test_commits_wait_for_a_member_that_stands_still(self, tmp_path: Path) -> None:
        settings = {**TIMES, "member_expel_timeout_ms": 60_000, "flow_control_lag_max": 300}
        with LocalGroup(tmp_path, settings=settings, certification_logs=tmp_path / "logs") as group:
            load = BankLoad()
            with load.running([group.addresses["m1"], group.addresses["m2"]], seed=3):
                load.wait_for_commits(COMMITS)
                with frozen(group.processes["m3"].pid):
                    observer = wait_for("an explanation", lambda: held_at(group, "m1"))
                    assert observer is not None
                    assert observer.flow_control.startswith("m3 slows the group: it has ")
                    assert 0 < observer.slowest_lag <= 300
                wait_for("no more waiting", lambda: not group.status("m1").observer.flow_control)
                load.wait_for_commits(COMMITS)
            assert group.status("m1").observer.flow_control_held_ms > 0
            assert_whole(group, load)


class TestSinglePrimary:
    """One member writes; clients find it, whoever it is."""

    def test_clients_follow_the_primary_through_switches_and_its_death(
        self, group: LocalGroup
    ) -> None:
        at_m1 = group.addresses["m1"]
        assert command("group", "mode", "single-primary", "--primary", "m3", at_m1) == 0
        wait_for("m3 the primary", lambda: group.status("m1").primary == "m3")
        load = BankLoad()
        with load.running(list(group.addresses.values()), seed=2):
            load.wait_for_commits(COMMITS)
            assert command("group", "primary", "m2", at_m1) == 0
            load.wait_for_commits(COMMITS)
            group.kill("m2")
            wait_for("another primary", lambda: group.status("m1").primary == "m1")
            load.wait_for_commits(COMMITS)
            group.start_member("m2")
            group.wait_online()
            assert command("group", "mode", "multi-primary", at_m1) == 0
            load.wait_for_commits(COMMITS)
        assert_whole(group, load)
        assert command("group", "primary", "m2", at_m1) == 2


class TestSettings:
    """Settings of the group change while it runs, for everybody at one place."""

    def test_a_change_is_the_same_for_everybody_and_outlives_a_restart(
        self, group: LocalGroup, capsys: pytest.CaptureFixture[str]
    ) -> None:
        at_m1 = group.addresses["m1"]
        assert command("group", "set", "gc_window=tight", "--dry-run", at_m1) == 0
        assert command("group", "set", "gc_window=tight", "write_set_items_max=7", at_m1) == 0
        group.stop_member("m2")
        group.start_member("m2")
        group.wait_online()

        def shown(address: str) -> str:
            """What a member shows once it has read the change."""
            capsys.readouterr()
            assert command("group", "settings", address) == 0
            text = capsys.readouterr().out
            return text if "version 2\n" in text else ""

        for address in group.addresses.values():
            text = wait_for("the second version", partial(shown, address))
            assert "gc_window = tight\n" in text
            assert "write_set_items_max = 7\n" in text


class TestFences:
    """A member that fenced itself stays so, whatever its process does, until its operator acts."""

    def test_another_log_under_the_same_name(self, tmp_path: Path) -> None:
        with LocalGroup(tmp_path, members=2, settings=TIMES) as group:
            for name in group.names:
                group.stop_member(name)
            group.log_server.stop()
            (tmp_path / "log-server").rename(tmp_path / "log-server-before")
            group.log_server.start()
            group.start_member("m1")
            wait_for("a fence", lambda: _is_fenced(group, "m1", "FOREIGN_LOG"))
            group.stop_member("m1")
            group.start_member("m1")
            wait_for("still a fence", lambda: _is_fenced(group, "m1", "STILL_FENCED"))
            address = group.addresses["m1"]
            assert command("group", "rejoin", address) == 3
            assert command("group", "rejoin", "--unfence", address) == 0
            wait_for("the same fence", lambda: _is_fenced(group, "m1", "FOREIGN_LOG"))
            assert command("group", "rejoin", "--discard-state", address) == 0
            wait_for("m1 ONLINE", lambda: is_online(group, "m1"))
            assert list((tmp_path / "m1").glob("discarded-*"))


def test_a_member_that_cannot_read_its_rows_fences_itself(group: LocalGroup) -> None:
    with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
        for number in range(1_000):
            transaction.put(b"%d" % number, os.urandom(100))
    wait_for("m3 has it", lambda: group.status("m3").observer.committed_version == 1)
    assert group.stop_member("m3") == 0
    for table in (group.folder / "m3" / "rocksdb").glob("*.sst"):
        content = bytearray(table.read_bytes())
        if b"namedata" in content:  # A table has its family's name among its properties.
            content[len(content) // 2] ^= 1
            table.write_bytes(content)
    group.start_member("m3")
    group.wait_online()
    with Client(group.addresses["m3"]) as client, pytest.raises(CorruptStore, match="checksum"):
        with client.transaction() as transaction:
            list(transaction.scan())
    wait_for("a fence", lambda: _is_fenced(group, "m3", "CORRUPT_STORE"))
    assert command("group", "rejoin", "--discard-state", group.addresses["m3"]) == 0
    group.wait_online()
    with Client(group.addresses["m3"], consistency=Consistency.BEFORE) as client:
        assert client.run(lambda transaction: len(list(transaction.scan()))) == 1_000


def _is_fenced(group: LocalGroup, name: str, why: str) -> bool:
    """Whether a member is fenced for a reason that begins so: a later one may quote it."""
    try:
        observer = group.status(name).observer
    except Exception:
        return False
    return observer.state == group_pb2.MEMBER_STATE_FENCED and observer.reason.startswith(why)
