"""Mutations of the bytes of a valid message: bits, lengths, counts, and what nests too deep."""

import random
from collections.abc import Callable, Sequence

MESSAGE_BYTES_MAX = 1 << 20
"""A request; the log takes larger messages, which cost the machine too much here."""
HUGE_COUNTS = (1_000, 10_000, 70_000)
DEPTHS = (10, 99, 101, 5_000)
GROUP_FIELD = 1_000

Mutation = Callable[[bytes, random.Random], bytes]


def mutated(payload: bytes, chance: random.Random) -> bytes:
    """Returns a message's bytes after one to three mutations."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        payload = chance.choice(MUTATIONS)(payload, chance)[:MESSAGE_BYTES_MAX]
    return payload


def flip_bits(payload: bytes, chance: random.Random) -> bytes:
    """Flips up to eight bits."""
    changed = bytearray(payload)
    for _ in range(chance.randrange(1, 9) if changed else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(payload: bytes, chance: random.Random) -> bytes:
    """Removes the end."""
    return payload[: chance.randrange(len(payload) + 1)]


def remove(payload: bytes, chance: random.Random) -> bytes:
    """Removes a part."""
    first, last = _part(payload, chance)
    return payload[:first] + payload[last:]


def repeat(payload: bytes, chance: random.Random) -> bytes:
    """Repeats a part; of what begins with a field that makes entries."""
    first, last = _part(payload, chance)
    return payload[:last] + payload[first:last] * chance.choice((1, 2, 9)) + payload[last:]


def double(payload: bytes, chance: random.Random) -> bytes:
    """Repeats the whole: messages merge, entries double."""
    return payload * chance.choice((2, 3, 17))


def set_number(payload: bytes, chance: random.Random) -> bytes:
    """Puts a large number in the place of a byte."""
    if not payload:
        return payload
    place = chance.randrange(len(payload))
    number = chance.choice((127, 128, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1))
    return payload[:place] + varint(number) + payload[place + 1 :]


def add_many(payload: bytes, chance: random.Random) -> bytes:
    """Adds a huge count of one small field."""
    number, count = chance.randrange(1, 16), chance.choice(HUGE_COUNTS)
    piece = chance.choice((b"", b"\0", b"\x08\x01", b"\x0a\x00"))
    entry = varint(number << 3 | 2) + varint(len(piece)) + piece
    return payload + entry * min(count, MESSAGE_BYTES_MAX // len(entry))


def add_unknown(payload: bytes, chance: random.Random) -> bytes:
    """Adds fields that no release knows."""
    number = chance.choice((99, 2_047, 536_870_911))
    return payload + varint(number << 3 | 2) + varint(8) + chance.randbytes(8)


def nest_groups(payload: bytes, chance: random.Random) -> bytes:
    """Adds groups, a field type of long ago, deeply nested, some of which do not end."""
    depth = chance.choice(DEPTHS)
    begin, end = varint(GROUP_FIELD << 3 | 3), varint(GROUP_FIELD << 3 | 4)
    return payload + begin * depth + end * chance.choice((depth, depth, 0, depth + 1))


def noise(payload: bytes, chance: random.Random) -> bytes:
    """Returns anything else."""
    del payload
    return chance.randbytes(chance.choice((1, 5, 100, 5_000)))


MUTATIONS: Sequence[Mutation] = (
    flip_bits,
    flip_bits,
    flip_bits,
    set_number,
    set_number,
    cut,
    remove,
    repeat,
    double,
    add_many,
    add_unknown,
    nest_groups,
    noise,
)


def varint(number: int) -> bytes:
    """Returns a number as protobuf has it on the wire."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _part(payload: bytes, chance: random.Random) -> tuple[int, int]:
    first = chance.randrange(len(payload) + 1)
    return first, min(len(payload), first + chance.choice((1, 2, 8, 64)))
