"""The gRPC services of a member for transactions: they check requests, call the runtime and answer.

The rule it keeps: a request that a member cannot take is refused with a status that says who must
act; a verdict is no error, except for the unary commit of the store, where a conflict is ABORTED
with all particulars as its detail.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import grpc.aio

from groupcert.applier.targets.rocksdb import RowsSnapshot
from groupcert.certifier.errors import (
    CorruptStore,
    GroupcertError,
    InvalidSetting,
    NotServing,
    TooManyKeys,
)
from groupcert.certifier.records import Outcome, Verdict
from groupcert.certifier.write_set import items_from_texts, store_key_item
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.publisher import Submission
from groupcert.members.door.callers import CALLER
from groupcert.members.host.turns import Turns
from groupcert.members.large_transactions.parts import PartsReader, header_of, in_time
from groupcert.members.services.conversions import PART_BYTES, converted
from groupcert.members.services.current_runtime import CurrentRuntime
from groupcert.members.services.group_status import group_applier_status, group_status
from groupcert.members.services.history_pages import history_page, rows_of
from groupcert.members.services.serving import Serving
from groupcert.members.services.submitting import (
    is_large,
    snapshot_of,
    submit,
    submit_large,
    submit_uploaded,
)
from groupcert.members.wire.requests import (
    RequestLimits,
    check_id,
    outcome_message,
    submitted,
    submitted_commit,
)
from groupcert.members.wire.statuses import abort, outcome_status
from groupcert.v1 import (
    applier_pb2,
    applier_pb2_grpc,
    certification_pb2,
    certification_pb2_grpc,
    group_pb2,
    group_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
    transaction_pb2,
)

STREAM_MESSAGES_MAX = 64
"""Messages of one stream that a member takes before it has answered the first."""
STREAM_MESSAGE_BYTES = 64 << 10
"""Bytes; a larger message is answered before the next one is taken."""
GET_KEYS_MAX = 10_000
"""Keys of one call; to look up so many takes some 50 ms."""
SCAN_ROWS_MAX = 10_000
SCAN_BYTES_MAX = 8 << 20
"""Bytes of values after which a page of rows, or an answer of several rows, ends."""
WATCH_PERIOD_MS_MIN = 50

_AFTER = (
    transaction_pb2.CONSISTENCY_AFTER,
    transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER,
)
_BEFORE = (
    transaction_pb2.CONSISTENCY_BEFORE,
    transaction_pb2.CONSISTENCY_BEFORE_AND_AFTER,
)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Transactions: TypeAlias = "Sequence[transaction_pb2.Transaction]"


class CertificationService(certification_pb2_grpc.CertificationServiceServicer):
    """Certifies write sets of clients' own databases."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def Certify(
        self, request: certification_pb2.CertifyRequest, context: Context
    ) -> certification_pb2.CertifyResponse:
        """Certifies one transaction; see the protocol."""
        runtime: Serving = self._current.get()
        size, limits = request.ByteSize(), runtime.limits()
        (logged,) = await _submitted([request.transaction], size, limits)
        ended = await submit(runtime, logged)
        (message,) = await _outcome_messages(ended, [request.transaction], request.ByteSize())
        return certification_pb2.CertifyResponse(outcome=message)

    async def CertifyStream(
        self,
        request_iterator: AsyncIterator[certification_pb2.CertifyStreamRequest],
        context: Context,
    ) -> AsyncIterator[certification_pb2.CertifyStreamResponse]:
        """Certifies message after message; answers each as a whole, in the order they came in."""
        answers: asyncio.Queue[asyncio.Future[Submission] | GroupcertError | None]
        answers = asyncio.Queue(STREAM_MESSAGES_MAX)
        undecided: list[tuple[Transactions, int]] = []
        reader = asyncio.create_task(self._read_stream(request_iterator, undecided, answers))
        number = 0
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, GroupcertError):
                    raise answer
                messages = await _outcome_messages(await answer, *undecided.pop(0))
                numbers = range(number, number + len(messages))
                number = numbers.stop
                yield certification_pb2.CertifyStreamResponse(numbers=numbers, outcomes=messages)
        finally:
            reader.cancel()
            undecided.clear()  # The error would keep this frame until garbage collection.

    async def _read_stream(
        self,
        request_iterator: AsyncIterator[certification_pb2.CertifyStreamRequest],
        undecided: list[tuple[Transactions, int]],
        answers: "asyncio.Queue[asyncio.Future[Submission] | GroupcertError | None]",
    ) -> None:
        """Submits the messages of a stream; stops reading while too much is unanswered."""
        try:
            stopping, name = self._current.stopping, self._current.name
            async for request in stopping.received(request_iterator, name):
                size, limits = request.ByteSize(), self._current.get().limits()
                logged = await _submitted(request.transactions, size, limits)
                runtime: Serving = self._current.get()
                undecided.append((request.transactions, size))
                ended: asyncio.Future[Submission]
                if any(is_large(runtime, each) for each in logged):
                    ended = asyncio.ensure_future(submit_large(runtime, logged))
                else:
                    ended = runtime.submit(logged)
                await answers.put(ended)
                if size > STREAM_MESSAGE_BYTES:
                    await asyncio.wait((ended,))
        except GroupcertError as error:
            await answers.put(error.with_traceback(None))  # Its frames hold the request.
        else:
            await answers.put(None)

    async def GetOutcome(
        self, request: certification_pb2.GetOutcomeRequest, context: Context
    ) -> certification_pb2.GetOutcomeResponse:
        """Returns the outcome of a transaction; see the protocol."""
        check_id(request.transaction_id)
        runtime: Serving = self._current.get()
        response = certification_pb2.GetOutcomeResponse(
            state=certification_pb2.GetOutcomeResponse.STATE_UNKNOWN,
            forgotten_version=runtime.outcomes.forgotten_version,
        )
        outcome = runtime.outcomes.get(request.transaction_id)
        if outcome is not None:
            response.state = certification_pb2.GetOutcomeResponse.STATE_DECIDED
            response.outcome.CopyFrom(outcome_message(request.transaction_id, outcome, 0))
        elif runtime.is_pending(request.transaction_id):
            response.state = certification_pb2.GetOutcomeResponse.STATE_PENDING
        return response


