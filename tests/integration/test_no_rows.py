"""A group of two members with rows and one without: any two go on, and rows come from those that
have some.

Members are real processes, killed under load; copies are forced by a log that was trimmed.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import groupcert
from groupcert import Client, Consistency
from groupcert.certifier.storage.reading import reading
from groupcert.certifier.storage.store import Family
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.errors.membership import RowsNotKept
from groupcert.members.host.loopback import HOST, free_port
from groupcert.members.recovery.copies import OF_ROWS
from groupcert.v1 import group_pb2
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, VERDICT_CONFLICT
from tests.commands import groupcert as command
from tests.integration.test_console import get
from tests.integration.test_recovery import (
    assert_one_digest,
    events_of,
    fill,
    lose,
    seeds,
)
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.in_turns]

FINE, FINDING, USAGE, UNAVAILABLE = range(4)
COMMITS = 50
NONE = "m3"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    folder = tmp_path_factory.mktemp("no-rows")
    settings = {"stable_set_period_ms": 200}
    own = {NONE: {"rows": "none", "metrics_address": f"{HOST}:{free_port()}"}}
    with LocalGroup(
        folder, settings=settings, own_settings=own, certification_logs=folder / "logs"
    ) as group:
        yield group


def stored_rows(group: LocalGroup) -> list[Family]:
    """What the store of the member without rows, which is stopped, has of rows."""
    with reading(group.folder / NONE) as store:
        return [family for family in OF_ROWS if next(store.scan(family), None)]


def compared(group: LocalGroup, name: str) -> dict[str, object]:
    """What `groupcert verify` says, asked at a member."""
    done = command("verify", group.addresses[name], "--json")
    assert done.returncode == FINE, done.stderr
    found = json.loads(done.stdout)
    return {
        "equal": found["equal"],
        "compared": [each["member"] for each in found["members"]],
        "without_rows": found["without_rows"],
    }


def test_any_two_of_three_go_on(group: LocalGroup) -> None:
    load = BankLoad()
    with load.running([group.addresses["m1"]], seed=1):
        load.wait_for_commits(COMMITS)
        for name in ("m2", NONE):
            group.kill(name)
            load.wait_for_commits(COMMITS)
            group.start_member(name)
            group.wait_online()
            load.wait_for_commits(COMMITS)
    assert_one_digest(group)
    with Client(group.addresses["m1"], consistency=Consistency.AFTER) as client:
        with client.transaction() as transaction:
            transaction.put(b"everywhere", b"1")
        version = client.status().observer.committed_version
    assert group.status(NONE).observer.committed_version >= version
    for name in group.names:
        equal = {"equal": True, "compared": ["m1", "m2"], "without_rows": [NONE]}
        assert compared(group, name) == equal
    done = command("verify", group.addresses[NONE])
    assert done.stdout.startswith(f"left out, without rows: {NONE}\nequal at m1, m2: ")
    done = command("status", group.addresses["m1"])
    assert f"\n{NONE} keeps no rows\n" in done.stdout
    assert done.returncode == FINE, done.stdout


def test_it_certifies_for_stores_of_clients_and_sends_readers_elsewhere(group: LocalGroup) -> None:
    with Client([group.addresses[NONE], group.addresses["m1"]]) as client:
        client.run(lambda transaction: transaction.put(b"greeting", b"hello"))
        assert client.address == group.addresses["m1"]
    with Client(group.addresses[NONE], timeout_ms=2_000) as client:
        named = f"m1 at {group.addresses['m1']}, m2 at {group.addresses['m2']}"
        with pytest.raises(RowsNotKept, match=named), client.transaction() as transaction:
            transaction.get(b"greeting")
        version = client.status().observer.committed_version
        mine = groupcert.certifiable(snapshot=version, write_set=["shop.orders/PRIMARY/42"])
        assert client.certify(mine).verdict == VERDICT_CERTIFIED
        again = groupcert.certifiable(snapshot=version, write_set=["shop.orders/PRIMARY/42"])
        assert client.certify(again).verdict == VERDICT_CONFLICT


def test_verbs_that_need_rows_name_members_that_have_them(
    group: LocalGroup, tmp_path: Path
) -> None:
    address = group.addresses[NONE]
    done = command("backup", address, "--out", str(tmp_path / "backup"))
    assert done.returncode == UNAVAILABLE
    assert f"{NONE} keeps no rows" in done.stderr
    assert f"m1 at {group.addresses['m1']}" in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = command("group", "mode", "single-primary", "--primary", NONE, address)
    assert "expected a member that keeps rows: m1, m2" in done.stderr


def test_its_console_and_metrics_are_those_of_a_member(group: LocalGroup) -> None:
    console = f"http://{group.status(NONE).observer.console_address}"
    _, said = get(console, "/console.json")
    told = {each["name"]: each["without_rows"] for each in json.loads(said)["members"]}
    assert told == {"m1": False, "m2": False, NONE: True}
    status, metrics = get(console, "/metrics")
    assert status == 200
    assert "\ngroupcert_member_certified_version " in metrics


def test_an_expelled_one_rejoins(group: LocalGroup) -> None:
    before = group.status(NONE).view_id
    done = command("group", "expel", NONE, group.addresses["m1"])
    assert done.returncode == FINE, done.stderr

    def is_back() -> bool:
        status = group.status(NONE)
        is_online = status.observer.state == group_pb2.MEMBER_STATE_ONLINE
        return is_online and status.view_id >= before + 2

    wait_for("the expelled member", is_back)
    assert_one_digest(group)


async def test_it_copies_a_state_without_rows(group: LocalGroup) -> None:
    fill(group)
    await lose(group, NONE)
    group.start_member(NONE, seeds(group, "m1", "m2"))
    group.wait_online()
    (copied,) = events_of(group, NONE, "recovery_copied")[-1:]
    assert copied
    assert_one_digest(group)
    assert group.stop_member(NONE) == 0
    assert stored_rows(group) == []
    size = sum(path.stat().st_size for path in (group.folder / NONE / "rocksdb").glob("*.sst"))
    assert size < 1 << 20, "none of the rows, of four times as many bytes"
    group.start_member(NONE)
    group.wait_online()


async def test_who_needs_rows_copies_another_one(group: LocalGroup) -> None:
    await lose(group, "m2")
    assert group.stop_member("m1") == 0
    group.start_member("m2", seeds(group, NONE, "m1"))
    wait_for("a member that looks for a donor", lambda: events_of(group, "m2", "recovery_by_copy"))
    group.start_member("m1")
    group.wait_online()
    (choice,) = events_of(group, "m2", "donor_chosen")
    assert str(choice["reason"]).startswith("m1 at ")
    assert compared(group, "m2")["equal"]


def test_a_data_folder_keeps_its_kind(group: LocalGroup) -> None:
    for name, before, after in ((NONE, "none", "kept"), ("m2", "kept", "none")):
        assert group.stop_member(name) == 0
        group.start_member(name, {"rows": after})
        assert group.processes.pop(name).wait(60) == USAGE
        line = (group.folder / f"{name}.log").read_text().splitlines()[-1]
        assert f"rows is '{after}': expected \"{before}\", as this data folder was begun" in line
        group.start_member(name)
        group.wait_online()
    assert_one_digest(group)


def test_it_is_left_out_where_a_lost_log_is_made_again(group: LocalGroup) -> None:
    """Its state alone has no transactions; it copies a member that goes on."""
    for name in (NONE, "m2", "m1"):
        assert group.stop_member(name) == 0
    group.log_server.kill()
    shutil.rmtree(group.folder / "log-server")
    group.log_server.start()
    words = ["log", "rebuild", *(str(group.folder / name) for name in ("m1", "m2"))]
    words += ["--group", "local", "--log-server", group.log_server.address]
    done = command(*words, str(group.folder / NONE))
    assert done.returncode == USAGE
    assert "leave it out, with --without" in done.stderr
    done = command(*words, "--without", NONE, "--yes")
    assert done.returncode == FINE, done.stderr
    for name in group.names:
        group.start_member(name)
    group.wait_online()
    assert_one_digest(group)
