"""Chooses what a rebuilt log goes on from: the longest history that no member contradicts.

The log goes on from one member's state, at the message after the last one in it, and begins with
what other members' rows have beyond that. The members whose state is as of there read on; those
behind it copy one of them, as after any trim of a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...certifier.gtid_set import GtidSet
from ..errors.rebuild import MembersDiffer, MembersMissing
from ..total_order.port import Continuation
from .comparison import Contradiction, compare
from .holding import Holding
from .tail import Tail, tail_after


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPart:
    """One member in a plan. `compared`: transactions that it and the longest one both have whole;
    None: it is the longest one.
    """

    holding: Holding
    compared: int | None
    reads_on: bool
    extra: GtidSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a rebuilding; none may be taken where there are contradictions."""

    base: Holding
    tail: Tail
    members: tuple[MemberPart, ...]
    contradictions: tuple[Contradiction, ...]
    without: tuple[str, ...]
    longest: Holding
    """The member that the others were compared with."""

    @property
    def continues(self) -> Continuation:
        """Where the new log goes on."""
        at = self.base.log_sequence
        return Continuation(
            log=self.base.log,
            member=self.base.name,
            log_sequence=at,
            digest=self.base.state.certifier.digest().hex(),
            last_sequence=at + len(self.tail.messages),
        )

    @property
    def executed(self) -> GtidSet:
        """The GTIDs of all that the group goes on with."""
        return self.base.state.certifier.executed() | self.tail.rebuilt

    @property
    def reach(self) -> int:
        """The last message of the earlier log of which some member holds anything."""
        return max(each.holding.reach for each in self.members)


def plan_of(holdings: Sequence[Holding], without: Sequence[str], group: str | None = None) -> Plan:
    """Returns the plan of a new log: the state that it goes on from, and the messages after that.

    Args:
        without: Names of members that are given up.
        group: The group's name, if it was said.

    Raises:
        MembersDiffer: They are of several groups, logs or of one member twice.
        MembersMissing: A member of the last view is neither among them nor given up.
    """
    _check_one_group(holdings, group)
    # A state in doubt may be one that no other member has: it is taken where there is no better
    # one.
    sure = [holding for holding in holdings if not holding.is_in_doubt] or holdings
    # The newest state and the newest rows may be those of two members: rows are stored at each
    # commit, states some times a second.
    base = max(sure, key=lambda holding: (holding.log_sequence, holding.rows.version))
    farthest = max(sure, key=lambda holding: (holding.last_version, holding.log_sequence))
    _check_all_there(base, holdings, without)
    compared, contradictions = {}, []
    for holding in holdings:
        if holding is not farthest:
            compared[holding.name], contradiction = compare(farthest, holding)
            contradictions += [contradiction] if contradiction else []
    tail = Tail([], GtidSet(), GtidSet()) if contradictions else tail_after(base, farthest)
    executed = base.state.certifier.executed() | tail.rebuilt
    parts = (
        MemberPart(
            holding=holding,
            compared=compared.get(holding.name),
            reads_on=holding.log_sequence == base.log_sequence,
            extra=holding.executed - executed,
        )
        for holding in holdings
    )
    return Plan(
        base=base,
        tail=tail,
        members=tuple(parts),
        contradictions=tuple(contradictions),
        without=tuple(without),
        longest=farthest,
    )


def _check_one_group(holdings: Sequence[Holding], group: str | None) -> None:
    first = holdings[0]
    if group not in (None, first.group):
        raise MembersDiffer(
            first="--group", first_has=f"group {group}", **_second(first, f"group {first.group}")
        )
    for number, each in enumerate(holdings):
        for mine, theirs in (
            (f"group {first.group}", f"group {each.group}"),
            (f"log {first.log}", f"log {each.log}"),
        ):
            if mine != theirs:
                raise MembersDiffer(
                    first=str(first.folder), first_has=mine, **_second(each, theirs)
                )
        for other in holdings[:number]:
            if other.name == each.name:
                name = f"member {each.name}"
                raise MembersDiffer(
                    first=str(other.folder), first_has=name, **_second(each, f"{name}, too")
                )


def _second(holding: Holding, has: str) -> dict[str, str]:
    return {"second": str(holding.folder), "second_has": has}


def _check_all_there(base: Holding, holdings: Sequence[Holding], without: Sequence[str]) -> None:
    given = {each.name for each in holdings} | {*without}
    missing = [each for each in base.state.view.members if each.name not in given]
    if missing:
        raise MembersMissing(
            missing=", ".join(f"{each.name} ({each.address})" for each in missing),
            without=" ".join(f"--without {each.name}" for each in missing),
        )
