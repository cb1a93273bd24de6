"""Members as a client reaches them: one channel each, and which one to ask next.

The rule it keeps: a call that may be repeated is asked of one member after the other until one
answers or the time is up; no attempt gets more than half of the time that is left, so that a member
that hangs does not use up what another one could answer in.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence

import grpc

from groupcert.v1.certification_pb2_grpc import CertificationServiceStub
from groupcert.v1.group_pb2_grpc import GroupServiceStub
from groupcert.v1.store_pb2_grpc import StoreServiceStub

MESSAGE_BYTES_MAX = 64 << 20
KEEPALIVE_MS = 30_000
ATTEMPT_MS_MIN = 100
PAUSE_MS = 50
"""Mean pause between two attempts; each is drawn between half of it and one and a half."""

_READS = (
    *(("groupcert.v1.StoreService", method) for method in ("Get", "Scan")),
    *(("groupcert.v1.GroupService", method) for method in ("GetStatus",)),
)
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": service, "method": method} for service, method in _READS],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.05s",
                "maxBackoff": "0.5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # clients of one process have connections of their own
    ("grpc.enable_retries", 1),
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
)


class RemoteMember:
    """One member's services."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.store = StoreServiceStub(self.channel)
        self.certification = CertificationServiceStub(self.channel)
        self.group = GroupServiceStub(self.channel)


class RemoteMembers:
    """The members that a client may ask; it stays with one for as long as that one answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._members: dict[str, RemoteMember] = {}
        self._index = 0

    @property
    def current(self) -> RemoteMember:
        """The member that is asked first."""
        address = self._addresses[self._index % len(self._addresses)]
        if address not in self._members:
            self._members[address] = RemoteMember(address)
        return self._members[address]

    def move_on(self) -> None:
        """Asks the next member from now on: the current one did not answer."""
        self._index += 1

    def attempts(self, timeout_ms: int) -> Iterator[tuple[RemoteMember, float]]:
        """Yields whom to ask and for how many seconds to wait, until the time is up.

        The caller leaves the loop with an answer; what goes on asks the next member.
        """
        ends = time.monotonic() + timeout_ms / 1000
        while (left_s := ends - time.monotonic()) > 0:
            yield self.current, max(left_s / 2, min(left_s, ATTEMPT_MS_MIN / 1000))
            self.move_on()
            if self._index % len(self._addresses) == 0:
                pause_s = PAUSE_MS / 1000 * random.uniform(0.5, 1.5)
                time.sleep(max(0.0, min(pause_s, ends - time.monotonic())))

    def close(self) -> None:
        """Closes every channel."""
        for member in self._members.values():
            member.channel.close()
