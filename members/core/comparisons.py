"""Compares the rows of all members as of one record of the log, and says who differs from whom.

Digests of decisions cover what is certified, not what is stored: a row that a disk or a person has
changed would be served, and copied to joiners, for ever. So a record asks every member of the view
for digests of its rows there, by ranges of the hash of their keys; the digests meet in the log.

The rule it keeps: it all follows from the log. Who half of the view or more differs from cannot be
trusted; with two members it is unknown which of them is right. Pure.

Members whose rows a PostgreSQL server keeps are compared among themselves, and others among
themselves: a store has no rows from before a table was attached, and has others as they were
written, under the columns of that time. Members that keep no rows are not asked.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors.membership import RowsDiffer
from .log_records import RANGES, RowDigests
from .views import ViewMember

FIRST_US = 600_000_000
"""Microseconds after which a group compares its rows for the first time, at most."""
RANGES_NAMED = 8
"""Ranges of keys that an error names."""
IN_STORE = "`groupcert group rejoin --discard-state` there"
AT_SERVER = "mend the rows there as a superuser, then `groupcert group rejoin --unfence`"


class Difference(NamedTuple):
    """A member whose rows are not those of most members, and the ranges where that is so."""

    member: str
    ranges: tuple[int, ...]


class Comparisons:
    """The last comparison of the group: who was asked, and what they have answered. `own`, the last
    digests of the member itself, and when it asked, are its own knowledge; all else follows from
    the log.
    """

    def __init__(self, me: ViewMember) -> None:
        self._me = me
        self.own = RowDigests(0, 0, b"")
        self._asked_us = 0
        self.position = self.version = self.requested_us = 0
        """Where it was asked for, what was certified there, and when by the asker's clock; 0:
        never."""
        self.asked: dict[int, str] = {}
        """The members that were asked and are in the view, by run."""
        self.answers: dict[int, RowDigests] = {}

    def begin(
        self, position: int, version: int, requested_us: int, members: Iterable[ViewMember]
    ) -> None:
        """Begins another comparison, of these members; an unfinished one is given up."""
        self.position, self.version, self.requested_us = position, version, requested_us
        self.asked = {each.incarnation: each.name for each in members}
        self.answers = {}

    def take(self, incarnation: int, digests: RowDigests) -> None:
        """Takes a member's answer, unless it is to another comparison."""
        if digests.position == self.position and incarnation in self.asked:
            self.answers[incarnation] = digests

    def keep_only(self, incarnations: Container[int]) -> None:
        """Waits no more for runs that are gone; what they have answered counts."""
        self.asked = {
            run: name
            for run, name in self.asked.items()
            if run in incarnations or run in self.answers
        }

    @property
    def waiting(self) -> list[str]:
        """Names of the members whose answers are missing."""
        return [name for run, name in self.asked.items() if run not in self.answers]

    @property
    def is_over(self) -> bool:
        """True if all members that were asked have answered, and some were."""
        return bool(self.asked) and len(self.answers) == len(self.asked)

    def differences(self) -> list[Difference]:
        """Returns the members whose rows are not those of most members of their kind: stores, or
        servers with the same tables. Where no digest of a range is that of more than half of them,
        all of them differ there.
        """
        found: dict[int, list[int]] = {}
        for tables in {each.tables for each in self.answers.values()}:
            found |= self._differing(tables)
        return [Difference(self.asked[run], tuple(found[run])) for run in sorted(found)]

    def _differing(self, tables: int) -> dict[int, list[int]]:
        """Returns the ranges in which members of one kind differ from most, by run."""
        answers = {run: each for run, each in self.answers.items() if each.tables == tables}
        found: dict[int, list[int]] = {}
        if len({each.digests for each in answers.values()}) < 2:
            return found
        for number in range(RANGES):
            here = {run: answer.of_range(number) for run, answer in answers.items()}
            digest, count = Counter(here.values()).most_common(1)[0]
            is_most = 2 * count > len(here)
            for run, each in here.items():
                if not is_most or each != digest:
                    found.setdefault(run, []).append(number)
        return found

    def why_doubted(self) -> RowsDiffer | None:
        """Returns the error of the member itself if half of those that were asked or more have
        other rows; it may have been asked or not, as a joiner is.
        """
        me = self._me.incarnation
        # What was asked for is in the log before it counts: all others are to see it, too.
        mine = self.answers.get(me) if me in self.asked else self.own
        if mine is None or mine.position != self.position:
            return None
        others = {
            run: each
            for run, each in self.answers.items()
            if run != me and each.tables == mine.tables
        }
        differing = [run for run, each in others.items() if each.digests != mine.digests]
        # Who has not answered may be of the same kind.
        of_kind = len(self.asked) - sum(
            each.tables != mine.tables for each in self.answers.values()
        )
        if not differing or 2 * len(differing) < of_kind:
            return None
        ranges = [
            str(number)
            for number in range(RANGES)
            if any(others[run].of_range(number) != mine.of_range(number) for run in differing)
        ]
        named = ", ".join([*ranges[:RANGES_NAMED], *["..."][: len(ranges) > RANGES_NAMED]])
        return RowsDiffer(
            member=self._me.name,
            others=", ".join(self.asked[run] for run in differing),
            version=self.version,
            ranges=f"{len(ranges)} of {RANGES} ranges of keys ({named})",
            mending=AT_SERVER if mine.tables else IN_STORE,
        )

    def asking(self, now_us: int) -> None:
        """Notes that this member asks for a comparison."""
        self._asked_us = now_us

    def is_due(self, now_us: int, period_us: int) -> bool:
        """Returns whether the last comparison, or this member's last request for one, is
        `period_us` ago. A group that has never compared begins soon.
        """
        if not self.requested_us:
            self._asked_us = self._asked_us or now_us
            period_us = min(period_us, FIRST_US)
        return now_us - max(self.requested_us, self._asked_us) >= period_us

    def dump(self) -> list[object]:
        """Returns JSON values; see `restore`. Equal digests are there once."""
        different = [*dict.fromkeys(each.digests for each in self.answers.values())]
        runs = [
            (run, name, different.index(answer.digests), answer.rows)
            if (answer := self.answers.get(run))
            else (run, name, -1, 0)
            for run, name in self.asked.items()
        ]
        digests = [each.hex() for each in different]
        dumped = [self.position, self.version, self.requested_us, runs, digests]
        servers = [(run, each.tables) for run, each in self.answers.items() if each.tables]
        return [*dumped, servers] if servers else dumped

    def restore(self, dumped: Sequence[Any]) -> None:
        """Restores what `dump` returned."""
        self.position, self.version, self.requested_us, runs, digests, *servers = dumped
        tables = dict(servers[0]) if servers else {}
        for run, name, index, rows in runs:
            self.asked[run] = name
            if index >= 0:
                found = bytes.fromhex(digests[index])
                self.answers[run] = RowDigests(self.position, rows, found, tables.get(run, 0))
