"""What both clients take: options of a session, and transactions of a store of the caller's own.

The rule it keeps: what is wrong is found where it is given.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import IntEnum
from typing import TypedDict

from groupcert.v1 import transaction_pb2
from groupcert.v1.certification_pb2 import GetOutcomeResponse
from groupcert.v1.group_pb2 import GroupStatus, MemberState, MemberStatus, ReadHistoryResponse
from groupcert.v1.transaction_pb2 import Outcome
from groupcert.v1.transaction_pb2 import Transaction as CertifiableTransaction

from ..core.addresses import ADDRESS_SHAPE, is_address
from ..security.credentials import Tls

__all__ = [
    "CertifiableTransaction",
    "ClientOptions",
    "Consistency",
    "GetOutcomeResponse",
    "GroupStatus",
    "MemberState",
    "MemberStatus",
    "Outcome",
    "ReadHistoryResponse",
    "Tls",
    "certifiable",
]

TIMEOUT_MS = 20_000
"""Milliseconds; longer than an election among log servers, which takes 4 to 9 s."""
_TOKEN = "version:"


class Consistency(IntEnum):
    """The wait of a transaction, named as in Group Replication."""

    EVENTUAL = transaction_pb2.CONSISTENCY_EVENTUAL
    """No wait: it reads the present state of its member."""
    BEFORE = transaction_pb2.CONSISTENCY_BEFORE
    """Its snapshot has every transaction that was ordered before it began."""
    AFTER = transaction_pb2.CONSISTENCY_AFTER
    """Its commit returns when every member has applied it."""
    BEFORE_AND_AFTER = transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER
    """Both waits."""

    @property
    def on_wire(self) -> transaction_pb2.Consistency.ValueType:
        """As a request has it."""
        return transaction_pb2.Consistency.ValueType(self)


class ClientOptions(TypedDict, total=False):
    """The options of a client; `AsyncClient` says what each one does."""

    timeout_ms: int
    consistency: Consistency | str
    serializable: bool
    session: str
    gtid_domain_id: int
    spread: bool
    after: str
    tls: Tls | None
    token: str


class ConsistencyOption:
    """A level of consistency as an attribute, which may be given by its name."""

    def __get__(self, owner: object, kind: object) -> Consistency:
        level: Consistency = vars(owner)["consistency"]
        return level

    def __set__(self, owner: object, level: Consistency | str) -> None:
        vars(owner)["consistency"] = checked_consistency(level)


def checked_consistency(level: Consistency | str) -> Consistency:
    """Returns a level of consistency, or the one of a name. Raises TypeError if it is none.

    >>> checked_consistency("BEFORE")
    <Consistency.BEFORE: 2>
    """
    if isinstance(level, Consistency):
        return level
    if isinstance(level, str) and level in Consistency.__members__:
        return Consistency[level]
    names = ", ".join(Consistency.__members__)
    raise TypeError(f"consistency is {level!r:.80}: give a Consistency, or its name: {names}")


def checked_addresses(address: str | Sequence[str], timeout_ms: int) -> list[str]:
    """Returns the addresses of members that a client is given. Raises ValueError or TypeError if
    one is none, or the time limit is.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses or timeout_ms < 1:
        raise ValueError("a client needs a member's address, and a time limit of 1 ms or more")
    for each in addresses:
        if not isinstance(each, str):
            raise TypeError(f"address is {each!r:.80}: expected {ADDRESS_SHAPE}")
        if not is_address(each):
            raise ValueError(f"address is {each!r:.80}: expected {ADDRESS_SHAPE}")
    return addresses


def check_names(kind: str, given: Mapping[str, object]) -> None:
    """Raises TypeError if options of a client are given that it does not have."""
    names = ClientOptions.__annotations__
    for name in given:
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
            raise TypeError(f"{kind} has no option {name}: {hint}")


def session_token(version: int) -> str:
    """Returns the token of a session that has seen `version`."""
    return f"{_TOKEN}{version}"


def token_version(token: str) -> int:
    """Returns the version in a session token; 0 for an empty one.

    >>> token_version(session_token(12))
    12
    """
    digits = token.removeprefix(_TOKEN)
    if token and not (token.startswith(_TOKEN) and digits.isascii() and digits.isdigit()):
        raise ValueError(f"after is {token!r:.80}: give the `token` of another client")
    return int(digits or 0)


def certifiable(
    *,
    snapshot: int | str,
    write_set: Iterable[int | str],
    read_set: Iterable[int] = (),
    gtid: str = "",
    transaction_id: bytes | None = None,
    first_attempt: bool = False,
) -> CertifiableTransaction:
    """Builds a transaction of a store of the caller's own, for `certify` and `certify_stream`.

    Args:
        snapshot: The state that it read: a version of the group, or the executed GTID set.
        write_set: The rows that it wrote: 64-bit items, or texts such as `shop.orders/PRIMARY/42`.
            Empty means unknown: it is applied alone.
        read_set: Items of rows that it read, for serializable certification.
        gtid: Its own GTID; empty: the group assigns one.
        transaction_id: Up to 32 bytes; None: a new one; empty: its outcome cannot be asked for.
        first_attempt: The caller has never sent it before. Without this promise, one whose snapshot
            is older than the outcomes that the group remembers may be a repetition: nobody can say
            whether a conflict is with itself, and without a write set it is not certified again.
    """
    items = list(write_set)
    return CertifiableTransaction(
        transaction_id=uuid.uuid4().bytes if transaction_id is None else transaction_id,
        snapshot_version=snapshot if isinstance(snapshot, int) else 0,
        snapshot_gtid_set=snapshot if isinstance(snapshot, str) else "",
        write_set=[item for item in items if isinstance(item, int)],
        write_set_keys=[item for item in items if isinstance(item, str)],
        read_set=read_set,
        gtid=gtid,
        first_attempt=first_attempt,
    )
