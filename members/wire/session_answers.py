"""Writes the answers of a session stream as bytes, each once.

A message that is put into another one is copied field by field, and once more for its size: with a
page of rows that holds an event loop for longer than to read them. Bytes of messages, one after the
other, are one message of all their answers.
"""

from typing import Final

from google.protobuf.message import Message

from groupcert.v1.session_pb2 import SessionAnswer, SessionResponse

_LENGTH: Final = 2
"""The wire type of bytes and messages."""
_NUMBER = SessionAnswer.DESCRIPTOR.fields_by_name["number"].number << 3
_ANSWERS = SessionResponse.DESCRIPTOR.fields_by_name["answers"].number << 3 | _LENGTH
_FIELDS = {each.name: each.number << 3 | _LENGTH for each in SessionAnswer.DESCRIPTOR.fields}


def answered(number: int, field: str, response: Message) -> bytes:
    """Returns a serialized `SessionResponse` with one answer.

    >>> from groupcert.v1.store_pb2 import CloseSnapshotResponse
    >>> answered(300, "close_snapshot", CloseSnapshotResponse())
    b'\\n\\x05\\x08\\xac\\x02\\x1a\\x00'
    """
    data = response.SerializeToString()
    head = _varint(_NUMBER) + _varint(number) + _varint(_FIELDS[field]) + _varint(len(data))
    return b"".join((_varint(_ANSWERS), _varint(len(head) + len(data)), head, data))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _BYTES[number]
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_BYTES = [bytes((number,)) for number in range(0x80)]
