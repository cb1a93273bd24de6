"""One contract on all that keeps a member's rows: its store, a PostgreSQL server, the simulation's;
and on what takes its place where nothing does.

Entries are given in order, some once more; what keeps the rows is closed, or crashes and loses what
was not on disk, and is opened again. Whenever one looks, it has the rows of a prefix of the
entries, and says which one.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import psycopg
import pytest

from groupcert.applier.queue.relay_group import RelayEntry
from groupcert.applier.queue.target_progress import Checkpoint
from groupcert.certifier.errors import GroupcertError
from groupcert.certifier.gtid import Gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.core.views import ViewMember
from groupcert.members.postgresql.attachment import attach
from groupcert.members.postgresql.server import RowsServer
from groupcert.members.runtime.row_store import RowStore
from groupcert.members.runtime.runtime import MemberRuntime
from groupcert.v1.transaction_pb2 import Changes
from tests import servers
from tests.members.process.test_lifecycle import config_of
from tests.sim.disk import SimulatedDisk
from tests.sim.member import SimulatedMember
from tests.sim.memory_order import MemoryLog, MemoryOrder
from tests.sim.settings import first_settings
from tests.waiting import until

SOURCE = "6f1c2d3e-0000-4000-8000-00000000abcd"
KEYS, ENTRIES, RUNS = 6, 240, 8
ME = ViewMember(name="m1", incarnation=1, address="127.0.0.1:1")
SCHEMA = "CREATE TABLE t (id int PRIMARY KEY, value text)"

Rows = dict[bytes, bytes]


class Run(NamedTuple):
    """A run on what keeps rows; `settle` has all that was given executed."""

    rows: RowStore
    found: Callable[[], Rows] | None
    """None: it has no rows."""
    settle: Callable[[], None]


class Kept(Protocol):
    """Something that keeps rows, between two runs."""

    def run(self) -> AbstractAsyncContextManager[Run]:
        """Opens it, until the block ends."""

    def crash(self, dice: random.Random) -> None:
        """Has it lose what is not on disk, as far as a test can."""


class InStore:
    """A member's own store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        runtime = _runtime(self._folder)
        try:
            rows = runtime.rows
            yield Run(rows, lambda: dict(rows.open_snapshot().scan()), lambda: None)
        finally:
            runtime.close()

    def crash(self, dice: random.Random) -> None:
        """What is killed with its machine is tried by `tests/members/recovery`."""


class AtServer:
    """A PostgreSQL server, which is killed."""

    def __init__(self, folder: Path, server: servers.PostgreSqlServer) -> None:
        self._folder = folder
        self._server = server

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        server = await RowsServer.open(self._server.dsn)
        try:
            runtime = _runtime(self._folder, server)
            try:
                yield Run(runtime.rows, self._found, lambda: None)
            finally:
                runtime.close()
        finally:
            await server.close("")

    def _found(self) -> Rows:
        with psycopg.connect(self._server.dsn) as session:
            return dict(_row(*row) for row in session.execute("SELECT id, value FROM t"))

    def crash(self, dice: random.Random) -> None:
        self._server.kill()
        self._server.start()
        self._server.wait_ready()


class Nowhere:
    """A member without rows: it goes on where its state is, which is not moved here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        runtime = _runtime(self._folder, rows="none")
        try:
            yield Run(runtime.rows, None, lambda: None)
        finally:
            runtime.close()

    def crash(self, dice: random.Random) -> None:
        """It has nothing to lose."""


class Simulated:
    """The simulation's disk, which forgets."""

    def __init__(self) -> None:
        self._disk = SimulatedDisk()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        member = SimulatedMember(
            ME,
            first_settings(random.Random(1)),
            self._disk,
            Nobody(),
            workers=3,
            unreachable_ms=0,
            clock=lambda: 0,
        )
        rows = member.rows
        yield Run(rows, lambda: dict(rows.open_snapshot().scan()), member.applier.drain)

    def crash(self, dice: random.Random) -> None:
        self._disk.crash(dice.randint(0, self._disk.unsynced))


class Nobody:
    """An observer."""

    def delivered(self, member: object, message: object) -> None:
        """Does not look."""

    def committed(self, member: object) -> None:
        """Does not look."""


@pytest.fixture(
    params=["store", "simulation", "nowhere", pytest.param("server", marks=pytest.mark.database)]
)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    match request.param:
        case "store":
            yield InStore(tmp_path)
        case "simulation":
            yield Simulated()
        case "nowhere":
            yield Nowhere(tmp_path)
        case _:
            with (
                servers.where_installed(),
                servers.PostgreSqlServer(tmp_path / "postgresql") as server,
            ):
                with psycopg.connect(server.dsn) as session:
                    session.execute(SCHEMA)
                attach(server.dsn, ["public.*"])
                yield AtServer(tmp_path, server)


