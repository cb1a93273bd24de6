"""Plans recovery: from the log or from a copy, and from which donor.

The rule it keeps: each decision comes with its reason in words, and follows from values alone, so
that members in the same situation choose the same. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...certifier.errors import GroupcertError, LogGap
from ...certifier.gtid_set import GtidSet
from ...certifier.position import log_sequence_of
from ..errors.recovery import ExtraTransactions, LogTooLong, LogTrimmed
from ..total_order.port import LogState, check_reaches
from .member import Member


class RecoveryPlan(NamedTuple):
    """The source a member recovers from, the log or a copy, and why."""

    copy: bool
    reason: str


class Needs(NamedTuple):
    """What a member needs of its donor's state."""

    asker: str
    server_version: int | None = None
    """Up to which version its PostgreSQL server has executed all; None: its store keeps rows."""
    without_rows: bool = False
    """It keeps none."""


class Candidate(NamedTuple):
    """A member that may give a copy, as its status describes it."""

    name: str
    address: str
    state: str
    certified_version: int
    committed_version: int
    relay_first_version: int = 0
    """The oldest version of which it has the changes, and no rows; 0: it has rows."""
    without_rows: bool = False
    """It has neither rows nor changes."""

    def why_unfit(self, needs: Needs) -> str:
        """Returns the reason why its state is of no use; empty: it is of use."""
        first, server_version = self.relay_first_version, needs.server_version
        if needs.without_rows:
            return ""
        if self.without_rows:
            return "keeps no rows"
        if server_version is None:
            return "has no rows, which are at its PostgreSQL server" if first else ""
        if not first:
            return "keeps rows in its store, and no executed transactions for a PostgreSQL server"
        if first <= server_version + 1:
            return ""
        return (
            f"has transactions from version {first} on, and the server needs {server_version + 1}: "
            "copy a running server, groupcert postgresql join --dsn EMPTY --from RUNNING"
        )


class DonorChoice(NamedTuple):
    """A donor, and why it was chosen."""

    donor: Candidate
    reason: str


def plan_recovery(
    first_sequence: int,
    last_sequence: int,
    log_sequence: int,
    *,
    messages_max: int,
    knows_members: bool,
) -> RecoveryPlan:
    """Chooses the log, if it reaches back and is not too long; else a copy.

    Args:
        first_sequence: The oldest message that the log has.
        last_sequence: The newest one.
        log_sequence: The last one that the member has; 0: none.
        messages_max: What it reads at most where it could copy; 0: there is no limit.
        knows_members: There are members to ask for a copy.
    """
    messages = last_sequence - log_sequence
    if first_sequence > log_sequence + 1:
        return RecoveryPlan(
            True, f"the log begins at {first_sequence}, after {log_sequence + 1}, which comes next"
        )
    if messages_max and messages > messages_max and knows_members:
        return RecoveryPlan(
            True, f"{messages} messages of the log are more than {messages_max}: a copy is quicker"
        )
    return RecoveryPlan(False, f"the log reaches back, {messages} messages are to be read")


def check_start(
    state: LogState, log_sequence: int, *, messages_max: int, knows_members: bool
) -> str:
    """Returns the reason why a member continues from the log, if it does.

    Args:
        messages_max: The setting `recovery_log_messages_max`; 0: no limit.
        knows_members: Whether it could ask others for a copy.

    Raises:
        LogTrimmed: It can not; a copy has to be put in place first.
        LogTooLong: It could, but is sooner there with a copy.
        LogGap: The log has become shorter.
    """
    plan = plan_recovery(
        state.first_sequence,
        state.last_sequence,
        log_sequence,
        messages_max=messages_max,
        knows_members=knows_members,
    )
    if not plan.copy:
        check_reaches(state, log_sequence + 1)
        return plan.reason
    if state.first_sequence > log_sequence + 1:
        raise LogTrimmed(expected=log_sequence + 1, first=state.first_sequence)
    messages = state.last_sequence - log_sequence
    raise LogTooLong(messages=messages, messages_max=messages_max)


def check_not_ahead(member: Member, last_sequence: int) -> None:
    """Raises ExtraTransactions if a member has certified what the log has lost since, or never had.

    Cost: O(transactions that are too many).
    """
    window = member.certifier.window
    extra = GtidSet()
    version = window.newest_version
    while version >= window.first_version and (
        log_sequence_of(window.position(version)) > last_sequence
    ):
        extra |= window.executed(version)
        version -= 1
    if extra:
        lacking = f"the log, which ends at {last_sequence}, before {member.log_sequence},"
        raise ExtraTransactions(member=member.me.name, lacking=lacking, extra=str(extra))


def why_gap(gap: LogGap, state: LogState) -> GroupcertError:
    """Returns the error for a gap that a reader met: LogTrimmed if the log begins later."""
    if gap.expected < state.first_sequence:
        return LogTrimmed(expected=gap.expected, first=state.first_sequence)
    return gap


def choose_donor(
    candidates: Iterable[Candidate], needs: Needs, failed: Iterable[str] = ()
) -> DonorChoice | None:
    """Chooses, of the ONLINE members whose state is of use (see `Candidate.why_unfit`), the one
    that lacks least of what the group has certified; of several the first by name. Returns None if
    there is none but the asker and those in `failed` (addresses).
    """
    known = sorted(set(candidates))
    excluded = set(failed)
    able = [
        each
        for each in known
        if each.state == "ONLINE"
        and each.name != needs.asker
        and each.address not in excluded
        and not each.why_unfit(needs)
    ]
    if not able:
        return None
    newest = max(each.certified_version for each in known)

    def backlog(candidate: Candidate) -> int:
        return newest - candidate.committed_version

    donor = min(able, key=lambda each: (backlog(each), each.name, each.address))
    equal = [each.name for each in able if backlog(each) == backlog(donor)]
    reason = f"{donor.name} at {donor.address} is ONLINE and lacks {backlog(donor)} transactions"
    if len(able) == 1:
        reason += ", the only member that can give its state"
    elif len(equal) > 1:
        reason += f", as {_listed(equal[1:])} does: the first by name"
    else:
        others = [f"{each.name} lacks {backlog(each)}" for each in able if each != donor]
        reason += f" ({', '.join(others)})"
    return DonorChoice(donor, reason)


def why_none(candidates: Sequence[Candidate], needs: Needs, failures: Mapping[str, str]) -> str:
    """Returns the reasons why `choose_donor` finds no member that can give a copy."""
    causes = [f"{address}: {cause}" for address, cause in failures.items()]
    for each in sorted(set(candidates)):
        if each.address in failures or each.name == needs.asker:
            continue
        is_online = each.state == "ONLINE"
        why = each.why_unfit(needs) if is_online else f"is {each.state}"
        causes.append(f"{each.name} at {each.address} {why}")
    return "; ".join(causes) or "there is nobody else"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
