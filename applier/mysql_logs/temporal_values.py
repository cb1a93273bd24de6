"""Dates and times of rows and of JSON documents, as the texts that their servers print.

Nothing is a datetime of Python's: `0000-00-00`, `2024-02-00` and `-838:59:59` are values, too.

Source: MySQL Internals, "Date and Time Data Type Representation"; MySQL 8.4 source documentation,
my_time.cc, "TIME_to_longlong_datetime_packed".
"""

from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)
_FRACTION_BITS = 24
_UNITS = (0, 10_000, 100, 1)
"""Microseconds that a fraction of so many bytes counts."""


def date_text(content: bytes) -> str:
    """Returns a DATE of three bytes.

    >>> date_text(bytes.fromhex("5dd00f"))
    '2024-02-29'
    """
    days = int.from_bytes(content, "little")
    return f"{days >> 9:04}-{days >> 5 & 15:02}-{days & 31:02}"


def old_datetime_text(content: bytes) -> str:
    """Returns a DATETIME as tables from before MySQL 5.6 have it: its digits as one number."""
    digits = f"{int.from_bytes(content, 'little'):014}"
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {_colons(digits[8:])}"


def old_time_text(content: bytes) -> str:
    """Returns a TIME as tables from before MySQL 5.6 have it: its digits as one number."""
    number = int.from_bytes(content, "little", signed=True)
    return f"{'-' * (number < 0)}{_colons(f'{abs(number):06}')}"


def packed(content: bytes, whole_bytes: int) -> int:
    """Returns a DATETIME or TIME of MySQL 5.6 and newer as one number: the bits of the parts, then
    24 bits of microseconds.

    Args:
        content: most significant byte first, with one byte for each two digits of the fraction.
        whole_bytes: bytes before the fraction.
    """
    # Stored above an offset, so that the bytes of times before 0 sort before the others.
    number = int.from_bytes(content, "big") - (1 << 8 * len(content) - 1)
    bits = 8 * (len(content) - whole_bytes)
    size = abs(number)
    microseconds = (size & (1 << bits) - 1) * _UNITS[bits // 8]
    size = size >> bits << _FRACTION_BITS | microseconds
    return -size if number < 0 else size


def datetime_text(number: int, digits: int) -> str:
    """Returns a packed DATETIME, with so many digits of its fraction."""
    whole = number >> _FRACTION_BITS
    year, month = divmod(whole >> 22, 13)
    clock = f"{whole >> 12 & 31:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
    return f"{year:04}-{month:02}-{whole >> 17 & 31:02} {clock}{_fraction(number, digits)}"


def time_text(number: int, digits: int) -> str:
    """Returns a packed TIME, with so many digits of its fraction."""
    size = abs(number)
    whole = size >> _FRACTION_BITS
    clock = f"{whole >> 12 & 0x3FF:02}:{whole >> 6 & 63:02}:{whole & 63:02}"
    return f"{'-' * (number < 0)}{clock}{_fraction(size, digits)}"


def timestamp_text(seconds: int, fraction: bytes = b"", digits: int = 0) -> str:
    """Returns a TIMESTAMP in UTC; 0 is the zero date."""
    microseconds = int.from_bytes(fraction, "big") * _UNITS[len(fraction)]
    text = str(_EPOCH + timedelta(seconds=seconds)) if seconds else "0000-00-00 00:00:00"
    return text + _fraction(microseconds, digits)


def _fraction(microseconds: int, digits: int) -> str:
    return f".{microseconds & (1 << _FRACTION_BITS) - 1:06}"[: digits + 1] if digits else ""


def _colons(digits: str) -> str:
    return f"{digits[:-4]}:{digits[-4:-2]}:{digits[-2:]}"