async def test_what_is_visible_is_a_prefix_which_is_known(kept: Kept) -> None:
    dice = random.Random(7)
    entries, states = history(dice)
    given = 0
    newest: int | None = 0  # What has to be there; None: nobody knows.
    for number in range(RUNS):
        async with kept.run() as run:
            checkpoint = run.rows.checkpoint() or Checkpoint()
            assert newest in (None, checkpoint.version)
            check(run, entries, states)
            # Some are given once more: a member reads the log again from where its state is.
            first = dice.randint(0, places(entries, checkpoint.version))
            given = len(entries) if number == RUNS - 1 else dice.randint(given, len(entries))
            while first < given:
                behind = min(given, first + dice.choice((1, 3, 20)))
                run.rows.append(entries[first:behind])
                first = behind
                if dice.random() < 0.3:
                    check(run, entries, states)
            run.settle()
            newest = None
            if dice.random() < 0.7 or number == RUNS - 1:
                newest = version_at(entries, given)
                await until(lambda: version_of(run) == newest)  # noqa: B023
                check(run, entries, states)
        if isinstance(kept, Nowhere) or dice.random() < 0.5:
            newest = None
            kept.crash(dice)


async def test_where_rows_are_read(kept: Kept) -> None:
    """A store has snapshots; who has none says where to read."""
    refusals = {AtServer: "use SQL there", Nowhere: "m1 keeps no rows"}
    async with kept.run() as run:
        if type(kept) in refusals:
            for read in (run.rows.open_snapshot, lambda: run.rows.check_readable("m1")):
                with pytest.raises(GroupcertError, match=refusals[type(kept)]):
                    read()
            return
        run.rows.check_readable("m1")
        before = run.rows.open_snapshot()
        entries, _ = history(random.Random(1))
        run.rows.append(entries)
        run.settle()
        await until(lambda: version_of(run) == entries[-1].version)
        assert not dict(before.scan()) and dict(run.rows.open_snapshot().scan())


def history(dice: random.Random) -> tuple[list[RelayEntry], list[Rows]]:
    """Entries, views among them, and the rows at each version."""
    entries: list[RelayEntry] = []
    states: list[Rows] = [{}]
    for position in range(1, ENTRIES + 1):
        version = len(states) - 1
        if dice.random() < 0.1:
            entries.append(RelayEntry.view_change(position, version, view_id=position))
            continue
        rows, changes = dict(states[-1]), Changes()
        for number in dice.sample(range(KEYS), dice.randint(1, 3)):
            key, value = _row(number, f"{position}")
            if dice.random() < 0.3:
                changes.delete_keys.append(key)
                rows.pop(key, None)
            else:
                changes.put_keys.append(key)
                changes.put_values.append(value)
                rows[key] = value
        states.append(rows)
        stamps = (version, version + 1)
        gtid = Gtid(SOURCE, version + 1)
        payload = changes.SerializeToString()
        entries.append(RelayEntry(position, version + 1, gtid, *stamps, False, payload))
    return entries, states


def check(run: Run, entries: Sequence[RelayEntry], states: Sequence[Rows]) -> None:
    """The rows are those of a version that was visible while one looked; it is known, and so are
    its GTIDs and its place.
    """
    before = version_of(run)
    rows = run.found() if run.found else None
    checkpoint = run.rows.checkpoint() or Checkpoint()
    assert rows is None or rows in states[before : checkpoint.version + 1]
    executed = GtidSet()
    for number in range(1, checkpoint.version + 1):
        executed.add_number(SOURCE, number)
    assert checkpoint.gtid_executed == executed
    first = places(entries, checkpoint.version - 1)
    positions = [each.position for each in entries[first:] if each.version == checkpoint.version]
    assert checkpoint.version == 0 or checkpoint.position in positions


def version_of(run: Run) -> int:
    """The newest version that is visible."""
    return (run.rows.checkpoint() or Checkpoint()).version


def version_at(entries: Sequence[RelayEntry], count: int) -> int:
    """The version of the last of so many entries."""
    return entries[count - 1].version if count else 0


def places(entries: Sequence[RelayEntry], version: int) -> int:
    """How many entries have a version or an older one."""
    return sum(each.version <= version for each in entries)


def _runtime(folder: Path, server: RowsServer | None = None, **settings: object) -> MemberRuntime:
    log = MemoryLog("g")
    log.create()
    config = config_of(folder / "data", create_log=False, **settings)
    return MemberRuntime(config, MemoryOrder(log), lambda state: None, server=server)


def _row(number: int, value: str) -> tuple[bytes, bytes]:
    text = json.dumps({"id": number, "value": value}, separators=(",", ":"))
    return f"public.t/{number}".encode(), text.encode()
