"""A call as the fuzzer makes it: its messages as bytes, and how its client behaves."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.fuzz.methods import Method

BANK_PREFIXES = ((b"account/", b"fuzzing/"), (b"transfer/", b"fuzzings/"))
"""Rows of the honest clients, and what stands in their place, as long: nothing that is sent may
change them, or the sum that they are checked by would say nothing."""


class Call(NamedTuple):
    """One call of an rpc."""

    case: str
    """What is done, for the summary and for who reads the last calls before a failure."""
    method: Method
    payloads: Sequence[bytes]
    """The request; of a stream, all of them."""
    timeout_s: float = 5.0
    cancel_after_s: float | None = None
    half_closes: bool = True
    """False: the client leaves its stream open when it has sent all, until the deadline."""
    metadata: tuple[tuple[str, str | bytes], ...] = ()


def harmless(payload: bytes) -> bytes:
    """Returns a message without the keys of the honest clients' rows."""
    for prefix, other in BANK_PREFIXES:
        payload = payload.replace(prefix, other)
    return payload
