"""A replica's way from source to source, over gRPC, at servers that answer as a test says."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_status import rpc_status as grpc_rpc_status

from groupcert.applier.errors import PurgedAtSource
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.host.loopback import HOST
from groupcert.members.replica import sources as replica_source
from groupcert.members.replica.sources import ReplicaSources
from groupcert.members.wire.statuses import rpc_status
from groupcert.v1.binary_log_pb2 import SubscribeRequest, SubscribeResponse

Answer = Callable[[grpc.ServicerContext], Iterator[SubscribeResponse]]


class Source:
    """Answers each call by the next of its answers, and then by the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.calls = 0
        self._answers = answers

    def subscribe(
        self, request: SubscribeRequest, context: grpc.ServicerContext
    ) -> Iterator[SubscribeResponse]:
        """What this call is to be answered."""
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        return answer(context)


def tells(context: grpc.ServicerContext) -> Iterator[SubscribeResponse]:
    """Says that it is there, and hangs up."""
    yield SubscribeResponse(source="there")


def is_killed(context: grpc.ServicerContext) -> Iterator[SubscribeResponse]:
    """Says that it is there, and is not any more."""
    yield SubscribeResponse(source="killed")
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def hangs(context: grpc.ServicerContext) -> Iterator[SubscribeResponse]:
    """Says that it is there, and then nothing."""
    yield SubscribeResponse(source="hangs")
    while context.is_active():
        time.sleep(0.01)


def has_purged(context: grpc.ServicerContext) -> Iterator[SubscribeResponse]:
    """Cannot serve this replica."""
    error = PurgedAtSource(source="old", missing="u:1")
    context.abort_with_status(grpc_rpc_status.to_status(rpc_status(error)))
    yield SubscribeResponse()


@contextmanager
def serving(*sources: Source) -> Iterator[ReplicaSources]:
    """A replica's sources, at servers of their own."""
    servers, addresses = [], []
    for source in sources:
        server = grpc.server(ThreadPoolExecutor(4))
        method = grpc.unary_stream_rpc_method_handler(
            source.subscribe, SubscribeRequest.FromString, SubscribeResponse.SerializeToString
        )
        service = "groupcert.v1.BinaryLogService"
        handler = grpc.method_handlers_generic_handler(service, {"Subscribe": method})
        server.add_generic_rpc_handlers((handler,))
        addresses.append(f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}")
        server.start()
        servers.append(server)
    try:
        yield ReplicaSources(addresses, "r1")
    finally:
        for server in servers:
            server.stop(0).wait()


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds would only be waited for."""
    monkeypatch.setattr(replica_source, "PAUSE_SECONDS", 0.01)


def names(sources: ReplicaSources, count: int) -> list[str]:
    """Who the next news are from; nobody while none answers."""
    follow = sources.follow(GtidSet(), lambda: 1)
    return [next(follow).source for _ in range(count)]


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_source, "SILENCE_SECONDS_MAX", 0.2)
    with serving(Source(hangs), Source(tells)) as sources:
        assert names(sources, 4) == ["hangs", "", "there", ""]


def test_one_is_not_given_up_while_its_news_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_source, "SILENCE_SECONDS_MAX", 0.1)
    with serving(
        Source(lambda context: (one for _ in (1, 2) for one in tells(context)))
    ) as sources:
        follow = sources.follow(GtidSet(), lambda: 1)
        assert next(follow).source == "there"
        time.sleep(0.3)
        assert next(follow).source == "there"


def test_refused_by_all_it_ends() -> None:
    with serving(Source(has_purged), Source(has_purged)) as sources:
        follow = sources.follow(GtidSet(), lambda: 1)
        assert not next(follow).source
        with pytest.raises(PurgedAtSource, match="old"):
            next(follow)


def test_one_that_does_not_answer_has_not_refused() -> None:
    with serving(Source(has_purged), Source(is_killed, is_killed, tells)) as sources:
        assert names(sources, 8) == ["", "killed", "", "", "killed", "", "", "there"]


def test_while_nobody_answers_its_caller_is_asked_whether_to_go_on() -> None:
    assert names(ReplicaSources([f"{HOST}:1"], "r1"), 2) == ["", ""]
