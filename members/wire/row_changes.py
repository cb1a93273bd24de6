"""Row changes: keys and values that a transaction puts, and keys that it deletes, as bytes."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from groupcert.v1 import transaction_pb2

from ...applier.queue.fragment_references import is_reference
from ...certifier.errors import InvalidWriteSet
from ...certifier.write_set import store_key_items


def encode_changes(put_keys: Sequence[bytes], put_values: Sequence[bytes]) -> bytes:
    """Returns rows that are put as a payload."""
    changes = transaction_pb2.Changes(put_keys=put_keys, put_values=put_values)
    return changes.SerializeToString()


def decode_changes(payload: bytes) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """Returns keys put, their values, and keys deleted."""
    changes = transaction_pb2.Changes.FromString(payload)
    # Slices are lists: a field that is walked by itself takes several times as long.
    return changes.put_keys[:], changes.put_values[:], changes.delete_keys[:]


def decode_puts(
    payloads: Sequence[bytes],
) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]] | None:
    """Returns the rows of payloads that only put rows, read at once: messages one behind the other
    are a message with the repeated fields of all. None if one deletes a row, or cannot be read.
    """
    try:
        rows = decode_changes(b"".join(payloads))
    except DecodeError:
        return None
    return None if rows[2] else rows


def checked_changes(payload: bytes) -> transaction_pb2.Changes:
    """Returns parsed row changes. Raises InvalidWriteSet if they cannot be executed; a member must
    never order such, nor take them from the log. Cost: about 1 µs for a few rows.
    """
    try:
        changes = transaction_pb2.Changes.FromString(payload)
    except DecodeError:
        raise InvalidWriteSet(
            value=payload[:32].hex(), expected="changes that are a serialized groupcert.v1.Changes"
        ) from None
    check_pairs(changes)
    return changes


def check_pairs(changes: transaction_pb2.Changes) -> None:
    """Raises InvalidWriteSet unless there is one value for each key that is put."""
    if len(changes.put_keys) != len(changes.put_values):
        raise InvalidWriteSet(
            value=f"{len(changes.put_keys)} put_keys and {len(changes.put_values)} put_values",
            expected="one value for each key",
        )


def changed_keys(payload: bytes) -> Sequence[bytes]:
    """Returns the keys of the rows that a payload changes; none if it refers to fragments."""
    if is_reference(payload):
        return ()
    changes = transaction_pb2.Changes.FromString(payload)
    return [*changes.put_keys, *changes.delete_keys]


def changed_items(changes: transaction_pb2.Changes) -> list[int]:
    """Returns the write set of row changes: the item of each changed key, once."""
    keys = changes.put_keys[:] + changes.delete_keys[:]
    return list(dict.fromkeys(store_key_items(keys)))