class StoreService(store_pb2_grpc.StoreServiceServicer):
    """Transactions on the embedded store."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def HoldSession(
        self, request: store_pb2.HoldSessionRequest, context: Context
    ) -> AsyncIterator[store_pb2.HoldSessionResponse]:
        """Opens a session that lasts as long as the call; then its snapshots are closed."""
        snapshots = self._current.get().snapshots
        session_id = snapshots.begin_session()
        try:
            yield store_pb2.HoldSessionResponse(session_id=session_id)
            await self._current.stopping.ended()
        finally:
            snapshots.end_session(session_id)

    async def OpenSnapshot(
        self, request: store_pb2.OpenSnapshotRequest, context: Context
    ) -> store_pb2.OpenSnapshotResponse:
        """Opens a snapshot, once the requested consistency allows it."""
        with _fencing(self._current):
            runtime: Serving = self._current.get()
            self._current.stopping.check(self._current.name)
            if request.consistency in _BEFORE:
                mark = await runtime.submit(())
                await runtime.committed(mark.version)
            if request.version_min:
                await runtime.committed(request.version_min)
            runtime.check_readable()
            snapshot_id, version = runtime.snapshots.open(
                *(runtime.committed_version, runtime.now_ms()),
                caller=CALLER.get(),
                session_id=request.session_id,
            )
        return store_pb2.OpenSnapshotResponse(
            snapshot_id=snapshot_id, version=version, lease_ms=runtime.snapshots.lease_ms
        )

    async def CloseSnapshot(
        self, request: store_pb2.CloseSnapshotRequest, context: Context
    ) -> store_pb2.CloseSnapshotResponse:
        """Closes a snapshot."""
        self._current.get().snapshots.close(request.snapshot_id)
        return store_pb2.CloseSnapshotResponse()

    async def Get(self, request: store_pb2.GetRequest, context: Context) -> store_pb2.GetResponse:
        """Returns rows by their keys, as many as one answer may have."""
        if len(request.keys) > GET_KEYS_MAX:
            raise TooManyKeys(keys=len(request.keys), keys_max=GET_KEYS_MAX)

        response, keys, size = store_pb2.GetResponse(), iter(request.keys), 0

        def read(rows: RowsSnapshot, deadline: float) -> bool:
            nonlocal size
            for key in keys:
                value = rows.get(key)
                response.rows.add(key=key, value=value)
                size += len(key) + len(value or b"")
                if size > SCAN_BYTES_MAX:
                    return False
                if time.perf_counter() > deadline:
                    return True
            return False

        await self._read(request.snapshot_id, read, context)
        return response

    async def Scan(
        self, request: store_pb2.ScanRequest, context: Context
    ) -> store_pb2.ScanResponse:
        """Returns one page of a range."""
        limit = min(request.rows_max or SCAN_ROWS_MAX, SCAN_ROWS_MAX)
        response, start, size = store_pb2.ScanResponse(), request.start_key, 0

        def read(rows: RowsSnapshot, deadline: float) -> bool:
            nonlocal start, size
            left = limit + 1 - len(response.rows)
            for key, value in rows.scan(start, request.end_key or None, left):
                if len(response.rows) == limit or (response.rows and size > SCAN_BYTES_MAX):
                    response.next_key = key
                    return False
                response.rows.add(key=key, value=value)
                size += len(key) + len(value)
                if time.perf_counter() > deadline:
                    start = key + b"\x00"
                    return True
            return False

        await self._read(request.snapshot_id, read, context)
        return response

    async def Commit(
        self, request: store_pb2.CommitRequest, context: Context
    ) -> store_pb2.CommitResponse:
        """Orders, certifies and commits; returns once the rows are visible here."""
        runtime: Serving = self._current.get()
        snapshot_version = snapshot_of(runtime, request)
        after = request.consistency in _AFTER
        try:
            limits = runtime.limits()
            logged = await converted(
                request.ByteSize(),
                lambda: submitted_commit(request, snapshot_version, limits, report=after),
            )
            ended = await submit(runtime, logged)
        finally:  # Until then it keeps what the commit is checked against from collection.
            runtime.snapshots.close(request.snapshot_id)
        return await _committed(runtime, ended, request, context)

    async def CommitStream(
        self, request_iterator: AsyncIterator[store_pb2.CommitStreamRequest], context: Context
    ) -> AsyncIterator[store_pb2.CommitStreamResponse]:
        """Commits as `Commit`, in parts; forgets the parts if the caller hangs up."""
        runtime: Serving = self._current.get()
        limits = runtime.limits()
        requests = in_time(request_iterator, runtime.config.snapshot_lease_ms)
        header = await header_of(requests, limits)
        request = header.commit
        try:
            with runtime.uploads.begin(header.changes_bytes) as upload:
                snapshot_version = snapshot_of(runtime, request)
                admitted = store_pb2.CommitAdmitted()
                yield store_pb2.CommitStreamResponse(admitted=admitted)
                after = request.consistency in _AFTER
                logged = submitted_commit(request, snapshot_version, limits, report=after)
                parts = PartsReader(limits, lambda: snapshot_of(runtime, request))
                logged = await parts.read(requests, upload, logged)
                ended = await submit_uploaded(runtime, [upload], [logged])
        finally:
            runtime.snapshots.close(request.snapshot_id)
        response = await _committed(runtime, ended, request, context)
        yield store_pb2.CommitStreamResponse(committed=response)

    async def _read(
        self, snapshot_id: int, read: Callable[[RowsSnapshot, float], bool], context: Context
    ) -> None:
        """Reads the rows of a snapshot, in turns of `TURN_SECONDS` with other reads: `read` returns
        at its deadline, with True if it has to go on. Between two turns the store is not held, and
        may close.
        """
        with _fencing(self._current):
            turns = Turns()
            while True:
                runtime: Serving = self._current.get()
                rows = runtime.snapshots.rows(snapshot_id, runtime.now_ms())
                if not read(rows, turns.deadline):
                    return
                del rows
                await turns.others()


class GroupService(group_pb2_grpc.GroupServiceServicer):
    """Answers with the group as this member sees it."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def GetStatus(
        self, request: group_pb2.GetStatusRequest, context: Context
    ) -> group_pb2.GetStatusResponse:
        """Returns the status now."""
        return group_pb2.GetStatusResponse(status=group_status(self._current.observed()))

    async def WatchStatus(
        self, request: group_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[group_pb2.WatchStatusResponse]:
        """Yields the status again and again."""
        period_ms = max(request.period_ms, WATCH_PERIOD_MS_MIN)
        stopping = self._current.stopping
        while True:
            yield group_pb2.WatchStatusResponse(status=group_status(self._current.observed()))
            await stopping.unless(asyncio.sleep(period_ms / 1000), self._current.name)

    async def ReadHistory(
        self, request: group_pb2.ReadHistoryRequest, context: Context
    ) -> AsyncIterator[group_pb2.ReadHistoryResponse]:
        """Yields what the certification log has after a version."""
        with _fencing(self._current):
            runtime = self._current.get()
            writer = runtime.history_writer
            if writer is None:
                expected = "a folder, for its history to be read"
                raise InvalidSetting(name="certification_log", value=None, expected=expected)
            runtime.save()
            async for rows in rows_of(writer.outbox, writer.folder, runtime.committed_version):
                page = history_page(rows, request.after_version)
                if page.versions:
                    yield page
                if runtime.closed:
                    state = runtime.state.name
                    raise NotServing(member=runtime.config.member, state=state)


class MemberApplierService(applier_pb2_grpc.ApplierServiceServicer):
    """The applier of the member's own channel."""

    def __init__(self, current: CurrentRuntime) -> None:
        self._current = current

    async def GetApplierStatus(
        self, request: applier_pb2.GetApplierStatusRequest, context: Context
    ) -> applier_pb2.GetApplierStatusResponse:
        """Returns the status now."""
        return group_applier_status(self._current.observed())


async def _committed(
    runtime: Serving, ended: Submission, request: store_pb2.CommitRequest, context: Context
) -> store_pb2.CommitResponse:
    """Returns the answer to a commit that is decided; aborts the call if the transaction lost."""
    outcome, log_sequence = ended.outcomes[0], ended.log_sequence
    assert outcome is not None
    if outcome.verdict is not Verdict.CERTIFIED:
        await _abort_commit(context, request, outcome, log_sequence)
    if request.consistency in _AFTER:
        await runtime.applied_everywhere(outcome.version)
    return store_pb2.CommitResponse(
        gtid=str(outcome.gtid), version=outcome.version, log_sequence=log_sequence
    )


@contextmanager
def _fencing(current: CurrentRuntime) -> Iterator[None]:
    """Fences the member if the block raises CorruptStore: its applier reads the same store."""
    try:
        yield
    except CorruptStore as error:
        current.operated().give_up(error)
        raise


async def _abort_commit(
    context: Context, request: store_pb2.CommitRequest, outcome: Outcome, log_sequence: int
) -> NoReturn:
    """Aborts the call of a commit that lost, with the key of the row."""
    changes = request.changes
    keys = chain(changes.put_keys, changes.delete_keys, request.read_keys)
    key = await converted(request.ByteSize(), lambda: _key_of(outcome, keys))
    message = outcome_message(request.transaction_id, outcome, log_sequence, key)
    await abort(context, outcome_status(message))


def _key_of(outcome: Outcome, keys: Iterable[bytes]) -> bytes:
    """Returns the key whose item a transaction lost over; empty if none of `keys` is."""
    if outcome.conflict is None:
        return b""
    return next((key for key in keys if store_key_item(key) == outcome.conflict.item), b"")


async def _submitted(
    transactions: Transactions, size: int, limits: RequestLimits
) -> list[LoggedTransaction]:
    """Returns a client's transactions as they go into the log; `size` is the bytes of their
    message. Raises InvalidRequest, as `submitted`.
    """
    return await converted(
        size + PART_BYTES * len(transactions),
        lambda: [submitted(each, limits) for each in transactions],
    )


async def _outcome_messages(
    ended: Submission, transactions: Transactions, size: int
) -> list[transaction_pb2.Outcome]:
    """Returns the outcomes for the client that sent the transactions in `size` bytes."""

    def message(
        transaction: transaction_pb2.Transaction, outcome: Outcome | None
    ) -> transaction_pb2.Outcome:
        assert outcome is not None
        key = ""
        if outcome.conflict is not None:
            named = zip(
                items_from_texts(transaction.write_set_keys),
                transaction.write_set_keys,
                strict=True,
            )
            key = dict(named).get(outcome.conflict.item, "")
        encoded = key.encode()
        return outcome_message(transaction.transaction_id, outcome, ended.log_sequence, encoded)

    return await converted(
        size + PART_BYTES * len(transactions),
        lambda: list(map(message, transactions, ended.outcomes)),
    )
