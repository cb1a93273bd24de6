"""Sessions by frames: noise in place of a ticket, lengths that lie, messages that are fuzzed."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from queue import SimpleQueue

import grpc

from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.security.credentials import Credentials
from groupcert.v1.session_pb2 import SessionFrames, SessionRequest
from groupcert.v1.session_pb2_grpc import SessionServiceStub
from tests.fuzz.calls import harmless
from tests.fuzz.methods import method_named, why_left_out
from tests.fuzz.mutations import mutated
from tests.fuzz.random_messages import random_message
from tests.fuzz.valid_requests import session
from tests.fuzz.values import Answers
from tests.raw_frames import SIGN_BYTES, RawFrames

PAUSE_SECONDS = 0.05
ANSWER_SECONDS, ANSWERS_MAX = 0.3, 20
TIMEOUT_SECONDS = 10.0
HELD_MAX = 40
"""Connections that read nothing, at a time; the oldest makes room."""
METHOD = method_named("SessionService/Session")


class FramedSessions:
    """One after the other, until it is stopped."""

    def __init__(
        self, addresses: Mapping[str, str], credentials: Credentials, seed: str, answers: Answers
    ) -> None:
        self._addresses = list(addresses.values())
        self._credentials = credentials
        self._chance = random.Random(f"{seed}/frames")
        self._answers = answers
        self._held: deque[RawFrames] = deque()
        self.counts: Counter[str] = Counter()
        """Sessions, by what they do."""

    async def run(self, stopped: asyncio.Event) -> None:
        """Opens sessions until it is stopped."""
        kinds = (self._noise, self._wrong_lengths, self._messages, self._messages, self._unread)
        while not stopped.is_set():
            kind = self._chance.choice(kinds)
            await asyncio.to_thread(self._open, kind)
            self.counts[f"frames: {kind.__name__.strip('_').replace('_', ' ')}"] += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), PAUSE_SECONDS)
        for each in self._held:
            each.close()

    def _open(self, kind: Callable[[str, SessionFrames], None]) -> None:
        address = self._chance.choice(self._addresses)
        with suppress(OSError, grpc.RpcError, GroupcertError, AssertionError, StopIteration):
            with self._told(address) as told:
                kind(address.rpartition(":")[0], told)

    @contextmanager
    def _told(self, address: str) -> Iterator[SessionFrames]:
        """Opens a stream that has frames, for as long as the block lasts."""
        member = DirectMember(address, self._credentials)
        requests: SimpleQueue[SessionRequest | None] = SimpleQueue()
        requests.put(SessionRequest(asks_frames=True))
        try:
            stub = SessionServiceStub(member.channel)
            stream = stub.Session(iter(requests.get, None), timeout=TIMEOUT_SECONDS)
            yield next(iter(stream)).frames
        finally:
            requests.put(None)
            member.channel.close()

    def _connected(self, host: str, told: SessionFrames) -> RawFrames:
        tls = self._credentials.tls
        return RawFrames.admitted(host, told, tls.client_context() if tls else None)

    def _noise(self, host: str, told: SessionFrames) -> None:
        """Connects without a ticket, and perhaps without TLS."""
        chance, tls = self._chance, self._credentials.tls
        context = tls.client_context() if tls and chance.random() < 0.5 else None
        with RawFrames(host, told.port, context, seconds=ANSWER_SECONDS) as frames:
            frames.put(chance.randbytes(chance.choice((1, SIGN_BYTES, 1_000, 100_000))))
            frames.received(SIGN_BYTES + 1)

    def _wrong_lengths(self, host: str, told: SessionFrames) -> None:
        chance = self._chance
        with self._connected(host, told) as frames:
            length = chance.choice((0, 1, 100, 1 << 20, (1 << 20) + (64 << 10) + 1, 2**32 - 1))
            frames.put(length.to_bytes(4) + chance.randbytes(chance.choice((0, 1, 50_000))))
            self._read(frames)

    def _messages(self, host: str, told: SessionFrames) -> None:
        """Sends what is right, mutated or random, and cuts off the last one now and then."""
        chance = self._chance
        with self._connected(host, told) as frames:
            for _ in range(chance.randrange(1, 6)):
                frames.send(self._drawn())
            if chance.random() < 0.3:
                frames.put(b"\0\0\1\0" + chance.randbytes(100))
            self._read(frames)

    def _unread(self, host: str, told: SessionFrames) -> None:
        frames = self._connected(host, told)
        self._held.append(frames)
        for _ in range(100):
            frames.send(self._drawn())
        if len(self._held) > HELD_MAX:
            self._held.popleft().close()

    def _drawn(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.3:
            message = random_message(METHOD.request, chance, self._answers)
        else:
            message = chance.choice(session(chance, self._answers))
        payload = harmless(message.SerializeToString())
        if chance.random() < 0.4:
            payload = harmless(mutated(payload, chance))
        return b"" if why_left_out(METHOD, payload) else payload

    def _read(self, frames: RawFrames) -> None:
        frames.limit(ANSWER_SECONDS)
        for answer in islice(frames.messages(), ANSWERS_MAX):
            self._answers.harvest(METHOD.response.FromString(answer))
