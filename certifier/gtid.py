"""GTIDs: the names of transactions, as MySQL writes them.

A GTID is a source and a number. A source is a UUID, or a UUID with a tag, and is held as text in
the one canonical spelling: lower case, dashes, `uuid` or `uuid:tag`. Equal sources are therefore
equal strings, and sorting the strings gives MySQL's order: by UUID, within it the untagged source
first, then the tags. MariaDB's `domain-server-number` has the source `domain-server`.

Source: MySQL 8.4 Reference Manual, 19.1.3.1 "GTID Format and Storage"; MariaDB Knowledge Base,
"Global Transaction ID".
"""

import re
from typing import NamedTuple

from .errors import InvalidGtid

NUMBER_MAX = 2**63 - 2
"""The largest number of a GTID; MySQL's GNO_END, 2^63 - 1, is one past it."""
NUMBER_DIGITS_MAX = 19

_HEX = "[0-9A-Fa-f]"
_DASHED = f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_UUID = re.compile(rf"{_DASHED}|\{{{_DASHED}\}}|{_HEX}{{32}}")
_DOMAIN_SERVER = re.compile("(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_TAG = re.compile("[A-Za-z_][A-Za-z0-9_]{0,31}")


class Gtid(NamedTuple):
    """The name of one transaction.

    It is made on hot paths and so checks nothing; text from outside goes through `parse_gtid`.

    >>> str(Gtid("3e11fa47-71ca-11e1-9e33-c80aa9429562", 23))
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:23'
    """

    source: str
    number: int

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


def parse_gtid(text: str) -> Gtid:
    """Returns the GTID that a text names; case, and white space around its parts, do not matter.

    Raises:
        InvalidGtid: if it names none, or a number outside 1 to `NUMBER_MAX`.

    >>> parse_gtid("3E11FA47-71CA-11E1-9E33-C80AA9429562:Backup:5")
    Gtid(source='3e11fa47-71ca-11e1-9e33-c80aa9429562:backup', number=5)
    """
    source, separator, number = text.rpartition(":")
    if not separator:
        raise InvalidGtid(text=text, expected="<uuid>:<number> or <uuid>:<tag>:<number>")
    return Gtid(parse_source(source), parse_number(number))


def parse_source(text: str) -> str:
    """Returns the canonical spelling of `uuid`, `uuid:tag` or `domain-server`.

    Raises:
        InvalidGtid: if the text is none of these.

    >>> parse_source("3E11FA4771CA11E19E33C80AA9429562 : Backup")
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:backup'
    """
    uuid, separator, tag = text.partition(":")
    return f"{parse_uuid(uuid)}:{parse_tag(tag)}" if separator else parse_origin(uuid)


def parse_origin(text: str) -> str:
    """Returns the canonical spelling of what a source begins with: a UUID, or MariaDB's domain and
    server.

    >>> parse_origin(" 0-1 ")
    '0-1'
    """
    stripped = text.strip()
    return stripped if _DOMAIN_SERVER.fullmatch(stripped) else parse_uuid(text)


def parse_uuid(text: str) -> str:
    """Returns the canonical spelling of a UUID that is dashed, braced, or digits only, as in MySQL.

    Raises:
        InvalidGtid: if it is spelled in no such way.

    >>> parse_uuid("{3E11FA47-71CA-11E1-9E33-C80AA9429562}")
    '3e11fa47-71ca-11e1-9e33-c80aa9429562'
    """
    stripped = text.strip()
    if not _UUID.fullmatch(stripped):
        raise InvalidGtid(text=text, expected="a UUID such as 3e11fa47-71ca-11e1-9e33-c80aa9429562")
    digits = stripped.strip("{}").replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def parse_tag(text: str) -> str:
    """Returns the canonical spelling of a tag, which is its lower case.

    Raises:
        InvalidGtid: if it is not a letter or underscore and up to 31 letters, digits, underscores.

    >>> parse_tag(" Backup_1")
    'backup_1'
    """
    stripped = text.strip()
    if not _TAG.fullmatch(stripped):
        raise InvalidGtid(
            text=text,
            expected="a tag of 1 to 32 letters, digits and underscores, no digit first",
        )
    return stripped.lower()


def parse_number(text: str) -> int:
    """Returns the number of a GTID.

    Raises:
        InvalidGtid: if it is not decimal or not in 1 to `NUMBER_MAX`.

    >>> parse_number("42")
    42
    """
    digits = text if text.isdigit() else text.strip()
    is_number = len(digits) <= NUMBER_DIGITS_MAX and digits.isdigit() and digits.isascii()
    number = int(digits) if is_number else 0
    if not 1 <= number <= NUMBER_MAX:
        raise InvalidGtid(text=text, expected=f"a number from 1 to {NUMBER_MAX}")
    return number
