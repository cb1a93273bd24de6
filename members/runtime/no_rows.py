"""What takes the place of rows at a member that keeps none: it certifies, votes, keeps its state.

A third site gives two others a majority; for that it needs no disk for rows, and no time to execute
changes. The rule it keeps: what is certified counts as visible, so that the group never waits for
this member; it is as far as its stored state is, and a restart reads the log from there.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import NoReturn, Protocol

from ...applier.engine.applier import ApplierState, ApplierStatus
from ...applier.queue.relay_group import RelayEntry, RelayGroup
from ...applier.queue.target_progress import Checkpoint
from ...certifier.position import position_of
from ..core.member import Member
from ..errors.membership import NotComparable, RowsNotKept
from .row_comparison import ComparedRow


class Takes(Protocol):
    """A driver, as `NoRows` uses it."""

    def on_committed(self, version: int, position: int, /) -> None:
        """Takes the newest version that is visible, and its position."""


class Flushes(Protocol):
    """A `DurabilityFlusher`, as `NoRows` uses it."""

    def request(self, version: int, /) -> None:
        """Has the store flushed once `version` is visible."""


class NoComparison:
    """What takes the place of a `RowComparison`: the group does not ask a member without rows."""

    def __init__(self, member: str) -> None:
        self._member = member

    def committed(self, position: int) -> None:
        """Does nothing."""

    def forget(self, *, is_settled: bool) -> None:
        """Does nothing."""

    def read(
        self, position: int, ranges: Collection[int], start: bytes
    ) -> "Future[tuple[list[ComparedRow], bytes | None]]":
        """Returns a future that raises NotComparable."""
        del position, ranges, start
        found: Future[tuple[list[ComparedRow], bytes | None]] = Future()
        problem = f"{self._member} keeps none: ask a member that was compared"
        found.set_exception(NotComparable(problem=problem))
        return found


class NoRows:
    """One run of a member that keeps no rows."""

    def __init__(self, member: Member, driver: Takes, flusher: Flushes) -> None:
        """Begins where the state of `member` is, once that is loaded."""
        self.comparison = NoComparison(member.me.name)
        self._member = member
        self._driver = driver
        self._flusher = flusher
        self._done: Checkpoint | None = None
        self._committed_total = 0

    def checkpoint(self) -> Checkpoint:
        """Returns all that was certified up to the last entry, or up to the loaded state."""
        if self._done is None:
            certifier = self._member.certifier
            self._done = Checkpoint(
                version=certifier.window.newest_version,
                position=position_of(self._member.log_sequence, 0),
                gtid_executed=certifier.executed(),
            )
        return self._done

    def start(self) -> None:
        """Does nothing."""

    def recover(self, groups: Iterable[Sequence[RelayEntry]]) -> None:
        """Looks through what an earlier run has stored, which is nothing."""
        deque(groups, maxlen=0)

    def append(self, entries: Sequence[RelayEntry]) -> None:
        """Counts entries as visible; those that it has counted are skipped."""
        done, group = self.checkpoint(), RelayGroup.of(entries)
        if not group or group.positions[-1] <= done.position:
            return
        executed = done.gtid_executed.copy()
        for source, number in zip(group.sources, group.numbers, strict=True):
            if source:
                executed.add_number(source, number)
                self._committed_total += 1
        version, position = group.versions[-1], group.positions[-1]
        self._done = Checkpoint(version=version, position=position, gtid_executed=executed)
        self._driver.on_committed(version, position)

    def expect_comparison(self, position: int) -> None:
        """Does nothing: the group compares the rows of those that have some."""

    def check_readable(self, member: str) -> NoReturn:
        """Raises RowsNotKept, with the members of the view that have rows."""
        others = [each for each in self._member.view.members if not each.without_rows]
        named = ", ".join(f"{each.name} at {each.address}" for each in others)
        raise RowsNotKept(member=member, others=named or "once it has joined")

    def open_snapshot(self) -> NoReturn:
        """Raises RowsNotKept, as `check_readable`."""
        self.check_readable(self._member.me.name)

    def lasting(self, position: int) -> int:
        """Returns the position: nobody executes entries, so nobody needs them again."""
        return position

    def flush_up_to(self, version: int) -> None:
        """Has the store flushed, for the state in it."""
        self._flusher.request(version)

    def status(self) -> ApplierStatus:
        """Returns the number of transactions that were certified; none waits."""
        return ApplierStatus(
            state=ApplierState.RUNNING,
            committed_total=self._committed_total,
            checkpoint=self.checkpoint(),
        )

    def server_status(self) -> None:
        """Returns None: there is no server."""

    def relay_first_version(self) -> int:
        """Returns 0: a copy has no changes."""
        return 0

    def stop(self, seconds: float) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
