"""What a client's keys, values and ids may be, found where they are given and before anything is
sent: once a part of a commit is on its way, its refusal is hard to tell from a lost answer.
"""

from ...certifier.errors import InvalidWriteSet
from ...certifier.outcomes import TRANSACTION_ID_BYTES_MAX
from ..wire.pieces import VALUE_BYTES_MAX

KEY_BYTES_MAX = 512 << 10
"""Bytes of a key: two of them fit into one message, as the ends of a range do."""


def checked_key(key: bytes, name: str = "key") -> bytes:
    """Returns a key. Raises TypeError if it is none, InvalidWriteSet if it is too long."""
    _check_bytes(key, name)
    if len(key) > KEY_BYTES_MAX:
        raise InvalidWriteSet(
            value=f"{'an' if name == 'end' else 'a'} {name} of {len(key)} bytes",
            expected=f"keys of at most {KEY_BYTES_MAX} bytes",
        )
    return key


def checked_value(value: bytes, key: bytes) -> bytes:
    """Returns the value of a key. Raises as `checked_key`."""
    _check_bytes(value, "value")
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidWriteSet(
            value=f"a value of {len(value)} bytes for key {key[:20]!r}",
            expected=f"values of at most {VALUE_BYTES_MAX} bytes: divide it among rows",
        )
    return value


def check_id(transaction_id: bytes) -> None:
    """Raises TypeError or InvalidWriteSet if a transaction id is none."""
    _check_bytes(transaction_id, "transaction_id")
    if len(transaction_id) > TRANSACTION_ID_BYTES_MAX:
        raise InvalidWriteSet(
            value=transaction_id[: 2 * TRANSACTION_ID_BYTES_MAX].hex(),
            expected=f"a transaction_id of at most {TRANSACTION_ID_BYTES_MAX} bytes",
        )


def _check_bytes(value: bytes, name: str) -> None:
    if not isinstance(value, bytes):
        kind = type(value).__name__
        raise TypeError(f"{name} is {kind} {value!r:.80}: give bytes, such as b'account/1'")
