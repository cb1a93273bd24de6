"""What a member takes in: nothing in most states, else so many transactions and bytes.

The rule it keeps: nothing waits without a bound. A small transaction waits in memory; of a large
one, whose client waits with it, only the next fragments do.
"""

from collections.abc import Sequence

from certifier.errors import NotServing, Overloaded
from members.log_records import LoggedTransaction, bytes_of
from members.member import Member
from members.member_state import MemberState
from members.membership_errors import NotPrimary

WAITING_MAX = 65_536
"""Transactions that may wait for the log at a member before it refuses more."""
WAITING_BYTES_MAX = 64 << 20
"""Their bytes."""


def check_admitted(member: Member, transactions: Sequence[LoggedTransaction]) -> None:
    """Raises what `why_not` gives, or Overloaded, if a member takes transactions not now; none mark
    a place in the order.
    """
    if not takes_anything(member) or (transactions and not member.may_write):
        raise why_not(member, ordered="nothing")
    check_room(member, transactions)


def takes_anything(member: Member) -> bool:
    """Whether a member takes requests that the group orders."""
    return member.state is MemberState.ONLINE and not member.publisher.turns_away


def why_not(member: Member, *, ordered: str = "perhaps") -> NotServing | NotPrimary:
    """Why the group takes no transactions from a member; `ordered`: what it has of this one."""
    if not takes_anything(member) or member.may_write:
        is_online = member.state is MemberState.ONLINE
        state = "about to leave its group" if is_online else member.state.name
        return NotServing(member=member.me.name, state=state, ordered=ordered)
    primary = member.view.named(member.view.primary)
    address = primary.address if primary else ""
    return NotPrimary(member=member.me.name, primary=member.view.primary, address=address)


def check_room(member: Member, transactions: Sequence[LoggedTransaction]) -> None:
    """Raises Overloaded if transactions are more than may wait with those that do."""
    publisher, cause = member.publisher, member.flow.explanation()
    if publisher.waiting + len(transactions) > WAITING_MAX:
        raise Overloaded(waiting=publisher.waiting, waiting_max=WAITING_MAX, cause=cause)
    size = publisher.waiting_bytes + sum(map(bytes_of, transactions))
    if publisher.waiting and size > WAITING_BYTES_MAX:
        raise Overloaded(
            waiting=publisher.waiting_bytes,
            waiting_max=WAITING_BYTES_MAX,
            cause=cause,
            what="bytes of transactions",
        )
