"""A commit whose answer is lost: what the client says is certain, or it says that nobody knows.

Method: servers that answer from a script, since a real member loses an answer only by chance.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import pytest

from groupcert.certifier.errors import (
    GroupcertError,
    NotServing,
    Overloaded,
    TransactionTooLarge,
    UploadExpired,
)
from groupcert.members.client.client import Client
from groupcert.members.client.client_options import certifiable
from groupcert.members.client.remote import RemoteMembers
from groupcert.members.client.remote_member import RemoteMember
from groupcert.members.errors.calls import TooManyCalls
from groupcert.members.errors.transactions import (
    CertificationConflict,
    MemberFailed,
    OutcomeUnknown,
)
from groupcert.members.wire import statuses as status
from groupcert.members.wire.channels import ADMITTED
from groupcert.members.wire.requests import SNAPSHOT_VERSION_MAX
from groupcert.v1 import (
    certification_pb2,
    session_pb2,
    session_pb2_grpc,
    store_pb2,
    transaction_pb2,
)

SNAPSHOT_VERSION = 5
COMMITTED = store_pb2.CommitResponse(gtid="u:6", version=6, log_sequence=9)
CERTIFIED = transaction_pb2.Outcome(
    verdict=transaction_pb2.VERDICT_CERTIFIED, gtid="u:6", version=6
)
CONFLICT = transaction_pb2.Outcome(
    verdict=transaction_pb2.VERDICT_CONFLICT, conflict=transaction_pb2.Conflict(key="a")
)
REFUSED = transaction_pb2.Outcome(verdict=transaction_pb2.VERDICT_REFUSED)
UNKNOWN = transaction_pb2.Outcome(
    transaction_id=b"1", verdict=transaction_pb2.VERDICT_UNKNOWN, reason="it may be forgotten"
)
LOST = NotServing(member="m1", state="FENCED")
STOPS = NotServing(member="m1", state="STOPPING", ordered="nothing")
BUSY = Overloaded(waiting=9, waiting_max=8)
FULL = TooManyCalls(open=9, open_max=9)
SLOW = UploadExpired(lease_ms=9)
HUGE = TransactionTooLarge(bytes=9, bytes_max=8)

Answer = store_pb2.CommitResponse | transaction_pb2.Outcome | GroupcertError | grpc.StatusCode | str
"""A text: gRPC's own refusal, RESOURCE_EXHAUSTED."""


@dataclass
class Script(session_pb2_grpc.SessionServiceServicer):
    """A member that gives one answer after the other, the last one for ever."""

    answers: list[Answer]
    remembered: transaction_pb2.Outcome | None = None
    forgotten_version: int = 0
    commits: list[store_pb2.CommitRequest] = field(default_factory=list)
    certified: list[transaction_pb2.Transaction] = field(default_factory=list)

    def Session(self, request_iterator: Any, context: Any) -> Iterator[session_pb2.SessionResponse]:
        """Answers each call alone."""
        context.send_initial_metadata(((ADMITTED, ""),))
        for request in request_iterator:
            for call in request.calls:
                kind = call.WhichOneof("call")
                answer = session_pb2.SessionAnswer(number=call.number)
                try:
                    found = getattr(self, f"_{kind}")(getattr(call, kind), context)
                    getattr(answer, kind).CopyFrom(found)
                except GroupcertError as error:
                    answer.error = status.rpc_status(error).SerializeToString()
                yield session_pb2.SessionResponse(answers=[answer])

    def _commit(self, request: store_pb2.CommitRequest, context: Any) -> store_pb2.CommitResponse:
        self.commits.append(request)
        answer = self._next(context)
        if isinstance(answer, transaction_pb2.Outcome):
            raise status.commit_error(answer)
        assert isinstance(answer, store_pb2.CommitResponse)
        return answer

    def _certify(
        self, request: certification_pb2.CertifyRequest, context: Any
    ) -> certification_pb2.CertifyResponse:
        self.certified.append(request.transaction)
        answer = self._next(context)
        assert isinstance(answer, transaction_pb2.Outcome)
        return certification_pb2.CertifyResponse(outcome=answer)

    def _get_outcome(self, _: Any, __: Any) -> certification_pb2.GetOutcomeResponse:
        return certification_pb2.GetOutcomeResponse(
            outcome=self.remembered, forgotten_version=self.forgotten_version
        )

    def _next(self, context: Any) -> Answer:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, GroupcertError):
            raise answer
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "as the script says")
        if isinstance(answer, str):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, answer)
        return answer

    def _open_snapshot(self, _: Any, __: Any) -> store_pb2.OpenSnapshotResponse:
        return store_pb2.OpenSnapshotResponse(snapshot_id=1, version=SNAPSHOT_VERSION)

    def _close_snapshot(self, _: Any, __: Any) -> store_pb2.CloseSnapshotResponse:
        return store_pb2.CloseSnapshotResponse()


