"""Members that cannot go on by the log copy a donor's state, whatever happens to the donor.

Clients transfer amounts between the accounts of a bank while a member's disk is lost and the log is
trimmed; afterwards the members are compared with one another and with what the clients were told.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert import Client
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.applier.targets.rocksdb import CHECKPOINT_KEY
from groupcert.certifier.errors import NotServing
from groupcert.certifier.gtid import parse_gtid
from groupcert.certifier.storage.store import ROCKSDB_FOLDER, Family, Store, StoreIdentity
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.process.log_trimmer import trim_log
from groupcert.members.total_order.jetstream import JetStreamOptions
from groupcert.v1 import group_pb2
from tests.frozen import frozen
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.slow, pytest.mark.in_turns]

COMMITS = 200
FILL_BYTES = 4 << 20
SLOW = {"recovery_bytes_per_second_max": 1 << 20}
"""A donor that takes four seconds for `FILL_BYTES`, so that a test meets it in the midst of it."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[LocalGroup]:
    """Three members; those that a test has give slowly are started anew by it."""
    settings = {"stable_set_period_ms": 200, **SLOW}
    with LocalGroup(tmp_path, settings=settings, certification_logs=tmp_path / "logs") as group:
        yield group


def fill(group: LocalGroup) -> None:
    """Rows that make a copy take some time; they do not compress."""
    with Client(group.addresses["m1"]) as client:
        for number in range(FILL_BYTES // (64 << 10)):
            with client.transaction() as transaction:
                transaction.put(b"fill/%d" % number, os.urandom(64 << 10))


async def lose(group: LocalGroup, name: str) -> None:
    """A member and its disk are gone, and the log no longer begins at 1."""
    group.kill(name)
    shutil.rmtree(group.folder / name)
    await trim(group, group.status("m1").observer.log_sequence)


async def trim(group: LocalGroup, sequence: int) -> None:
    """Drops every message below a sequence."""
    await trim_log(JetStreamOptions(servers=(group.log_server.address,), group="local"), sequence)


def events_of(group: LocalGroup, name: str, event: str) -> list[dict[str, object]]:
    """What a member logged under a name."""
    lines = (group.folder / f"{name}.log").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [each for each in found if each["event"] == event]


def progress_of(group: LocalGroup, name: str) -> group_pb2.RecoveryProgress | None:
    """How far a member's copy is, if it has some of it."""
    try:
        status = group.status(name).observer
    except NotServing:
        return None
    if status.state == group_pb2.MEMBER_STATE_RECOVERING and status.recovery.bytes_done:
        return status.recovery
    return None


def assert_one_digest(group: LocalGroup) -> None:
    """All members come to have decided the same."""
    wait_for(
        "one digest",
        lambda: len({group.status(name).observer.digest for name in group.names}) == 1,
    )


def seeds(group: LocalGroup, *names: str) -> dict[str, object]:
    return {"seeds": [group.addresses[name] for name in names]}


async def test_a_member_without_its_disk_comes_back_by_copy_under_load(group: LocalGroup) -> None:
    load = BankLoad()
    fill(group)
    with load.running([group.addresses["m1"], group.addresses["m2"]], seed=1):
        load.wait_for_commits(COMMITS)
        await lose(group, "m3")
        group.start_member("m3", seeds(group, "m1", "m2"))
        progress = wait_for("a part of the copy", lambda: progress_of(group, "m3"))
        assert progress is not None
        assert progress.donor in ("m1", "m2")
        assert 0 < progress.bytes_done <= progress.bytes_total
        assert progress.bytes_total > FILL_BYTES
        group.wait_online()
        load.wait_for_commits(COMMITS)
    statuses = assert_whole(group, load)
    assert len({status.digest for status in statuses}) == 1
    assert len(events_of(group, "m3", "donor_chosen")) == 1
    assert len(events_of(group, "m3", "recovery_copied")) == 1
    left = {path.name for path in (group.folder / "m3").iterdir()}
    assert left == {ROCKSDB_FOLDER}, "nothing is left behind"
    again = BankLoad()
    assert group.stop_member("m3") == 0
    group.start_member("m3")
    group.wait_online()
    with again.running([group.addresses["m3"]], seed=2):
        again.wait_for_commits(COMMITS)
    assert_whole(group, again)


async def test_a_donor_that_is_killed_is_replaced_by_another(group: LocalGroup) -> None:
    load = BankLoad()
    fill(group)
    with load.running([group.addresses["m1"]], seed=3):
        load.wait_for_commits(COMMITS)
        await lose(group, "m3")
        # m1 has the clients, and one member of the two is to be killed: it is to be m2.
        group.start_member("m3", seeds(group, "m2"))
        wait_for("a part of the copy", lambda: progress_of(group, "m3"))
        (choice,) = events_of(group, "m3", "donor_chosen")
        donor = str(choice["reason"]).split()[0]
        group.kill(donor)
        other = {"m1": "m2", "m2": "m1"}[donor]
        wait_for(
            "another donor",
            lambda: any(
                str(each["reason"]).startswith(other)
                for each in events_of(group, "m3", "donor_chosen")
            ),
        )
        group.start_member(donor)
        group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)
    assert events_of(group, "m3", "copy_stream_broke")
    assert events_of(group, "m3", "donor_failed")


