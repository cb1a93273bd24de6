"""Clients that ask for much and read nothing: each holds a connection whose windows stay shut."""

import asyncio
import random
import ssl
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress

import grpc

from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.direct_calls import DirectMember
from groupcert.members.security.credentials import Credentials
from groupcert.members.wire.channels import token_metadata
from groupcert.v1.session_pb2 import SessionCall, SessionRequest
from groupcert.v1.store_pb2 import CommitRequest, OpenSnapshotRequest, ScanRequest
from groupcert.v1.store_pb2_grpc import StoreServiceStub
from groupcert.v1.transaction_pb2 import Changes
from tests.fuzz.calls import harmless
from tests.fuzz.methods import method_named, why_left_out
from tests.fuzz.valid_requests import VALID
from tests.fuzz.values import Answers
from tests.raw_calls import RawCalls

CALLS_MAX = 200
SCANS = 2
"""Of a session stream: more would soon be all that the caller may have."""
ROWS, ROW_BYTES = 8, 500_000
"""That scans find."""
REQUEST_BYTES_MAX = 8_192
"""More would wait for a member that reads in turns."""
HELD_MAX = 40
"""Connections at a time; the oldest makes room."""
PAUSE_SECONDS = 0.5
TIMEOUT_SECONDS = 10.0


class UnreadAnswers:
    """Connections, one after the other, until it is stopped."""

    def __init__(
        self, addresses: Mapping[str, str], credentials: Credentials, seed: str, answers: Answers
    ) -> None:
        self._addresses = list(addresses.values())
        self._credentials = credentials
        self._metadata = token_metadata(credentials)
        self._chance = random.Random(f"{seed}/unread")
        self._answers = answers
        self.counts: Counter[str] = Counter()
        """Calls without a reader, by method."""

    async def run(self, stopped: asyncio.Event) -> None:
        """Asks until it is stopped, and keeps the newest connections."""
        held: deque[RawCalls] = deque()
        try:
            while not stopped.is_set():
                await asyncio.to_thread(self._ask, held)
                if len(held) > HELD_MAX:
                    await asyncio.to_thread(held.popleft().__exit__)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopped.wait(), PAUSE_SECONDS)
        finally:
            for each in held:
                await asyncio.to_thread(each.__exit__)

    def _ask(self, held: deque[RawCalls]) -> None:
        """Makes calls over another connection."""
        chance = self._chance
        address, window = chance.choice(self._addresses), chance.choice((0, None))
        with suppress(OSError, AssertionError, grpc.RpcError, GroupcertError):
            scan = self._scan(address)
            held.append(RawCalls(address, window, self._tls()))
            for _ in range(chance.randrange(1, CALLS_MAX)):
                name, request = self._drawn(scan)
                held[-1].ask(method_named(name).path, request, self._metadata)
                self.counts[name] += 1

    def _drawn(self, scan: ScanRequest) -> tuple[str, bytes]:
        """Returns a request for much: of rows mostly, else any that a client may make."""
        chance = self._chance
        if chance.random() < 0.3:
            return "StoreService/Scan", scan.SerializeToString()
        if chance.random() < 0.5:
            asked = [SessionCall(number=number, scan=scan) for number in range(1, SCANS + 1)]
            return "SessionService/Session", SessionRequest(calls=asked).SerializeToString()
        name = chance.choice(sorted(VALID))
        request = harmless(VALID[name](chance, self._answers)[0].SerializeToString())
        if len(request) > REQUEST_BYTES_MAX or why_left_out(method_named(name), request):
            return "GroupService/GetStatus", b""
        return name, request

    def _scan(self, address: str) -> ScanRequest:
        """Returns a read of large rows, one of which is written before."""
        member = DirectMember(address, self._credentials)
        try:
            stub, number = StoreServiceStub(member.channel), self._chance.randrange(ROWS)
            changes = Changes(put_keys=[b"fuzz/unread/%d" % number], put_values=[bytes(ROW_BYTES)])
            opened = stub.OpenSnapshot(OpenSnapshotRequest(), timeout=TIMEOUT_SECONDS)
            commit = CommitRequest(snapshot_id=opened.snapshot_id, changes=changes)
            with suppress(grpc.RpcError):  # Another one may have been faster.
                stub.Commit(commit, timeout=TIMEOUT_SECONDS)
            opened = stub.OpenSnapshot(OpenSnapshotRequest(), timeout=TIMEOUT_SECONDS)
            return ScanRequest(snapshot_id=opened.snapshot_id, start_key=b"fuzz/unread/")
        finally:
            member.channel.close()

    def _tls(self) -> ssl.SSLContext | None:
        if self._credentials.tls is None:
            return None
        context: ssl.SSLContext = self._credentials.tls.client_context()
        context.set_alpn_protocols(["h2"])
        return context
