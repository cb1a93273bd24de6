"""The rows of a replica's own store, as clients read them: a `serving.Current` of a replica.

The rule it keeps: a snapshot is a state that the store had between two commits, so that with a
scheme of any-time consistency it is one of the source's. A version counts as executed once nothing
before it is missing. Writes are refused: only the source orders them.

Threads: the replica opens and closes the store, and commits; all else is for the event loop.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from ...applier.queue.target_progress import Checkpoint
from ...applier.targets.rocksdb import RowsSnapshot
from ...certifier.errors import GroupcertError, NotServing
from ..core.held_versions import HeldVersions
from ..errors.calls import ReadOnlyReplica, VersionMissing
from ..host.loop_thread import LoopThread
from ..runtime.snapshots import Snapshots
from ..services.stopping import Stopping
from ..settings.member import MemberConfig

VERSION_SECONDS = 1.0
"""How long a reader waits for a version before it is told which one is here; clients ask again for
as long as they have time."""
EXPIRE_SECONDS = 1.0
LEASE_MS: int = MemberConfig.model_fields["snapshot_lease_ms"].default
SNAPSHOTS_MAX: int = MemberConfig.model_fields["snapshots_max"].default


class ReplicaReads:
    """What a replica serves to readers: its store while that is open."""

    def __init__(
        self,
        replica: str,
        loop: LoopThread,
        source: Callable[[], str],
        elsewhere: GroupcertError | None = None,
    ) -> None:
        """Serves on a loop.

        Args:
            source: Returns the address at which transactions are taken.
            elsewhere: Why the replica has no rows of its own; None: it has.
        """
        self.name = replica
        self.stopping = Stopping()
        self._loop = loop
        self._source = source
        self._elsewhere = elsewhere
        self._snapshots: Snapshots | None = None
        """None while the store is not open."""
        self._commits = self._version = self._waiting = 0
        self._news = asyncio.Event()

    def open(self, open_rows: Callable[[], RowsSnapshot], checkpoint: Checkpoint | None) -> None:
        """Serves the rows of a store that was opened; on the replica's thread."""
        self.note(checkpoint or Checkpoint())
        self._loop.run(self._open(open_rows))

    def note(self, checkpoint: Checkpoint) -> None:
        """Takes the checkpoint of a commit that is visible; on the thread that has committed."""
        self._commits += 1
        if not checkpoint.missing:
            self._version = checkpoint.version
        if self._waiting:
            self._loop.call_soon(self._news.set)

    def close(self) -> None:
        """Ends all snapshots, each of which holds the store open; on the replica's thread."""
        self._loop.run(self._close())

    def get(self) -> "ReplicaReads":
        """Returns itself. Raises NotServing while the store is not open; RowsAtServer if there is
        none.
        """
        if self._elsewhere is not None:
            raise self._elsewhere
        if self._snapshots is None:
            raise NotServing(member=self.name, state="without its store, which is opened again")
        return self

    def writable(self) -> NoReturn:
        """Raises ReadOnlyReplica."""
        raise ReadOnlyReplica(replica=self.name, source=self._source())

    def fencing(self) -> AbstractContextManager[None]:
        """Does nothing: the applier writes the same store, and ends the replica."""
        return nullcontext()

    @property
    def snapshots(self) -> Snapshots:
        """The open snapshots. Raises NotServing while the store is not open."""
        self.get()
        assert self._snapshots is not None, "it is open"
        return self._snapshots

    def now_ms(self) -> int:
        """Returns the milliseconds of a clock that never goes back."""
        return int(asyncio.get_running_loop().time() * 1000)

    def open_snapshot(self, caller: str, session_id: int) -> tuple[int, int]:
        """Opens a snapshot of all that is committed, see `Snapshots.open`."""
        return self.snapshots.open(
            self._commits, self.now_ms(), caller=caller, session_id=session_id
        )

    async def committed(self, version: int) -> None:
        """Waits until `version` and all before it are executed here.

        Raises:
            VersionMissing: They are not after `VERSION_SECONDS`.
            NotServing: The store was closed meanwhile.
        """
        self._waiting += 1
        try:
            async with asyncio.timeout(VERSION_SECONDS):
                while self.get()._version < version:
                    self._news.clear()
                    if self._version < version:  # Else it came before its thread saw who waits.
                        await self._news.wait()
        except TimeoutError:
            raise VersionMissing(member=self.name, version=self._version, wanted=version) from None
        finally:
            self._waiting -= 1

    async def _open(self, open_rows: Callable[[], RowsSnapshot]) -> None:
        # Ids differ in each run: what a client holds of an earlier one is no other's now.
        self._snapshots = Snapshots(
            open_rows,
            HeldVersions(0),
            lease_ms=LEASE_MS,
            snapshots_max=SNAPSHOTS_MAX,
            first_id=secrets.randbits(62),
        )
        self._expiring = asyncio.create_task(self._expire(self._snapshots))

    async def _close(self) -> None:
        snapshots, self._snapshots = self.snapshots, None
        snapshots.close_all()
        self._expiring.cancel()
        self._news.set()

    async def _expire(self, snapshots: Snapshots) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            snapshots.expire(self.now_ms())
