"""What follows from the log about members: how far each is, who is silent or gone, who differs.

`ProgressReports`, `ReportSchedule`: a member reports at least once a period, even without news,
because others notice by its silence that it is gone; and earlier if a commit waits for its news.

`Suspicions`: a member's silence is measured between messages of our own that went through the log.
So no member is suspected because the log was away, or because this process was: neither an election
among log servers nor a process that stood still makes others look dead.

`Departures`: a view lists who is there. Without this list a member that died is gone from every
status as soon as it is expelled, and a group of three that has become a group of two looks as
healthy as before.

`DigestVote`: a member whose digest differs from that of half of the view or more cannot be trusted,
and stops. With two members it is unknown which of them is right: both stop.

`BatchNumbers`: a batch counts once, because its number has to be above the last one read of its
run. It may be above it by at most `NUMBERS_AHEAD_MAX`, as many as can be on their way: otherwise
one forged batch with a huge number would make all that its run sends later a repetition.

`SkippedMessages`: the count of messages that are no valid ones of a member; every member that has
read as far has the same, after a restart and in a copy, too. Pure.
"""

from collections.abc import Container, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from ...certifier.errors import DigestMismatch, quoted
from .group_settings import is_name
from .log_records import LogBatch, MemberReport, ViewProposal
from .views import View, ViewMember

DEPARTED_MAX = 100
"""Names that are kept; beyond that, those that have been away for longest are forgotten."""

SINCE_US_MAX = 1 << 53
"""A time in the year 2255, later than any clock says."""
DIGESTS_KEPT = 4096
"""Log messages whose digest is kept, to be compared with what other members report."""
SILENT_MS_MIN = 2_500
"""Milliseconds; a shorter silence is not reported, however often a member has to report."""
NUMBERS_AHEAD_MAX = 65_536
"""How far a number may be above the last one read of its run. Numbers are left out where batches
were overtaken, and fewer than `total_order.PUBLISHING_MAX` of them are on their way."""
GONE_MAX = 64
"""Runs that are remembered after they left the view: their batches still on the way are late, not
invalid. These two limits are part of what members agree on: no setting changes them."""


class Skipped(NamedTuple):
    """A message that was skipped."""

    log_sequence: int
    why: str
    claimed_member: str
    """The member that it claims to be of, which may be a lie; quoted if it is no valid name, empty
    if there is none."""


class SkippedMessages:
    """How many messages were skipped since the group was made, and the last one."""

    def __init__(self) -> None:
        self.total = 0
        self.last = Skipped(0, "", "")

    def note(self, log_sequence: int, why: str, claimed_member: str) -> Skipped:
        """Adds the next one, and returns it."""
        self.total += 1
        if claimed_member and not is_name(claimed_member):
            claimed_member = quoted(claimed_member)
        self.last = Skipped(log_sequence, why, claimed_member)
        return self.last

    def dump(self) -> tuple[int, int, str, str]:
        """Returns JSON values; see `restore`."""
        return self.total, *self.last

    def restore(self, dumped: Sequence[int | str]) -> None:
        """Replaces the count by what was dumped."""
        total, log_sequence, why, claimed_member = dumped
        self.total = int(total)
        self.last = Skipped(int(log_sequence), str(why), str(claimed_member))


