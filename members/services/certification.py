"""The gRPC service that certifies write sets of clients' own databases.

The rule it keeps: a request that a member cannot take is refused with a status that says who must
act; a verdict is no error.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, TypeAlias

from groupcert.v1 import certification_pb2, certification_pb2_grpc, transaction_pb2

from ...certifier.errors import GroupcertError
from ...certifier.outcomes import Doubtful
from ...certifier.write_set import items_from_texts
from ..core.log_records import LoggedTransaction
from ..core.publisher import Submission
from ..wire.requests import (
    check_id,
    outcome_message,
    submitted,
    unknown_message,
)
from .conversions import PART_BYTES, converted
from .serving import Context, Current, Serving
from .submitting import (
    is_large,
    least_read,
    limits_of_caller,
    submit,
    submit_large,
)

STREAM_MESSAGES_MAX = 64
"""Messages of one stream that a member takes before it has answered the first."""
STREAM_BYTES = 256 << 10
"""Bytes of messages without an answer above which the member takes no more of a stream."""
Transactions: TypeAlias = "Sequence[transaction_pb2.Transaction]"
PASSED_AGAIN = "perhaps for the second time: {problem}"
"""Reason of what was certified without a write set, with which a repetition does not conflict."""


class Asked(NamedTuple):
    """A message of transactions that waits for their outcomes."""

    transactions: Transactions
    size: int
    withheld: frozenset[int] = frozenset()
    """Indexes of those that are not ordered: they might be certified a second time."""

    def ordered(self, logged: Sequence[LoggedTransaction]) -> list[LoggedTransaction]:
        """Returns the transactions that go into the log."""
        return [each for index, each in enumerate(logged) if index not in self.withheld]


class _Unanswered:
    """The messages of a stream that wait for their answer, whose keys may be named in it."""

    def __init__(self) -> None:
        self._messages: deque[Asked] = deque()
        self._bytes = 0
        self._answered = asyncio.Event()

    def add(self, asked: Asked) -> None:
        """Adds a message."""
        self._messages.append(asked)
        self._bytes += asked.size

    def pop(self) -> Asked:
        """Returns the oldest message, and removes it."""
        asked = self._messages.popleft()
        self._bytes -= asked.size
        self._answered.set()
        return asked

    async def room(self) -> None:
        """Waits while they are too large."""
        while self._bytes > STREAM_BYTES:
            self._answered.clear()
            await self._answered.wait()

    def clear(self) -> None:
        """Forgets all."""
        self._messages.clear()


class CertificationService(certification_pb2_grpc.CertificationServiceServicer):
    """Certifies write sets of clients' own databases."""

    def __init__(self, current: Current) -> None:
        self._current = current

    async def Certify(
        self, request: certification_pb2.CertifyRequest, context: Context
    ) -> certification_pb2.CertifyResponse:
        """Certifies one transaction; see the protocol."""
        runtime = self._current.writable()
        size = request.ByteSize()
        (logged,) = await _submitted(runtime, [request.transaction], size)
        asked = _asked(runtime, [request.transaction], size, [logged])
        ended = await (runtime.submit(()) if asked.withheld else submit(runtime, logged))
        (message,) = await self._answers(ended, asked)
        return certification_pb2.CertifyResponse(outcome=message)

    async def CertifyStream(
        self,
        request_iterator: AsyncIterator[certification_pb2.CertifyStreamRequest],
        context: Context,
    ) -> AsyncIterator[certification_pb2.CertifyStreamResponse]:
        """Certifies message after message; answers each as a whole, in the order they came in."""
        answers: asyncio.Queue[asyncio.Future[Submission] | GroupcertError | None]
        answers = asyncio.Queue(STREAM_MESSAGES_MAX)
        unanswered = _Unanswered()
        reader = asyncio.create_task(self._read_stream(request_iterator, unanswered, answers))
        number = 0
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, GroupcertError):
                    raise answer
                messages = await self._answers(await answer, unanswered.pop())
                numbers = range(number, number + len(messages))
                number = numbers.stop
                yield certification_pb2.CertifyStreamResponse(numbers=numbers, outcomes=messages)
        finally:
            reader.cancel()
            unanswered.clear()  # The error would keep this frame until garbage collection.

    async def _read_stream(
        self,
        request_iterator: AsyncIterator[certification_pb2.CertifyStreamRequest],
        unanswered: _Unanswered,
        answers: "asyncio.Queue[asyncio.Future[Submission] | GroupcertError | None]",
    ) -> None:
        """Submits the messages of a stream; stops reading while too much is unanswered."""
        try:
            stopping, name = self._current.stopping, self._current.name
            async for request in stopping.received(request_iterator, name):
                size = request.ByteSize()
                logged = await _submitted(self._current.writable(), request.transactions, size)
                runtime = self._current.writable()
                asked = _asked(runtime, request.transactions, size, logged)
                unanswered.add(asked)
                logged = asked.ordered(logged)
                ended: asyncio.Future[Submission]
                if any(is_large(runtime, each) for each in logged):
                    ended = asyncio.ensure_future(submit_large(runtime, logged))
                else:
                    ended = runtime.submit(logged)
                ended.add_done_callback(_note)  # Its client may hang up before it is answered.
                await answers.put(ended)
                del request
                await unanswered.room()
        except GroupcertError as error:
            await answers.put(error.with_traceback(None))  # Its frames hold the request.
        else:
            await answers.put(None)

    async def _answers(self, ended: Submission, asked: Asked) -> list[transaction_pb2.Outcome]:
        """Returns the outcomes for the client, and notes the rows that it has named."""
        runtime = self._current.writable()
        messages = await outcome_messages(runtime.known.problem, ended, asked)
        for message in messages:
            if message.conflict.key_bytes:
                runtime.name_row(message.conflict.item, message.conflict.key_bytes)
        return messages

    async def GetOutcome(
        self, request: certification_pb2.GetOutcomeRequest, context: Context
    ) -> certification_pb2.GetOutcomeResponse:
        """Returns the outcome of a transaction; see the protocol."""
        check_id(request.transaction_id)
        runtime = self._current.writable()
        response = certification_pb2.GetOutcomeResponse(
            state=certification_pb2.GetOutcomeResponse.STATE_UNKNOWN,
            forgotten_version=runtime.known.forgotten_version,
        )
        outcome = runtime.known.get(request.transaction_id)
        if outcome is not None and (outcome.version or not isinstance(outcome, Doubtful)):
            response.state = certification_pb2.GetOutcomeResponse.STATE_DECIDED
            response.outcome.CopyFrom(outcome_message(request.transaction_id, outcome, 0))
        elif runtime.known.is_pending(request.transaction_id):
            response.state = certification_pb2.GetOutcomeResponse.STATE_PENDING
        return response


