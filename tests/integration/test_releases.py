"""Members of two releases in one group: they write what both read, until all are of the later one.

Method: real processes, of which some announce and write one format more (`other_release.py`), while
clients transfer money at all of them; and a client of the log server that reads what is in the log.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from groupcert.internal.v1.log_pb2 import LogBatchHead
from groupcert.members.demo.local_group import LocalGroup
from tests.commands import groupcert
from tests.integration.conftest import SETTINGS
from tests.integration.other_release import RELEASE_VARIABLE
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.in_turns]

EARLIER, LATER = "1.0/2", "1.1/3"
UNAVAILABLE = 3


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalGroup]:
    """A group of the earlier release."""
    monkeypatch.setenv(RELEASE_VARIABLE, EARLIER)
    module, logs = "tests.integration.other_release", tmp_path / "logs"
    with LocalGroup(tmp_path, settings=SETTINGS, certification_logs=logs, module=module) as group:
        yield group


def test_a_group_goes_over_to_a_later_format_when_all_of_its_members_read_it(
    three: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = BankLoad()
    with load.running(list(three.addresses.values()), seed=8):
        load.wait_for_commits(50)
        monkeypatch.setenv(RELEASE_VARIABLE, LATER)
        restart(three, "m1")
        load.wait_for_commits(50)
        assert releases(three) == {"m1": ("1.1", 3), "m2": ("1.0", 2), "m3": ("1.0", 2)}
        assert three.status("m1").format_version == 2
        assert "the group writes format 2 of the log" in table(three, "m1")
        assert formats(three) == {2}

        restart(three, "m2")
        three.stop_member("m3")
        load.wait_for_commits(50)
        assert three.status("m1").format_version == 3, "of the view without m3"
        assert formats(three) == {2, 3}

        monkeypatch.setenv(RELEASE_VARIABLE, EARLIER)
        assert refused(three, "m3", "the view was read") == 1
        monkeypatch.setenv(RELEASE_VARIABLE, LATER)
        three.start_member("m3")
        three.wait_online()
        assert releases(three) == dict.fromkeys(three.names, ("1.1", 3))

        three.stop_member("m3")
        monkeypatch.setenv(RELEASE_VARIABLE, EARLIER)
        assert refused(three, "m3", "its own state is of the later release") == 2
        monkeypatch.setenv(RELEASE_VARIABLE, LATER)
        three.start_member("m3")
        three.wait_online()
        load.wait_for_commits(50)
    for status in assert_whole(three, load):
        assert status.skipped_messages == 0


def restart(group: LocalGroup, name: str) -> None:
    """Starts a member again, of the release that there is now."""
    assert group.stop_member(name) == 0
    group.start_member(name)
    group.wait_online()


def refused(group: LocalGroup, name: str, why: str) -> int:
    """Starts a member that has to end by itself; returns how often it has said what to do."""
    group.start_member(name)
    process = group.processes.pop(name)
    wait_for(f"{name} to end, as {why}", lambda: process.poll() is not None)
    assert process.poll() == UNAVAILABLE
    text = (group.folder / f"{name}.log").read_text()
    assert "m1 runs 1.1, m2 runs 1.1" in text
    assert '"member_fenced"' not in text
    return text.count("m3 runs release 1.0, which reads formats of the log to 2; the group writes")


def releases(group: LocalGroup) -> dict[str, tuple[str, int]]:
    """What each member of the view has announced, as all of the view have it."""
    found = [
        {each.name: (each.release, each.format_version) for each in group.status(name).members}
        for name in group.names
    ]
    assert found == [found[0]] * len(found)
    return found[0]


def table(group: LocalGroup, name: str) -> str:
    """The status as people read it."""
    return " ".join(groupcert("status", group.addresses[name]).stdout.split())


def formats(group: LocalGroup) -> set[int]:
    """The formats of the messages in the log."""

    async def read() -> set[int]:
        client = await nats.connect(group.log_server.address)
        log = client.jetstream()
        last = (await log.stream_info("GROUPCERT_local")).state.last_seq
        found = set()
        for sequence in range(1, last + 1):
            message = await log.get_msg("GROUPCERT_local", sequence)
            found.add(LogBatchHead.FromString(message.data or b"").format_version)
        await client.close()
        return found

    return asyncio.run(read())