async def test_a_donor_that_stands_still_for_a_while_is_asked_for_the_rest(
    group: LocalGroup,
) -> None:
    """Longer than its reader waits for a chunk: the stream breaks, the copy does not begin anew.
    The joiner has its disk, and from there it knows whom to ask.
    """
    group.kill("m3")
    fill(group)
    await trim(group, group.status("m1").observer.log_sequence)
    group.start_member("m3")
    wait_for("a part of the copy", lambda: progress_of(group, "m3"))
    (choice,) = events_of(group, "m3", "donor_chosen")
    donor = group.processes[str(choice["reason"]).split()[0]]
    with frozen(donor.pid):
        wait_for("a broken stream", lambda: events_of(group, "m3", "copy_stream_broke"))
    group.wait_online()
    (broken, *_) = events_of(group, "m3", "copy_stream_broke")
    assert int(str(broken["bytes_done"])) > 0
    assert len(events_of(group, "m3", "donor_chosen")) == 1
    assert_one_digest(group)


async def test_a_joiner_that_is_stopped_or_killed_in_the_midst_of_it_begins_anew(
    group: LocalGroup,
) -> None:
    fill(group)
    await lose(group, "m3")
    group.start_member("m3", seeds(group, "m1"))
    wait_for("a part of the copy", lambda: progress_of(group, "m3"))
    assert group.stop_member("m3") == 0
    group.start_member("m3", seeds(group, "m1"))
    wait_for("a part of the copy", lambda: progress_of(group, "m3"))
    group.kill("m3")
    group.start_member("m3", seeds(group, "m1", "m2"))
    group.wait_online()
    assert_one_digest(group)


async def test_a_file_that_rots_at_the_donor_is_found_and_another_donor_asked(
    group: LocalGroup,
) -> None:
    fill(group)
    await lose(group, "m3")
    group.start_member("m3", seeds(group, "m1"))
    wait_for("a part of the copy", lambda: progress_of(group, "m3"))
    (choice,) = events_of(group, "m3", "donor_chosen")
    donor = str(choice["reason"]).split()[0]
    tables = list((group.folder / donor / "copies").glob(f"*/{ROCKSDB_FOLDER}/*.sst"))
    last = max(tables, key=lambda path: path.stat().st_size)
    content = bytearray(last.read_bytes())
    content[-1_000] ^= 1
    rotten = last.with_suffix(".rotten")
    rotten.write_bytes(content)
    rotten.rename(last)
    group.wait_online()
    (failed,) = events_of(group, "m3", "donor_failed")
    assert f"checksum of file {last.name}" in str(failed["cause"])
    assert len(events_of(group, "m3", "donor_chosen")) == 2
    assert_one_digest(group)


async def test_transactions_that_the_group_has_not_keep_a_member_out(group: LocalGroup) -> None:
    group.kill("m3")
    identity = StoreIdentity(group="local", member="m3")
    foreign = "ffffffff-ffff-ffff-ffff-ffffffffffff:7"
    with Store(group.folder / "m3", identity) as store:
        encoded = store.get(Family.DATA, CHECKPOINT_KEY)
        assert encoded is not None
        checkpoint = Checkpoint.decode(encoded)
        checkpoint.gtid_executed.add(parse_gtid(foreign))
        batch = store.batch()
        batch.put(Family.DATA, CHECKPOINT_KEY, checkpoint.encode())
        store.write(batch)
    fill(group)
    await trim(group, group.status("m1").observer.log_sequence)
    group.start_member("m3", seeds(group, "m1"))

    def fenced() -> str:
        if not events_of(group, "m3", "member_fenced"):
            return ""
        return group.status("m3").observer.reason

    reason = wait_for("a member that is fenced", fenced)
    assert reason.startswith("EXTRA_TRANSACTIONS: member m3 has executed")
    assert foreign in reason
    assert group.stop_member("m3") == 0
    with Store(group.folder / "m3", identity) as store:
        assert foreign in str(store.get(Family.DATA, CHECKPOINT_KEY)), "nothing was replaced"


async def test_a_member_without_a_donor_says_why_and_what_to_set(group: LocalGroup) -> None:
    await lose(group, "m3")
    for addresses, expected in (
        ([], "set seeds to addresses"),
        (
            ["127.0.0.1:1"],
            "no donor among 127.0.0.1:1 (127.0.0.1:1 at 127.0.0.1:1 is UNREACHABLE)",
        ),
    ):
        group.start_member("m3", {"seeds": addresses})
        assert group.processes.pop("m3").wait(120) == 3
        assert expected in (group.folder / "m3.log").read_text().splitlines()[-1]


async def test_a_member_that_was_paused_while_the_log_was_trimmed_comes_back(
    tmp_path: Path,
) -> None:
    with LocalGroup(tmp_path, members=3) as group:
        with frozen(group.processes["m3"].pid):
            for _ in range(12):  # More than the log sends ahead of who reads it.
                fill(group)
            await trim(group, group.status("m1").observer.log_sequence)
        wait_for("a copy", lambda: events_of(group, "m3", "recovery_copied"))
        group.wait_online()
        assert_one_digest(group)


async def test_a_long_log_is_read_where_nobody_gives_a_copy(group: LocalGroup) -> None:
    """All members were away, and one has much to read: nobody is ONLINE to be its donor."""
    fill(group)
    for name in group.names:
        group.kill(name)
    shutil.rmtree(group.folder / "m3")
    group.start_member("m3", {**seeds(group, "m1"), "recovery_log_messages_max": 5})
    wait_for(
        "a member that reads the log", lambda: len(events_of(group, "m3", "recovery_by_log")) >= 2
    )
    for name in ("m1", "m2"):
        group.start_member(name)
    group.wait_online()
    assert_one_digest(group)


async def test_a_long_log_is_not_read_where_somebody_gives_a_copy(group: LocalGroup) -> None:
    fill(group)
    group.kill("m3")
    shutil.rmtree(group.folder / "m3")
    group.start_member("m3", {**seeds(group, "m1"), "recovery_log_messages_max": 5})
    group.wait_online()
    assert events_of(group, "m3", "recovery_copied")
    (needed,) = events_of(group, "m3", "recovery_by_copy")
    assert "it reads 5 at most" in str(needed["reason"])
