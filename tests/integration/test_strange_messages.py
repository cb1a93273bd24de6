"""Whoever writes to the log: what is no message of a member is skipped, and the group goes on.

Method: a real client of the log server publishes bytes to the group's subject, as anybody can who
reaches it, while clients transfer money at all three members.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import nats
import pytest

from groupcert import Client
from groupcert.certifier.errors import NotServing
from groupcert.internal.v1.log_pb2 import LogBatchHead
from groupcert.members.core.log_records import (
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    ViewProposal,
)
from groupcert.members.core.views import ViewMember
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.wire.log_batches import encode_batch
from groupcert.v1.group_pb2 import (
    MEMBER_STATE_FENCED,
    MEMBER_STATE_ONLINE,
    GroupStatus,
    MemberStatus,
)
from tests.integration.conftest import SETTINGS
from tests.integration.other_release import RELEASE_VARIABLE
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.in_turns]

STRANGER = ViewMember(name="m9", incarnation=9, address="127.0.0.1:9")
JUNK = GroupSettings(
    settings_version=2,
    group="",
    group_uuid="junk",
    gtid_assignment_block_size=0,
    gc_window="junk",
    write_set_items_max=0,
    outcomes_max=0,
)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalGroup]:
    """A group of one test's own."""
    with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=tmp_path / "logs") as group:
        yield group


@pytest.fixture
def unannounced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGroup]:
    """A group of a release whose members do not announce what they write."""
    monkeypatch.setenv(RELEASE_VARIABLE, "/0")
    module, logs = "tests.integration.other_release", tmp_path / "logs"
    with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=logs, module=module) as group:
        yield group


def publish(group: LocalGroup, payloads: Sequence[bytes]) -> list[int]:
    """Puts messages into the group's log; returns their places there."""

    async def publish_all() -> list[int]:
        client = await nats.connect(group.log_server.address)
        log = client.jetstream()
        places = [(await log.publish("groupcert.local.log", each)).seq for each in payloads]
        await client.close()
        return places

    return asyncio.run(publish_all())


def statuses(group: LocalGroup) -> list[MemberStatus]:
    return [group.status(name).observer for name in group.names]


def strange_messages(status: GroupStatus) -> list[bytes]:
    """Messages that ended all members, made of what a status tells."""
    view_id = status.view_id
    runs = {each.name: each.incarnation for each in status.members}
    own = LogBatch("m1", runs["m1"], 1_000)
    everybody_out = ViewProposal(view_id, ())
    forged = MemberReport(2**40, 2**40, 1, b"forged!!", 2**40)
    write = LoggedTransaction(b"", 0, [1], payload=b"\xff no changes")
    return [
        b"\xff bytes that are no batch",
        b"",
        LogBatchHead(format_version=7, member="m9", incarnation=9).SerializeToString(),
        LogBatchHead(format_version=7, member="m1", incarnation=runs["m1"]).SerializeToString(),
        encode_batch(LogBatch("m9", 9, 1, controls=[everybody_out])),
        encode_batch(LogBatch("m9", 9, 1, controls=[ViewProposal(view_id, (STRANGER,))])),
        encode_batch(LogBatch("m9", 9, 1, controls=[JUNK._replace(settings_version=1)])),
        encode_batch(LogBatch("m9", 9, 1, [LoggedTransaction(b"", 0, [1])])),
        encode_batch(own._replace(controls=[JUNK])),
        encode_batch(own._replace(controls=[everybody_out])),
        encode_batch(own._replace(controls=[forged])),
        encode_batch(own._replace(transactions=[write])),
        encode_batch(own._replace(member="m2")),
        encode_batch(own._replace(batch_number=2**63)),
    ]


