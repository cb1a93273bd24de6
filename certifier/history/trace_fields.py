"""Optional fields of a trace's lines, which certification does not read: checked, or
InvalidTrace.
"""

import json
from collections.abc import Mapping
from typing import TypeGuard

from ..errors import InvalidTrace

NUMBER_MAX = 2**63 - 1
SHOWN_CHARACTERS_MAX = 80


def number_of(line: Mapping[str, object], name: str, number: int) -> int | None:
    """Returns an integer field of line `number`, 0 to `NUMBER_MAX`; None if it is not given.

    Raises:
        InvalidTrace: it is something else.
    """
    value = line.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise _invalid(number, name, value, f"0 to {NUMBER_MAX}")
    return value


def text_of(line: Mapping[str, object], name: str, number: int) -> str | None:
    """Returns a field that is a text; None if it is not given. Raises as `number_of` does."""
    value = line.get(name)
    if value is None or _is_text(value):
        return value
    raise _invalid(number, name, value, f"{name}: a JSON string, text in UTF-8")


def names_of(line: Mapping[str, object], name: str, number: int) -> list[str] | None:
    """Returns a field that is a list of names; None if not given. Raises as `number_of` does."""
    value = line.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(_is_text(each) for each in value):
        raise _invalid(number, name, value, f"{name}: a JSON array of names, text in UTF-8")
    return value


def _is_text(value: object) -> TypeGuard[str]:
    """Returns whether a value is a text in UTF-8: JSON can have half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(number: int, name: str, value: object, expected: str) -> InvalidTrace:
    shown = json.dumps(value)[:SHOWN_CHARACTERS_MAX]
    return InvalidTrace(line=number, problem=f"{name} is {shown}", expected=expected)
