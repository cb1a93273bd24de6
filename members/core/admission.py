"""Decides whether a member takes transactions now: if it is ONLINE, may write, and has room.

The rule it keeps: nothing waits without a bound. A small transaction waits in memory; of a large
one, whose client waits with it, only the next fragments do.
"""

from collections.abc import Sequence

from ...certifier.errors import LogFull, NotServing, Overloaded
from ..errors.membership import NotPrimary
from .log_records import LoggedTransaction, bytes_of
from .member import Member
from .views import MemberState

WAITING_MAX = 65_536
"""Transactions that may wait for the log at a member before it refuses more."""
WAITING_BYTES_MAX = 64 << 20
"""Bytes of transactions that may wait for the log at a member before it refuses more."""


def check_admitted(member: Member, transactions: Sequence[LoggedTransaction]) -> None:
    """Raises the error of `why_not`, LogFull or Overloaded, if `member` takes no `transactions`
    now; an empty sequence only marks a position in the order.
    """
    if not takes_anything(member) or (transactions and not member.may_write):
        raise why_not(member, ordered="nothing")
    check_space(member)
    check_room(member, transactions)


def takes_anything(member: Member) -> bool:
    """Returns whether `member` takes requests that the group orders."""
    return member.state is MemberState.ONLINE and not member.publisher.turns_away


def why_not(member: Member, *, ordered: str = "perhaps") -> NotServing | NotPrimary:
    """Returns the error why no transactions are taken; `ordered`: what the log has of this one."""
    if not takes_anything(member) or member.may_write:
        is_online = member.state is MemberState.ONLINE
        state = "about to leave its group" if is_online else member.state.name
        return NotServing(member=member.me.name, state=state, ordered=ordered)
    primary = member.view.named(member.view.primary)
    address = primary.address if primary else ""
    return NotPrimary(member=member.me.name, primary=member.view.primary, address=address)


def check_space(member: Member) -> None:
    """Raises LogFull if the log has no space: what is not handed in now cannot be ordered."""
    if member.publisher.log_full:
        raise LogFull(cause=member.publisher.log_full)


def check_room(member: Member, transactions: Sequence[LoggedTransaction]) -> None:
    """Raises Overloaded if `transactions` and those that wait would exceed the limits."""
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
