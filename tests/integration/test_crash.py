"""SIGKILL while clients write: nothing acknowledged is lost, nothing counts twice, members agree.

Clients transfer amounts between the accounts of a bank. After each crash the members are compared
with one another and with what the clients were told, by the checks of `groupcert demo`.
"""

import pytest

from groupcert import Client
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.total_order.jetstream import JetStreamOptions, JetStreamOrder
from tests.integration.waiting import wait_for
from tests.laboratory.bank_load import BankLoad, assert_whole

pytestmark = pytest.mark.slow

COMMITS = 100
"""Acknowledged before, between and after what a test breaks."""


def addresses_of(group: LocalGroup) -> list[str]:
    """Where clients may go, the first member first."""
    return list(group.addresses.values())


def test_a_killed_member_comes_back_and_has_everything(group: LocalGroup) -> None:
    """`tests/checker` kills others, at moments that a seed draws."""
    load = BankLoad()
    with load.running(addresses_of(group), seed=1):
        load.wait_for_commits(COMMITS)
        group.kill("m2")
        load.wait_for_commits(COMMITS)
        group.start_member("m2")
        group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)


def test_commits_resume_after_the_log_server_was_killed(group: LocalGroup) -> None:
    load = BankLoad()
    with load.running(addresses_of(group), seed=4):
        load.wait_for_commits(COMMITS)
        group.log_server.kill()
        with Client(group.addresses["m1"]) as client, client.transaction() as transaction:
            assert transaction.get(load.bank.account(0)) is not None, "reads go on"
        wait_for("an outage", lambda: group.status("m1").observer.log_unacknowledged_ms > 1_000)
        group.log_server.start()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)


def test_everything_killed_at_once_starts_again_with_everything(group: LocalGroup) -> None:
    load = BankLoad()
    with load.running(addresses_of(group), seed=5):
        load.wait_for_commits(COMMITS)
        for name in group.names:
            group.processes[name].kill()
        group.log_server.kill()
        for name in group.names:
            group.kill(name)
        group.log_server.start()
        for name in group.names:
            group.start_member(name)
        group.wait_online()
        load.wait_for_commits(COMMITS)
    assert_whole(group, load)


async def test_a_stopped_member_starts_from_its_store_alone(group: LocalGroup) -> None:
    """What it has executed is trimmed from the log, so that it cannot read it there."""
    load = BankLoad()
    with load.running(addresses_of(group), seed=6):
        load.wait_for_commits(COMMITS)
    before = assert_whole(group, load)[2]
    assert group.stop_member("m3") == 0
    await trim_log(group, before.log_sequence)
    group.start_member("m3")
    group.wait_online()
    after = assert_whole(group, load)[2]
    assert after.gtid_executed == before.gtid_executed
    assert after.transactions_applied < before.committed_version


async def trim_log(group: LocalGroup, sequence: int) -> None:
    """Drops every message below a sequence."""
    order = JetStreamOrder(JetStreamOptions(servers=(group.log_server.address,), group="local"))
    try:
        await order.open(create=False)
        await order.trim(sequence)
        state = await order.state()
        assert state.first_sequence == sequence
    finally:
        await order.close()