def _note(ended: "asyncio.Future[Submission]") -> None:
    """Takes note of an error, which asyncio would report if nobody did."""
    if not ended.cancelled():
        ended.exception()


async def _submitted(
    runtime: Serving, transactions: Transactions, size: int
) -> list[LoggedTransaction]:
    """Returns a client's transactions as they go into the log; `size` is the bytes of their
    message. Raises InvalidRequest, as `submitted`.
    """
    limits = limits_of_caller(runtime)
    # A large message waits for a thread meanwhile: what it is checked against is kept.
    release = runtime.held.hold_all(map(least_read, transactions))
    try:
        return await converted(
            size + PART_BYTES * len(transactions),
            lambda: [submitted(each, limits) for each in transactions],
        )
    finally:
        release()


def _asked(
    runtime: Serving,
    transactions: Transactions,
    size: int,
    logged: Sequence[LoggedTransaction],
) -> Asked:
    """Returns a message of `size` bytes; withholds repetitions that nothing else would stop."""
    pairs = enumerate(zip(transactions, logged, strict=True))
    withheld = frozenset(
        index
        for index, (sent, each) in pairs
        if not sent.first_attempt and runtime.known.passes_again(each)
    )
    return Asked(transactions, size, withheld)


async def outcome_messages(
    problem: str, ended: Submission, asked: Asked
) -> list[transaction_pb2.Outcome]:
    """Returns the outcomes for the client that sent the transactions; `problem`: why nobody can say
    what became of some.
    """
    transactions, size, withheld = asked
    outcomes = iter(ended.outcomes)

    def message(index: int, sent: transaction_pb2.Transaction) -> transaction_pb2.Outcome:
        outcome = None if index in withheld else next(outcomes)
        is_doubtful = isinstance(outcome, Doubtful) and not sent.first_attempt
        if outcome is None or (is_doubtful and not outcome.version):
            return unknown_message(sent.transaction_id, problem)
        key = ""
        if outcome.conflict is not None:
            named = zip(items_from_texts(sent.write_set_keys), sent.write_set_keys, strict=True)
            key = dict(named).get(outcome.conflict.item, "")
        told = outcome_message(sent.transaction_id, outcome, ended.log_sequence, key.encode())
        if is_doubtful:
            told.reason = PASSED_AGAIN.format(problem=problem)
        return told

    return await converted(
        size + PART_BYTES * len(transactions),
        lambda: [message(*each) for each in enumerate(transactions)],
    )
