"""Random messages of any type, made by its descriptor."""

import random
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from groupcert.v1.transaction_pb2 import Changes
from tests.fuzz.values import Answers, rows_changed, scalar

DEPTH_MAX = 6
COUNTS = (0, 1, 1, 1, 2, 2, 3, 5, 17, 300)
FIELD_SHARE = 0.7
"""Of the fields of a message, those that are set."""
FITTING_SHARE = 0.5
"""Of bytes that hold a message, those that hold one of the right type."""


def random_message(
    kind: type[Message], chance: random.Random, answers: Answers, depth: int = DEPTH_MAX
) -> Message:
    """Returns a message of a type, with some of its fields set."""
    message = kind()
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        if chance.random() > FIELD_SHARE:
            continue
        if field.message_type is not None and depth == 0:
            continue
        if field.is_repeated:
            _extend(message, field, chance, answers, depth)
        elif field.message_type is not None:
            kind_of_field = GetMessageClass(field.message_type)
            made = random_message(kind_of_field, chance, answers, depth - 1)
            getattr(message, field.name).CopyFrom(made)
        else:
            setattr(message, field.name, _value(field, chance, answers))
    return message


def _extend(
    message: Message, field: Any, chance: random.Random, answers: Answers, depth: int
) -> None:
    count = chance.choice(COUNTS)
    values = getattr(message, field.name)
    if field.message_type is None:
        values.extend([_value(field, chance, answers) for _ in range(count)])
    elif field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(min(count, 5)):
            values[_value(key, chance, answers)] = _value(value, chance, answers)
    else:
        kind = GetMessageClass(field.message_type)
        for _ in range(min(count, 1 << depth)):
            values.append(random_message(kind, chance, answers, depth - 1))


def _value(field: Any, chance: random.Random, answers: Answers) -> object:
    if field.name == "changes" and chance.random() < FITTING_SHARE:
        return random_changes(chance)
    return scalar(field, chance, answers)


def random_changes(chance: random.Random) -> bytes:
    """Returns rows' changes as a transaction carries them, right and wrong."""
    keys = [rows_changed(chance) for _ in range(chance.choice((0, 1, 1, 2, 4)))]
    values = [chance.randbytes(chance.choice((0, 1, 20, 1_000))) for _ in keys]
    deleted = [rows_changed(chance) for _ in range(chance.choice((0, 0, 1, 2)))]
    if chance.random() < 0.1:
        values = values[1:]
    changes = Changes(put_keys=keys, put_values=values, delete_keys=deleted)
    changes.continued = chance.random() < 0.1
    return changes.SerializeToString()
