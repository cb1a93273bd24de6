"""Calls members for a client: which one to ask, how long, and which answers are certain.

The rule it keeps: members are asked one after the other, until one answers or the time is up. No
attempt gets more than half of the time that is left, so that a member that hangs does not use up
the time in which another one could answer; a large commit gets the time for its bytes beside that.
A transaction is repeated under its id only, and a negative answer to a repetition counts only if no
member can have forgotten that the first one committed.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self, TypeVar

from groupcert.v1.certification_pb2 import CertifyRequest, GetOutcomeRequest
from groupcert.v1.error_pb2 import RETRY_ADVICE_BEGIN_AGAIN, RETRY_ADVICE_NEVER
from groupcert.v1.group_pb2 import GetStatusRequest, GetStatusResponse, GroupStatus
from groupcert.v1.store_pb2 import CommitRequest
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Outcome, Transaction

from ...certifier.errors import GroupcertError, NotServing
from ..errors.calls import VersionMissing
from ..errors.membership import NotPrimary
from ..errors.transactions import MemberFailed, OutcomeUnknown, TransactionFailed
from ..security.credentials import ANONYMOUS, Credentials
from ..wire.statuses import advice_of, is_without_effect
from .remote_member import RemoteMember

ATTEMPT_MS_MIN = 100
REPETITION_SHARE_MIN = 0.1
"""Share of the time that must be left for a repetition, up to `ATTEMPT_MS_MIN`: a shorter one would
hide why others failed."""
PAUSE_MS = 50
"""Mean pause after each member was asked once; a pause is between half of it and one and a half."""
RECALL_MS = 2_000
AVOID_SECONDS = 1.0
"""Seconds for which a member that failed is asked only if the others have failed, too."""
NO_VERSION = 2**63 - 1
"""The largest version that members take for a snapshot: none has it, and the group refuses it."""
_FINAL_ADVICE = (RETRY_ADVICE_NEVER, RETRY_ADVICE_BEGIN_AGAIN)
"""Another member would say the same, of the request as it stands."""
_REFUSING_CODES = {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
"""gRPC itself answers with these before a member sees the call: too large, or not known."""

Answer = TypeVar("Answer")


class RemoteMembers:
    """The members that a client may ask. It stays with one for as long as that one answers, or goes
    on to the next with each transaction.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        timeout_ms: int,
        credentials: Credentials = ANONYMOUS,
        *,
        spread: bool = False,
    ) -> None:
        self._addresses = tuple(addresses)
        self._timeout_s = timeout_ms / 1000
        self._credentials = credentials
        self._spread = spread
        self._members: dict[str, RemoteMember] = {}
        self._failed_at: dict[str, float] = {}
        self._current = self._addresses[0]
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def current_address(self) -> str:
        """The member that is asked first."""
        return self._current

    @property
    def current(self) -> RemoteMember:
        """The same, connected; a member that failed lately is asked only if all have."""
        return self._member(self._current)

    def begin(self) -> RemoteMember:
        """Returns the member for a new transaction."""
        if self._spread:
            self._current = self._after(self._current)
        return self.current

    def move_on(self, member: RemoteMember) -> None:
        """Asks another member first from now on, if that is this one."""
        self._failed_at[member.address] = time.monotonic()
        if self._current == member.address:
            self._current = self._after(member.address)

    async def close(self) -> None:
        """Closes every connection, for ever."""
        self._closed = True
        await self.disconnect()

    @property
    def is_connected(self) -> bool:
        """True if there is a connection to a member."""
        return any(member.is_connected for member in self._members.values())

    @property
    def holds_snapshots(self) -> bool:
        """True if a transaction is open that would end with its member's connection."""
        return any(member.transactions for member in self._members.values())

    async def disconnect(self) -> None:
        """Closes every connection; the next call makes others, in any loop."""
        self._loop = None
        await asyncio.gather(*(member.close() for member in self._members.values()))

    async def ask(
        self,
        call: Callable[[RemoteMember, float], Awaitable[Answer]],
        first: RemoteMember | None = None,
    ) -> Answer:
        """Returns the first answer to a call that changes nothing; it gets a member and seconds.

        Raises:
            GroupcertError: What a member answered, or `NotServing` if none did.
            MemberFailed: A member answered something else.
        """
        failure: GroupcertError | None = None
        async for member, timeout_s in self._attempts(first or self.current):
            try:
                return await call(member, timeout_s)
            except TimeoutError:
                failure = failure or no_answer(member, timeout_s)  # An earlier one says more.
            except GroupcertError as error:
                failure = error
                if is_refusal(failure) or isinstance(failure, MemberFailed):
                    break
        assert failure is not None, "a time limit of 0"
        raise failure

    async def ask_at(
        self, version: int, call: Callable[[RemoteMember, float], Awaitable[Answer]]
    ) -> Answer:
        """Returns the first answer to a call for which a member waits until it has a version.

        Raises:
            VersionMissing: A member that answers does not have it.
            GroupcertError: As `ask`.
        """
        try:
            return await self.ask(call, self.begin())
        except NotServing:
            if not version:
                raise
            status = await self._status()
            if status is None or status.observer.committed_version >= version:
                raise
            observer = status.observer
            raise VersionMissing(
                member=observer.name, version=observer.committed_version, wanted=version
            ) from None

    async def _status(self) -> GroupStatus | None:
        """Returns the status that the present member tells, if it does soon."""
        try:
            member, request = self.current, GetStatusRequest()
            answer: GetStatusResponse
            answer = await member.unary(member.group.GetStatus, request, RECALL_MS / 1000)
        except (GroupcertError, TimeoutError):
            return None
        return answer.status

    def described(self, kind: str) -> str:
        """Returns the `repr` of a client of a `kind`: its members, and the one that it is at."""
        state = "closed" if self._closed else f"at {self._current}"
        return f"<{kind} of {', '.join(self._addresses)}, {state}>"

    async def decide(
        self,
        transaction: CommitRequest | Transaction,
        send: Callable[[RemoteMember, float], Awaitable[Outcome]],
        *,
        first: RemoteMember | None = None,
        extra_s: float = 0.0,
    ) -> Outcome:
        """Returns the outcome of a transaction; repeats it until a member answers. Where one
        refuses what may be ordered, the group decides, under the transaction's id.

        Args:
            transaction: What `send` sends; it is no `first_attempt` once it may be ordered.
            first: The member that is asked first; None: the current one.
            extra_s: Seconds that it may take longer than any call.

        Raises:
            TransactionFailed: It did not commit, or no member can say.
            GroupcertError, MemberFailed: It was not even ordered.
        """
        failure: GroupcertError | None = None
        refusal: GroupcertError | None = None
        perhaps_ordered = False
        attempts = self._attempts(first or self.current, extra_s)
        async for member, timeout_s in attempts:
            try:
                outcome = await send(member, timeout_s)
            except TimeoutError:
                failure, perhaps_ordered = no_answer(member, timeout_s), True
            except GroupcertError as error:
                failure = error
                if isinstance(failure, OutcomeUnknown):
                    raise
                # An earlier attempt may have committed, and this one lost to it.
                if isinstance(failure, TransactionFailed) and perhaps_ordered:
                    return await self._recall(member, transaction, failure)
                if is_refusal(failure):
                    if refusal is not None or not perhaps_ordered:
                        break
                    # A refusal does not undo an attempt that may be ordered. What goes out from
                    # here on, under the same id, cannot pass, and so asks the group for the first
                    # one's outcome.
                    refusal, send = failure, partial(_settle, transaction)
                if isinstance(failure, NotPrimary):
                    attempts.ask_next(failure.address)
                perhaps_ordered = perhaps_ordered or not is_without_effect(failure)
            else:
                if outcome.verdict != VERDICT_CERTIFIED and perhaps_ordered:
                    return await self._recall(member, transaction, refusal or outcome)
                return outcome
            if perhaps_ordered:
                transaction.first_attempt = False
                # Nothing would tell a repetition from another transaction: it might be executed
                # twice.
                if not transaction.transaction_id:
                    break
        assert failure is not None, "a time limit of 0"
        if perhaps_ordered:
            raise _unknown(transaction, str(refusal or failure)) from failure
        raise failure

    async def _recall(
        self,
        member: RemoteMember,
        transaction: CommitRequest | Transaction,
        answer: Outcome | GroupcertError,
    ) -> Outcome:
        """Returns, or raises, the negative answer to a repetition if it is the transaction's own.

        If the first one committed and is forgotten, the repetition conflicts with it. It cannot be
        forgotten if the member remembers every outcome since the transaction's snapshot, which
        what `_settle` sends does not show to members.
        """
        request = GetOutcomeRequest(transaction_id=transaction.transaction_id)
        try:
            found = await member.call("get_outcome", request, RECALL_MS / 1000)
        except (GroupcertError, TimeoutError) as error:
            raise _unknown(transaction, str(error or "no answer")) from None
        if found.outcome.verdict == VERDICT_CERTIFIED:
            return found.outcome  # type: ignore[no-any-return]  # of a GetOutcomeResponse
        # The version of a set is not known here, so whatever was forgotten may be the first one's
        # outcome.
        is_set = isinstance(transaction, Transaction) and transaction.snapshot_gtid_set
        if found.forgotten_version > (0 if is_set else transaction.snapshot_version):
            cause = f"outcomes up to version {found.forgotten_version} are forgotten"
            raise _unknown(transaction, cause)
        if isinstance(answer, GroupcertError):
            raise answer
        return answer

    def _attempts(self, first: RemoteMember, extra_s: float = 0.0) -> "_Attempts":
        return _Attempts(self, first, self._timeout_s, extra_s)

    def _member(self, address: str) -> RemoteMember:
        if self._closed:
            raise ValueError("the client is closed: make another one")
        loop = _running_loop()
        if loop is not None and self._loop not in (None, loop):
            text = "an AsyncClient is for one event loop, and was used in another one before"
            raise RuntimeError(f"{text}: make one in each loop, or use a Client")
        self._loop = loop or self._loop
        if address not in self._members:
            self._members[address] = RemoteMember(address, self._credentials)
        return self._members[address]

    def _after(self, address: str) -> str:
        """Returns the next address; one that failed lately only if all have."""
        place = self._addresses.index(address) + 1
        ring = (*self._addresses[place:], *self._addresses[:place])
        lately = time.monotonic() - AVOID_SECONDS
        return next((each for each in ring if self._failed_at.get(each, lately) <= lately), ring[0])

    def _prefer(self, address: str) -> RemoteMember:
        """Returns a member, known or not, which is asked first from now on."""
        if address not in self._addresses:
            self._addresses = (*self._addresses, address)
        self._current = address
        return self._member(address)