@contextmanager
def serving(*scripts: Script) -> Iterator[list[str]]:
    """Yields the addresses of members that follow scripts."""
    servers, addresses = [], []
    for script in scripts:
        server = grpc.server(ThreadPoolExecutor(4))
        session_pb2_grpc.add_SessionServiceServicer_to_server(script, server)
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        server.start()
        servers.append(server)
    try:
        yield addresses
    finally:
        for server in servers:
            server.stop(None).wait()


def committed_version(*scripts: Script, timeout_ms: int = 10_000) -> int:
    """Commits a transaction at members that follow scripts; returns its version."""
    with serving(*scripts) as addresses, Client(addresses, timeout_ms=timeout_ms) as client:
        with client.transaction() as transaction:
            transaction.put(b"a", b"1")
        return transaction.version


def commit_until_the_limit(answer: Answer) -> None:
    """Commits at a member that gives one answer for ever. Tries again where the last one came after
    the limit, as on a busy machine: then the client says that, and not what it was.
    """
    while True:
        try:
            committed_version(Script([answer]), timeout_ms=1_000)
        except OutcomeUnknown as unknown:
            if "no answer within" not in str(unknown):
                raise


def test_a_lost_answer_is_asked_for_again_under_the_same_id() -> None:
    script = Script([LOST, grpc.StatusCode.INTERNAL, COMMITTED])
    assert committed_version(script) == 6
    assert len({commit.transaction_id for commit in script.commits}) == 1
    assert len(script.commits) == 3


def test_only_the_member_that_holds_the_snapshot_is_told_its_id_and_only_once() -> None:
    first, second = Script([LOST, COMMITTED]), Script([LOST])
    assert committed_version(first, second) == 6
    assert [commit.snapshot_id for commit in first.commits] == [1, 0]
    assert [commit.snapshot_id for commit in second.commits] == [0]
    assert {commit.snapshot_version for commit in first.commits} == {SNAPSHOT_VERSION}


def test_a_conflict_of_the_first_attempt_is_certain() -> None:
    with pytest.raises(CertificationConflict):
        committed_version(Script([CONFLICT], forgotten_version=SNAPSHOT_VERSION + 1))


def test_a_conflict_with_ones_own_forgotten_commit_is_not_taken_for_an_answer() -> None:
    script = Script([LOST, CONFLICT], forgotten_version=SNAPSHOT_VERSION + 1)
    with pytest.raises(OutcomeUnknown, match="outcomes up to version 6 are forgotten"):
        committed_version(script)


def test_a_conflict_of_a_repetition_is_certain_if_nothing_since_the_snapshot_is_forgotten() -> None:
    with pytest.raises(CertificationConflict):
        committed_version(Script([LOST, CONFLICT], forgotten_version=SNAPSHOT_VERSION))


def test_an_outcome_that_is_remembered_as_committed_wins_over_a_conflict() -> None:
    script = Script([LOST, CONFLICT], CERTIFIED, forgotten_version=SNAPSHOT_VERSION + 1)
    assert committed_version(script) == 6


def test_silence_until_the_limit_is_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknown, match="m1 is FENCED") as caught:
        commit_until_the_limit(LOST)
    assert len(caught.value.transaction_id) == 16