class BatchNumbers:
    """The numbers of all runs in the view."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._gone: list[int] = []

    def last(self, incarnation: int) -> int | None:
        """Returns the number of the last batch read of the run; None if it is not in the view."""
        return self._last.get(incarnation)

    def has_left(self, incarnation: int) -> bool:
        """Returns whether the run was in the view until lately."""
        return incarnation in self._gone

    def is_repeated(self, incarnation: int, number: int) -> bool:
        """Returns whether a batch was read before, or overtaken by a later one of its run."""
        return number <= self._last.get(incarnation, -1)

    def take(self, incarnation: int, number: int) -> None:
        """Notes that batch `number` of a run was read; ignores runs that are not in the view."""
        if incarnation in self._last:
            self._last[incarnation] = number

    def change_view(self, here: Iterable[int], number: int) -> None:
        """Notes a new view with the runs `here`; new ones have joined with the batch `number`."""
        before, self._last = self._last, {each: self._last.get(each, number) for each in here}
        gone = [*self._gone, *(each for each in before if each not in self._last)]
        self._gone = gone[-GONE_MAX:]

    def dump(self) -> list[tuple[int, int]]:
        """Returns the last numbers as JSON values; see `restore`."""
        return list(self._last.items())

    def dump_gone(self) -> list[int]:
        """Returns the runs that left as JSON values."""
        return list(self._gone)

    def restore(self, last: Iterable[tuple[int, int]], gone: Iterable[int]) -> None:
        """Replaces the numbers by those that were dumped."""
        self._last = dict(last)
        self._gone = list(gone)


class Suspicions:
    """The silence of each run of a member, measured while our own messages went through."""

    def __init__(self, gap_ms_max: int) -> None:
        """Counts a gap between two of our messages as at most `gap_ms_max`."""
        self._gap_ms_max = gap_ms_max
        self._silent_ms_min = max(SILENT_MS_MIN, gap_ms_max * 5 // 4)
        self._clock_ms = 0
        self._own_ms: int | None = None
        self._heard_ms: dict[int, int] = {}

    def heard(self, incarnation: int) -> None:
        """Notes that a message of that run was delivered."""
        self._heard_ms[incarnation] = self._clock_ms

    def heard_own(self, now_ms: int) -> None:
        """Notes that a message of our own was delivered: others could have sent one, too."""
        if self._own_ms is not None:
            self._clock_ms += min(now_ms - self._own_ms, self._gap_ms_max)
        self._own_ms = now_ms

    def silent_ms(self, incarnation: int) -> int:
        """Returns the milliseconds in which nothing came from a run; 0 if it is not watched."""
        return self._clock_ms - self._heard_ms.get(incarnation, self._clock_ms)

    def overdue_ms(self, incarnation: int) -> int:
        """Returns `silent_ms` if it is so long that an operator should know, long before an
        expulsion; else 0.
        """
        silent_ms = self.silent_ms(incarnation)
        return silent_ms if silent_ms >= self._silent_ms_min else 0

    def keep_only(self, incarnations: Container[int]) -> None:
        """Forgets all other runs."""
        for gone in [each for each in self._heard_ms if each not in incarnations]:
            del self._heard_ms[gone]

    def heard_of(
        self, members: Iterable[ViewMember], me: ViewMember, limit_ms: int
    ) -> list[ViewMember]:
        """Returns the members that were not silent for `limit_ms`, and `me`."""
        return [
            each for each in members if self.silent_ms(each.incarnation) < limit_ms or each == me
        ]


class DigestVote:
    """This member's last digests, and the runs that disagree with them."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._disagreeing: set[int] = set()

    def note(self, log_sequence: int, digest: bytes) -> None:
        """Stores this member's digest after a message of the log."""
        self._digests[log_sequence] = digest
        self._digests.pop(log_sequence - DIGESTS_KEPT, None)

    def at(self, log_sequence: int) -> bytes:
        """Returns the digest after one of the last messages; it must be known."""
        return self._digests[log_sequence]

    def find(self, log_sequence: int) -> bytes:
        """Returns the digest after a message; empty if it is not known, or no longer."""
        return self._digests.get(log_sequence, b"")

    def compare(self, batch: LogBatch, report: MemberReport, view_size: int) -> None:
        """Compares another member's digest with ours at the same log position. A position whose
        digest we no longer keep counts as equal.

        Raises:
            DigestMismatch: Half of the view or more certified something else.
        """
        mine = self._digests.get(report.digest_log_sequence)
        if mine is None or mine == report.digest:
            self._disagreeing.discard(batch.incarnation)
            return
        self._disagreeing.add(batch.incarnation)
        if 2 * len(self._disagreeing) >= view_size:
            raise DigestMismatch(
                position=report.digest_log_sequence,
                member=batch.member,
                mine=mine.hex(),
                theirs=report.digest.hex(),
            )

    def keep_only(self, incarnations: Container[int]) -> None:
        """Drops the votes of all other runs: members that are gone do not vote."""
        self._disagreeing = {each for each in self._disagreeing if each in incarnations}


class Cause(Enum):
    """Why a member is not in the view; numbers as on the wire and in the log."""

    UNKNOWN = 0
    LEFT = 1
    SILENT = 2
    EXPELLED = 3


CAUSES = {each.value: each for each in Cause}


class Departure(NamedTuple):
    """One member that has gone."""

    name: str
    address: str
    cause: Cause
    view_id: int
    """Id of the first view without it."""
    since_us: int
    """By the clock of the member that proposed that view, since 1970; 0: unknown."""


