"""The gRPC server behind a door, with limits on what its callers may send ahead and leave open."""

import grpc.aio

from .call_limit import UNCHECKED_CALLS_MAX
from .door import Door

MESSAGE_BYTES_MAX = (1 << 20) + (64 << 10)
"""Bytes of a request; larger commits come in parts. Responses may be larger: a page of rows."""
UNREAD_BYTES_MAX = 16 << 10
"""Bytes of one call that its sender may send before the member reads. gRPC would let it grow to
MiBs, as its measures of the bandwidth suggest, even if the member does not read; a message that is
being read gets room for all of it anyway."""
CONNECTION_CALLS_MAX = 2_048
"""Calls at a time of one connection; its client lets more of them wait."""
ANSWER_BYTES_MAX = 64 << 20
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
"""After so long without a message the server pings a client; without an answer its calls end, and
what they held is free."""


def door_server(door: Door) -> grpc.aio.Server:
    """Returns a server, without services and ports yet, of which each call goes through a door."""
    return grpc.aio.server(
        interceptors=(door,),
        maximum_concurrent_rpcs=UNCHECKED_CALLS_MAX,
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", UNREAD_BYTES_MAX),
            ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
            ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_ping_strikes", 0),  # Clients may ask as well, as often as they like.
        ),
    )