def test_a_refusal_of_the_first_attempt_is_certain() -> None:
    script = Script([HUGE])
    with pytest.raises(TransactionTooLarge):
        committed_version(script)
    assert script.certified == []


def test_a_refusal_after_a_lost_answer_is_certain_once_the_group_has_decided() -> None:
    """What is certified under the transaction's id cannot pass, and keeps what is late from it."""
    script = Script([LOST, HUGE, REFUSED], REFUSED)
    with pytest.raises(TransactionTooLarge, match="transaction of 9 bytes"):
        committed_version(script)
    [settling] = script.certified
    assert settling.transaction_id == script.commits[0].transaction_id
    assert settling.snapshot_version == SNAPSHOT_VERSION_MAX
    assert settling.write_set and not settling.changes


def test_a_refusal_after_a_commit_whose_answer_was_lost_is_none() -> None:
    assert committed_version(Script([LOST, HUGE, CERTIFIED])) == 6
    assert committed_version(Script([LOST, HUGE, REFUSED], CERTIFIED)) == 6


def test_a_refusal_after_a_lost_answer_is_unknown_where_nobody_can_say() -> None:
    with pytest.raises(OutcomeUnknown, match="outcomes up to version 6 are forgotten"):
        committed_version(Script([LOST, HUGE, REFUSED], forgotten_version=SNAPSHOT_VERSION + 1))
    with pytest.raises(OutcomeUnknown, match="transaction of 9 bytes"):
        committed_version(Script([LOST, HUGE]))
    with pytest.raises(OutcomeUnknown, match="transaction of 9 bytes"):
        committed_version(Script([LOST, HUGE, LOST]), timeout_ms=3_000)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (BUSY, Overloaded),
        (STOPS, NotServing),
        (FULL, TooManyCalls),
        (SLOW, UploadExpired),
        (status.TOO_MANY_CALLS, NotServing),
    ],
)
def test_a_member_that_turned_a_commit_away_has_not_ordered_anything(
    refusal: Answer, kind: type[GroupcertError]
) -> None:
    with pytest.raises(CertificationConflict):
        committed_version(Script([refusal, CONFLICT], forgotten_version=SNAPSHOT_VERSION + 1))
    with pytest.raises(kind):
        commit_until_the_limit(refusal)


def test_a_message_that_grpc_refuses_was_not_ordered() -> None:
    with pytest.raises(MemberFailed, match="RESOURCE_EXHAUSTED: as the script says"):
        committed_version(Script([grpc.StatusCode.RESOURCE_EXHAUSTED]))


def test_a_negative_verdict_of_a_repetition_is_checked_where_it_travels_in_the_response() -> None:
    transaction = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1])
    forgetful = Script([LOST, CONFLICT], forgotten_version=SNAPSHOT_VERSION + 1)
    mindful = Script([LOST, CONFLICT])
    with serving(forgetful, mindful) as (first, second):
        with Client(first) as client, pytest.raises(OutcomeUnknown):
            client.certify(transaction)
        with Client(second) as client:
            assert client.certify(transaction) == CONFLICT


def test_a_verdict_that_nobody_knows_is_none() -> None:
    transaction = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1])
    strange = transaction_pb2.Outcome.FromString(b"\x10\x63")  # Its verdict is 99.
    assert strange.verdict == 99
    with serving(Script([strange])) as (address,), Client(address) as client:
        with pytest.raises(OutcomeUnknown, match="verdict 99 is none that this release knows"):
            client.certify(transaction)


def test_a_transaction_without_an_id_goes_on_where_nothing_of_it_was_ordered() -> None:
    transaction = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1], transaction_id=b"")
    with serving(Script([STOPS]), Script([CERTIFIED])) as addresses:
        with Client(addresses) as client:
            assert client.certify(transaction) == CERTIFIED