class Departures:
    """The departed members, the longest away first."""

    def __init__(self) -> None:
        self._by_name: dict[str, Departure] = {}

    def followed(self, before: View, view: View, incarnation: int, proposal: ViewProposal) -> None:
        """Notes the members of `before` that are not in `view`, and those that have come back.

        Args:
            incarnation: The run that proposed it. One that proposed a view without itself has left,
                whatever the cause says.
        """
        cause = CAUSES.get(proposal.cause, Cause.UNKNOWN)
        since_us = proposal.proposed_us if proposal.proposed_us < SINCE_US_MAX else 0
        for member in before.members:
            if view.named(member.name) is None:
                why = Cause.LEFT if member.incarnation == incarnation else cause
                self._by_name.pop(member.name, None)  # So that it comes last.
                self._by_name[member.name] = Departure(
                    member.name, member.address, why, view.view_id, since_us
                )
        for member in view.members:
            self._by_name.pop(member.name, None)
        for name in list(self._by_name)[:-DEPARTED_MAX]:
            del self._by_name[name]

    def forget(self, name: str) -> None:
        """Removes the named member from the list, if it is there."""
        self._by_name.pop(name, None)

    def named(self) -> list[Departure]:
        """Returns all departures, sorted by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def dump(self) -> list[tuple[str, str, int, int, int]]:
        """Returns JSON values; see `restore`."""
        return [
            (name, address, cause.value, view_id, since_us)
            for name, address, cause, view_id, since_us in self._by_name.values()
        ]

    def restore(self, dumped: Iterable[tuple[str, str, int, int, int]]) -> None:
        """Replaces the list by what `dump` returned."""
        self._by_name = {
            name: Departure(name, address, CAUSES[cause], view_id, since_us)
            for name, address, cause, view_id, since_us in dumped
        }


class ProgressReports:
    """The last report of each run; the versions in it never go back."""

    def __init__(self) -> None:
        self._reports: dict[int, tuple[int, int]] = {}
        self._durable: dict[int, int] = {}

    def take(self, incarnation: int, report: MemberReport) -> None:
        """Notes a report; one that was overtaken changes nothing."""
        applied, stable = self.of(incarnation)
        self._reports[incarnation] = (
            max(applied, report.applied_version),
            max(stable, report.stable_version),
        )
        self._durable[incarnation] = max(self.durable(incarnation), report.durable_log_sequence)

    def of(self, incarnation: int) -> tuple[int, int]:
        """Returns the (applied, stable) versions of a run; zeros before its first report."""
        return self._reports.get(incarnation, (0, 0))

    def durable(self, incarnation: int) -> int:
        """Returns the last message of the log that a run would not read again; 0: unknown."""
        return self._durable.get(incarnation, 0)

    def smallest(self, incarnations: Iterable[int]) -> tuple[int, int]:
        """Returns the (applied, stable) versions that all of these runs have reached."""
        reports = [self.of(each) for each in incarnations]
        return min((each for each, _ in reports), default=0), min(
            (each for _, each in reports), default=0
        )

    def keep_only(self, incarnations: Container[int]) -> None:
        """Forgets all other runs."""
        for gone in [each for each in self._reports if each not in incarnations]:
            del self._reports[gone], self._durable[gone]

    def dump(self) -> list[tuple[int, int, int]]:
        """Returns (run, applied, stable) of each run, for the store."""
        return [(who, *report) for who, report in self._reports.items()]

    def restore(self, dumped: Iterable[tuple[int, int, int]]) -> None:
        """Replaces the reports by what was stored."""
        self._reports = {who: (applied, stable) for who, applied, stable in dumped}
        self._durable = dict.fromkeys(self._reports, 0)


class ReportSchedule:
    """When this member's own report is due."""

    def __init__(self, period_ms: int, items_max: int) -> None:
        """Makes a report due each `period_ms`, or after `items_max` items since the last one."""
        self._period_ms = period_ms
        self._items_max = items_max
        self._reported = (0, 0)
        self._reported_ms = 0
        self._items = 0
        self._asked_first = 0
        self._asked_last = 0

    def recorded(self, items: int) -> None:
        """Counts the write-set items of a certified transaction."""
        self._items += items

    def ask(self, version: int) -> None:
        """Makes a report due once `version` is visible here, because a commit waits for it."""
        if self._asked_first <= self._reported[0]:
            self._asked_first = version
        self._asked_last = version

    def take_due(
        self, now_ms: int, applied_version: int, stable_version: int, versions_max: int = 0
    ) -> bool:
        """Returns whether to report now; if so, begins the next period.

        Args:
            versions_max: Versions applied since the last report that make it due at once; 0: none.
        """
        news = (applied_version, stable_version)
        late = now_ms - self._reported_ms >= self._period_ms
        asked = self._reported[0] < self._asked_first <= applied_version
        progress = applied_version - self._reported[0]
        full = self._items >= self._items_max or 0 < versions_max <= progress
        if not late and (news == self._reported or not (asked or full)):
            return False
        self._reported, self._reported_ms, self._items = news, now_ms, 0
        self._asked_first = min(self._asked_last, applied_version + 1)
        return True
