"""References to the changes of a large transaction, which take the place of a payload.

Code that only passes a payload on need not know whether it is a reference; code that reads it calls
`is_reference` first. Row changes never begin with a reference's first byte.
"""

import struct
from typing import NamedTuple, Self

MARK = b"\x00"
"""No protobuf message begins with it: there is no field 0."""
DIGEST_BYTES = 16
_REFERENCE = struct.Struct(f">cQQIQ{DIGEST_BYTES}s")
REFERENCE_BYTES = _REFERENCE.size


class FragmentSet(NamedTuple):
    """The fragments of one transaction: transaction `number` of the run `incarnation` of a member.

    `pieces`, `size` (in bytes) and `digest` (xxh3, 128 bits) are of all pieces, before compression.
    """

    incarnation: int
    number: int
    pieces: int
    size: int
    digest: bytes

    def reference(self) -> bytes:
        """Returns the reference as a payload.

        >>> FragmentSet.of(FragmentSet(1, 2, 3, 4, bytes(16)).reference()).pieces
        3
        """
        return _REFERENCE.pack(MARK, *self)

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Returns the set that a payload refers to; only for one that `is_reference`."""
        assert is_reference(payload), "row changes in place of a reference"
        return cls(*_REFERENCE.unpack(payload)[1:])


def is_reference(payload: bytes) -> bool:
    """Returns whether a payload refers to pieces that are kept elsewhere."""
    return len(payload) == REFERENCE_BYTES and payload[:1] == MARK


def changes_bytes(payload: bytes) -> int:
    """Returns the size in bytes of the changes that a payload has or refers to."""
    return FragmentSet.of(payload).size if is_reference(payload) else len(payload)