class _Attempts:
    """Yields members to ask, and seconds to wait for the answer, until the time is up."""

    def __init__(
        self, members: RemoteMembers, first: RemoteMember, timeout_s: float, extra_s: float
    ) -> None:
        self._members = members
        self._next: RemoteMember | None = first
        self._asked: list[RemoteMember] = []
        """In this round."""
        self._asked_once = False
        self._repetition_s = min(ATTEMPT_MS_MIN / 1000, timeout_s * REPETITION_SHARE_MIN)
        self._ends = time.monotonic() + timeout_s + extra_s
        self._extra_s = extra_s

    def ask_next(self, address: str) -> None:
        """Asks the member at an address next, if it is known."""
        if address:
            self._next = self._members._prefer(address)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[RemoteMember, float]:
        left_s = self._ends - time.monotonic()
        if self._asked:
            last = self._asked[-1]
            # Whoever asks for another attempt got none from the last member: the next ones ask
            # others first.
            if self._next is None:
                self._members.move_on(last)
                self._next = self._members._member(self._members._after(last.address))
            # All were asked in this round. The pause differs, so that the clients of a member that
            # failed do not all come back at one time.
            if self._next in self._asked:
                self._asked.clear()
                await asyncio.sleep(min(random.uniform(0.5, 1.5) * PAUSE_MS / 1000, max(left_s, 0)))
                left_s = self._ends - time.monotonic()
        # The first attempt gets whatever is left; a further one must have a chance to be answered,
        # or its timeout would hide why the others failed.
        if left_s <= (self._repetition_s if self._asked_once else 0):
            raise StopAsyncIteration
        self._asked_once = True
        member, self._next = self._next, None
        assert member is not None
        self._asked.append(member)
        half_s = max((left_s + self._extra_s) / 2, ATTEMPT_MS_MIN / 1000)  # Of what is not extra.
        return member, min(left_s, half_s)


