"""Values for the fields of random messages: limits, nonsense, and what the group has answered.

A random id is never the id of anything. So whatever a member answers is kept by the name of its
field, and requests take from there as often as they make something up.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.methods import MEMBERS

KEPT_MAX = 64
"""Answers that are kept of each field."""
HARVESTED_MAX = 16
"""Entries of a repeated field that are looked at."""
VALUE_BYTES_MAX = 64 << 10
"""A longer answer is not kept."""
SOURCES = tuple(f"{number:08x}-f022-4e5d-8000-000000000000" for number in range(4))
"""Of GTIDs that transactions bring along: a group takes those of 4,096 sources, for ever."""
GTID_NUMBER_MAX = 2_000

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    100,
    10_000,
    65_535,
    65_536,
    65_537,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
TEXTS = (
    "",
    "m9",
    "-",
    "x" * 65,
    "group",
    "local",
    "127.0.0.1:1",
    "host:99999",
    "\0",
    "🤷" * 20,
    "u:1",
    f"{SOURCES[0]}:1",
    f"{SOURCES[0]}:1-3:7",
    f"{SOURCES[0]}:0",
    f"{SOURCES[1]}:5-1",
    f"{SOURCES[0]}:{2**63 - 1}",
    f"{SOURCES[0]}:{2**63}",
    f"{SOURCES[0]}:1,{SOURCES[1]}:2",
    *MEMBERS,
    "table",
    "true",
    "9" * 40,
    "/etc/passwd",
    "../../etc",
    "grpc.health.v1.Health",
)

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}


class Answers:
    """What members have answered, by the name of the field."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[object]] = defaultdict(lambda: deque(maxlen=KEPT_MAX))

    def harvest(self, message: Message) -> None:
        """Keeps the values of a message's fields."""
        for field, value in message.ListFields():
            values = value if field.is_repeated else (value,)
            for each in list(values)[:HARVESTED_MAX]:
                if isinstance(each, Message):
                    self.harvest(each)
                elif not isinstance(each, str | bytes) or len(each) <= VALUE_BYTES_MAX:
                    self._kept[field.name].append(each)

    def latest(self, name: str) -> int:
        """Returns the newest answer of a field of numbers; 0: there is none."""
        return int(str(self.newest(name) or 0))

    def newest(self, name: str) -> object | None:
        """Returns the newest answer of a field; None: there is none."""
        kept = self._kept.get(name)
        return kept[-1] if kept else None

    def find(self, field: FieldDescriptor, chance: random.Random) -> object | None:
        """Returns an answer of a field of that name that fits, or None."""
        kept = self._kept.get(field.name)
        if not kept:
            return None
        found = kept[chance.randrange(len(kept))]
        if type(found) is not type(field.default_value):
            return None
        if isinstance(found, int) and field.cpp_type in _INTEGERS:
            return _fitting(found, field)  # A field of that name may be wider in the answer.
        return found


def scalar(field: FieldDescriptor, chance: random.Random, answers: Answers) -> object:
    """Returns a value of a field that is no message: an answer, a limit, or nonsense."""
    if field.name == "gtid":
        return _gtid(chance)
    if chance.random() < 0.5 and (found := answers.find(field, chance)) is not None:
        return found
    return _MADE_UP[field.cpp_type](field, chance)


def rows_changed(chance: random.Random) -> bytes:
    """Returns a key of the rows that the fuzzer writes."""
    return b"fuzz/%d" % chance.randrange(200)


def _gtid(chance: random.Random) -> str:
    kinds: Sequence[Callable[[], str]] = (
        lambda: "",
        lambda: "",
        lambda: f"{chance.choice(SOURCES)}:{chance.randrange(1, GTID_NUMBER_MAX)}",
        lambda: chance.choice(("u:1", ":", f"{SOURCES[0]}:0", f"{SOURCES[0]}:-1", "x" * 99)),
    )
    return chance.choice(kinds)()


def _integer(field: FieldDescriptor, chance: random.Random) -> int:
    return _fitting(
        chance.choice(NUMBERS) if chance.random() < 0.6 else chance.getrandbits(64), field
    )


def _fitting(number: int, field: FieldDescriptor) -> int:
    """Returns a number with as many bits as a field has."""
    bits, is_signed = _INTEGERS[field.cpp_type]
    number &= (1 << bits) - 1
    return number - (1 << bits) if is_signed and number >> (bits - 1) else number


def _text(field: FieldDescriptor, chance: random.Random) -> str:
    del field
    if chance.random() < 0.8:
        return chance.choice(TEXTS)
    return "".join(chr(chance.randrange(1, 0x2FFF)) for _ in range(chance.randrange(40)))


def _bytes(field: FieldDescriptor, chance: random.Random) -> bytes:
    if "key" in field.name and chance.random() < 0.8:
        return rows_changed(chance)
    return chance.randbytes(chance.choice((0, 1, 8, 16, 16, 32, 33, 300)))


def _enum(field: FieldDescriptor, chance: random.Random) -> int:
    numbers = [each.number for each in (field.enum_type.values if field.enum_type else ())]
    return chance.choice([*numbers, *numbers, 99, 2**31 - 1])


_MADE_UP: Mapping[int, Callable[[FieldDescriptor, random.Random], object]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    FieldDescriptor.CPPTYPE_STRING: lambda field, chance: (
        _bytes(field, chance) if field.type == FieldDescriptor.TYPE_BYTES else _text(field, chance)
    ),
    FieldDescriptor.CPPTYPE_BOOL: lambda _, chance: chance.random() < 0.5,
    FieldDescriptor.CPPTYPE_ENUM: _enum,
    FieldDescriptor.CPPTYPE_DOUBLE: lambda _, chance: chance.choice((0.0, -1.0, 1e308)),
    FieldDescriptor.CPPTYPE_FLOAT: lambda _, chance: chance.choice((0.0, -1.0)),
}
