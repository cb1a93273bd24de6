"""What a member takes in before it refuses more: by transactions, and by bytes.

The rule it keeps: nothing waits without a bound. A small transaction waits in memory; of a large
one, whose client waits with it, only the next fragments do.
"""

from collections.abc import Sequence

from certifier.errors import Overloaded
from members.log_records import LoggedTransaction, bytes_of
from members.member import Member

WAITING_MAX = 65_536
"""Transactions that may wait for the log at a member before it refuses more."""
WAITING_BYTES_MAX = 64 << 20
"""Their bytes."""


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