async def _settle(
    transaction: CommitRequest | Transaction, member: RemoteMember, timeout_s: float
) -> Outcome:
    """Returns the group's outcome of a transaction that was refused and may be on its way: under
    its id comes one that cannot pass, and what comes later is a repetition of it.
    Raises as `RemoteMember.call`.
    """
    request = CertifyRequest()
    request.transaction.transaction_id = transaction.transaction_id
    request.transaction.snapshot_version = NO_VERSION
    request.transaction.write_set.append(1)
    answer = await member.call("certify", request, timeout_s)
    return answer.outcome  # type: ignore[no-any-return]  # of a CertifyResponse


def _unknown(transaction: CommitRequest | Transaction, cause: str) -> OutcomeUnknown:
    return OutcomeUnknown(transaction_id=transaction.transaction_id, cause=cause)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def is_refusal(failure: GroupcertError) -> bool:
    """Returns whether a member, or gRPC for it, has refused a request, as any other would."""
    if isinstance(failure, MemberFailed):
        return failure.code in _REFUSING_CODES
    return advice_of(failure) in _FINAL_ADVICE


def no_answer(member: RemoteMember, timeout_s: float) -> NotServing:
    """Returns the error of a call to which a member gave no answer in time."""
    state = f"UNREACHABLE (no answer within {timeout_s:.1f} s)"
    return NotServing(member=member.address, state=state)