def test_a_call_that_a_server_cut_off_is_made_at_another_member() -> None:
    """A server that ends cancels what it has not answered; the commit may be ordered."""
    cut_off = Script([grpc.StatusCode.CANCELLED])
    assert committed_version(cut_off, Script([COMMITTED])) == 6
    with pytest.raises(OutcomeUnknown, match="are forgotten"):
        committed_version(cut_off, Script([CONFLICT], forgotten_version=SNAPSHOT_VERSION + 1))


def test_a_transaction_without_an_id_is_sent_once() -> None:
    script = Script([LOST, CERTIFIED])
    transaction = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1], transaction_id=b"")
    with serving(script) as addresses, Client(addresses) as client, pytest.raises(OutcomeUnknown):
        client.certify(transaction)
    assert script.answers == [CERTIFIED]


def test_a_member_that_does_not_know_is_believed() -> None:
    unknown = OutcomeUnknown(transaction_id=b"1", cause="it may be forgotten")
    script = Script([unknown])
    with pytest.raises(OutcomeUnknown, match="it may be forgotten") as caught:
        committed_version(script)
    assert (len(script.commits), caught.value.transaction_id) == (1, b"1")
    transaction = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1])
    with serving(Script([UNKNOWN])) as addresses, Client(addresses) as client:
        with pytest.raises(OutcomeUnknown, match="it may be forgotten"):
            client.certify(transaction)


def test_an_attempt_is_the_first_one_until_another_may_be_ordered() -> None:
    script = Script([BUSY, LOST, COMMITTED])
    committed_version(script)
    assert [commit.first_attempt for commit in script.commits] == [True, True, False]
    script = Script([COMMITTED])
    with serving(script) as addresses, Client(addresses) as client:
        again = client.transaction()
        again.transaction_id = b"of another one"
        again.put(b"a", b"1")
        again.commit()
    assert [commit.first_attempt for commit in script.commits] == [False]
    mine = certifiable(snapshot=SNAPSHOT_VERSION, write_set=[1], first_attempt=True)
    script = Script([LOST, CERTIFIED])
    with serving(script) as addresses, Client(addresses) as client:
        client.certify(mine)
    assert [each.first_attempt for each in script.certified] == [True, False]
    assert mine.first_attempt, "the caller's own message"


async def test_a_question_is_asked_of_every_member_before_it_is_given_up() -> None:
    asked = []

    async def ask(member: RemoteMember, timeout_s: float) -> NoReturn:
        asked.append((member.address, timeout_s))
        raise NotServing(member=member.address, state="UNREACHABLE (gone)")

    members = RemoteMembers(["127.0.0.1:1", "127.0.0.1:2"], timeout_ms=1_500)
    with pytest.raises(NotServing, match=r"127.0.0.1:\d is UNREACHABLE \(gone\)"):
        await members.ask(ask)
    await members.close()
    addresses = [address for address, _ in asked]
    assert addresses[:4] == ["127.0.0.1:1", "127.0.0.1:2"] * 2
    assert all(timeout_s <= 0.75 for _, timeout_s in asked)


async def test_an_attempt_has_all_of_the_extra_time_and_half_of_what_is_left_beside_it() -> None:
    """However busy the machine is: an attempt that begins later has less."""
    given: list[tuple[float, float]] = []
    began = time.monotonic()

    async def send(member: RemoteMember, timeout_s: float) -> NoReturn:
        given.append((timeout_s, time.monotonic() - began))
        await asyncio.sleep(0.4)
        raise NotServing(member=member.address, state="UNREACHABLE (gone)")

    members = RemoteMembers(["127.0.0.1:1", "127.0.0.1:2"], timeout_ms=800)
    with pytest.raises(OutcomeUnknown):
        await members.decide(store_pb2.CommitRequest(transaction_id=b"id"), send, extra_s=1.6)
    await members.close()
    for (timeout_s, after_s), most_s in zip(given, (2.0, 1.8), strict=False):
        assert min(2.0 - after_s / 2, 2.4 - after_s) <= timeout_s <= most_s
    assert len(given) > 1
    assert all(0 < timeout_s <= 1.6 for timeout_s, _ in given[2:])