def groupcert(*arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "groupcert.members", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_all_members_skip_what_is_no_message_of_a_member_and_go_on(three: LocalGroup) -> None:
    load = BankLoad()
    with load.running(list(three.addresses.values()), seed=6):
        load.wait_for_commits(50)
        messages = strange_messages(three.status("m1"))
        places = publish(three, messages)
        load.wait_for_commits(100)
        for address in three.addresses.values():
            with Client(address) as client:
                client.run(lambda transaction: transaction.put(b"after", b"1"))
    wait_for(
        "all members at one place",
        lambda: len({(each.log_sequence, each.digest) for each in statuses(three)}) == 1,
    )
    for group in map(three.status, three.names):
        assert [each.name for each in group.members] == list(three.names)
        status = group.observer
        assert status.state == MEMBER_STATE_ONLINE
        assert status.skipped_messages == len(messages)
        last = status.skipped_last
        assert (last.log_sequence, last.claimed_member) == (places[-1], "m1")
        assert last.why.startswith(f"batch {2**63} is more than 65536 after ")
    assert_whole(three, load)
    table = groupcert("status", three.addresses["m2"])
    assert f"{len(messages)} messages of the log were skipped" in " ".join(table.split())
    for name in three.names:
        lines = (three.folder / f"{name}.log").read_text().splitlines()
        assert sum('"log_message_skipped"' in line for line in lines) == len(messages)


def test_who_finds_messages_in_its_name_comes_back_as_another_run(three: LocalGroup) -> None:
    load = BankLoad()
    with load.running(list(three.addresses.values()), seed=7):
        load.wait_for_commits(50)
        (before,) = [each for each in three.status("m2").members if each.name == "m1"]
        forged = LogBatch("m1", before.incarnation, 10_000, [LoggedTransaction(b"", 0, [1])])
        publish(three, [encode_batch(forged)])

        def another_run() -> bool:
            runs = [each.incarnation for each in three.status("m2").members if each.name == "m1"]
            is_online = three.status("m1").observer.state == MEMBER_STATE_ONLINE
            return runs != [before.incarnation] and is_online

        wait_for("another run of m1", another_run)
        load.wait_for_commits(100)
        with Client(three.addresses["m1"]) as client:
            client.run(lambda transaction: transaction.put(b"after", b"1"))
    assert [each.skipped_messages for each in statuses(three)] == [0, 0, 0]
    assert "bears the mark of its run, and is not its own" in (three.folder / "m1.log").read_text()


def test_operators_have_a_message_skipped_that_nobody_can_read(unannounced: LocalGroup) -> None:
    """Members that have announced a format skip it by themselves."""
    three = unannounced
    with Client(three.addresses["m1"]) as client:
        client.run(lambda transaction: transaction.put(b"before", b"1"))
    (run,) = [each.incarnation for each in three.status("m1").members if each.name == "m2"]
    head = LogBatchHead(format_version=7, member="m2", incarnation=run, batch_number=99)
    (place,) = publish(three, [head.SerializeToString()])
    wait_for("all fenced", lambda: all(map(is_fenced, [three] * 3, three.names)))
    assert_says_how(three, place)
    assert three.stop_member("m3") == 0  # Another process finds its fence, and its log not open.
    three.start_member("m3")
    groupcert("group", "rejoin", "--unfence", three.addresses["m1"])
    wait_for("m1 to read it again", lambda: again(three, "m1") == 2 and is_fenced(three, "m1"))
    assert_says_how(three, place)

    wrong = ["group", "skip", str(place - 1), three.addresses["m1"]]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        groupcert(*wrong)
    assert f"it has read those to {place - 1}" in caught.value.stderr
    wait_for("m3 to answer", lambda: is_fenced(three, "m3"))
    said = groupcert("group", "skip", str(place), three.addresses["m3"])
    assert f"who cannot read message {place} of the log skips it" in said
    for name in three.names:
        groupcert("group", "rejoin", "--unfence", three.addresses[name])
    three.wait_online()
    with Client(three.addresses["m2"]) as client:
        client.run(lambda transaction: transaction.put(b"after", b"1"))
    three.kill("m3")
    shutil.rmtree(three.folder / "m3")
    three.start_member("m3")  # Reads the log from its beginning, and finds the record as well.
    three.wait_online()
    wait_for("one digest", lambda: len({each.digest for each in statuses(three)}) == 1)
    for status in statuses(three):
        last = status.skipped_last
        assert (status.skipped_messages, last.log_sequence) == (1, place)
        assert last.why == "nobody could read it, and operators had it skipped"
    refused = ["group", "skip", str(place + 100), three.addresses["m1"]]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        groupcert(*refused)
    assert "m1 is ONLINE" in caught.value.stderr
    whole = ("--log-server", three.log_server.address, "--group", "local", "--json")
    exported = json.loads(groupcert("export", *whole, "--out", str(three.folder / "exported")))
    assert exported["kinds"]["transaction"] == 2, "the clients' two, before and behind the message"


def is_fenced(group: LocalGroup, name: str) -> bool:
    """Whether a member answers that it is; one that is starting does not."""
    with suppress(NotServing):
        return group.status(name).observer.state == MEMBER_STATE_FENCED
    return False


def again(group: LocalGroup, name: str) -> int:
    """How often a member has fenced itself."""
    return (group.folder / f"{name}.log").read_text().count('"member_fenced"')


def assert_says_how(group: LocalGroup, place: int) -> None:
    reason = group.status("m1").observer.reason
    assert reason.startswith(f"UNREADABLE_MESSAGE: message {place} of the log cannot be read (")
    assert f"`groupcert group skip {place}` at this one" in reason
