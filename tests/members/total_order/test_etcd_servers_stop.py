"""What the etcd adapter does when one of three servers dies, stands still or is cut off."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from groupcert.certifier.errors import LogServerUnavailable
from groupcert.members.total_order.etcd import EtcdOptions, EtcdOrder
from groupcert.members.total_order.port import Delivery
from groupcert.members.total_order.server_health import LogServerState
from tests.certificates import Authority
from tests.frozen import frozen
from tests.log_servers import EtcdServers, running_etcd
from tests.members.total_order.test_etcd import opened
from tests.members.total_order.test_port import payloads_of, publish_all, read_until, told_state
from tests.waiting import until

pytestmark = [pytest.mark.etcd, pytest.mark.slow]

KILLS = 3
MESSAGES_BETWEEN = 30


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdServers]:
    """Three servers."""
    with running_etcd(tmp_path) as servers:
        yield servers


def options_of(servers: EtcdServers) -> EtcdOptions:
    return EtcdOptions(servers=servers.addresses, group="stops", replicas=3, connect_ms_max=60_000)


async def leader_of(order: EtcdOrder) -> str:
    await until(lambda: order.health().leader)
    return order.health().leader


async def another_leads(order: EtcdOrder, former: str) -> None:
    await until(lambda: order.health().leader not in {"", former})


async def others_are_current(order: EtcdOrder, name: str) -> None:
    """Returns when all servers but that one have all of the log."""
    await until(
        lambda: [each.name for each in order.health().servers if not each.is_current] == [name]
    )


class Load:
    """Messages published one after the other, and what a reader saw of them."""

    def __init__(self, order: EtcdOrder) -> None:
        self._order = order
        self.sent: list[bytes] = []
        self.seen: list[Delivery] = []
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._read())]

    @property
    def acknowledged(self) -> int:
        return len(self.sent) - self._order.publishing()

    async def more(self, count: int = MESSAGES_BETWEEN) -> None:
        """Returns when so many more messages were acknowledged."""
        wanted = self.acknowledged + count
        await until(lambda: self.acknowledged >= wanted)

    async def end(self) -> None:
        """Returns when all that was sent is acknowledged, and was read."""
        self._tasks[0].cancel()
        await until(lambda: not self._order.publishing())
        await until(lambda: len(self.seen) >= len(self.sent))
        self._tasks[1].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            while self._order.publishing() < 4:
                self.sent.append(b"message %d" % len(self.sent))
                self._order.publish(self.sent[-1].decode(), self.sent[-1])
            await asyncio.sleep(0.002)

    async def _read(self) -> None:
        async with aclosing(self._order.read(1)) as reading:
            async for deliveries in reading:
                self.seen += deliveries


async def test_nothing_acknowledged_is_lost_or_doubled_with_killed_leaders(
    three: EtcdServers,
) -> None:
    async with opened(options_of(three)) as order, opened(options_of(three)) as another:
        load, other_seen = Load(order), asyncio.create_task(read_until(another, 1, 1 << 30))
        for _ in range(KILLS):
            await load.more()
            leader = await leader_of(order)
            await asyncio.to_thread(three.kill, leader)
            await load.more()
            await another_leads(order, leader)
            await others_are_current(order, leader)
            await asyncio.to_thread(three.start, leader)
            await asyncio.to_thread(three.wait_ready)
        await load.end()
        expected = [Delivery(1 + each, payload) for each, payload in enumerate(load.sent)]
        assert load.seen == expected
        other_seen.cancel()
        assert await read_until(another, 1, len(expected)) == expected


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
async def test_members_of_a_server_that_stands_still_go_on_at_another(
    three: EtcdServers, is_leader: bool
) -> None:
    """Its connections stay, and nothing says that it will not answer."""
    async with opened(options_of(three)) as order:
        load = Load(order)
        await load.more()
        leader = await leader_of(order)
        current = three.name_of(order._connection.current)
        name = leader if is_leader or current == leader else current
        with frozen(three.processes[name].pid):
            await load.more()
            seen = len(load.seen)
            await until(lambda: len(load.seen) > seen + MESSAGES_BETWEEN)
            await until(
                lambda: LogServerState.SILENT in {each.state for each in order.health().servers}
            )
        await until(
            lambda: {each.state for each in order.health().servers} == {LogServerState.CURRENT}
        )
        await load.end()
        assert [each.payload for each in load.seen] == load.sent


async def test_without_a_majority_nothing_is_taken_and_nothing_is_lost(three: EtcdServers) -> None:
    async with opened(options_of(three)) as order:
        await publish_all(order, payloads_of(3))
        reading = asyncio.create_task(read_until(order, 1, 4))
        for name in ("log1", "log2"):
            three.kill(name)
        order.publish("waits", b"waits")
        await until(lambda: not order.health().leader)
        await until(order.refusal)
        assert order.publishing() == 1
        short = EtcdOrder(replace(options_of(three), connect_ms_max=500))
        with pytest.raises(LogServerUnavailable):
            await short.open(create=False)
        for name in ("log1", "log2"):
            three.start(name)
        assert (await reading)[-1] == Delivery(4, b"waits")
        await until(lambda: not order.publishing())
        assert order.refusal() == ""


async def test_everything_speaks_tls_where_it_is_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    tls, own = authority.issue("etcd"), authority.issue("member")
    flags = (
        "--cert-file",
        str(tls.certificate),
        "--key-file",
        str(tls.key),
        "--client-cert-auth",
        "--trusted-ca-file",
        str(tls.authority),
    )
    with running_etcd(tmp_path / "etcd", 1, flags=flags, scheme="s") as servers:
        options = EtcdOptions(
            servers=servers.addresses, group="tls", tls=own, connect_ms_max=60_000
        )
        async with opened(options) as order:
            await publish_all(order, payloads_of(3))
            assert len(await read_until(order, 1, 3)) == 3
            assert (await told_state(order)).durable is True
            authority.issue("member")  # Renewed, in the same files.
            await until(lambda: order._connection._retired)
            await publish_all(order, payloads_of(5)[3:])
            assert len(await read_until(order, 1, 5)) == 5
        foreign = Authority(tmp_path / "foreign").issue("etcd")
        with pytest.raises(LogServerUnavailable):
            await EtcdOrder(replace(options, tls=foreign, connect_ms_max=500)).open(create=False)
