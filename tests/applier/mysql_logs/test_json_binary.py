"""Damaged JSON documents are refused, at once; `test_mysql_values.py` has whole ones of MySQL's."""

import random

import pytest

from groupcert.applier.mysql_logs.json_binary import DEPTH_MAX, json_text

# As MySQL 9.7.4 logged it.
DOCUMENT = bytes.fromhex(
    "000400550020000100210001002200010023000200"
    "0225000743000f47000c5000616465636302001e00"
    "050100000a00010014000b0001000b0c0062000000000000e03f"
    "70110100f6070b0280000001320474657874"
)
TEXT = '{"a": [1, {"b": 0.5}], "d": 70000, "e": 1.50, "cc": "text"}'


def nested(levels: int) -> bytes:
    """Arrays in arrays, the innermost empty."""
    content = b"\0\0\4\0"
    for _ in range(levels - 1):
        content = b"\1\0" + (len(content) + 7).to_bytes(2, "little") + b"\2\7\0" + content
    return b"\2" + content


def test_a_document_is_the_text_that_mysql_shows() -> None:
    assert json_text(DOCUMENT) == TEXT
    assert json_text(b"") == "null"
    assert json_text(nested(DEPTH_MAX)) == "[" * DEPTH_MAX + "]" * DEPTH_MAX


def test_a_document_cut_anywhere_is_refused() -> None:
    for size in range(1, len(DOCUMENT)):
        with pytest.raises(ValueError):
            json_text(DOCUMENT[:size])


def test_a_changed_byte_gives_a_text_or_an_error() -> None:
    chance = random.Random(38)
    for _ in range(5_000):
        damaged = bytearray(DOCUMENT)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            assert json_text(bytes(damaged))
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (nested(DEPTH_MAX + 1), "more than 100 levels"),
        # An array of two values that are both the array after it, and so on: 2^20 of them.
        (
            b"\2" + b"\2\0\x50\0\2\x0a\0\2\x0a\0" * 20,
            "bytes|overlap",
        ),
        (b"\x0b" + b"\0\0\0\0\0\0\xf0\x7f", "inf in a JSON document"),
        (b"\x0d", "a JSON value of type 13"),
    ],
)
def test_what_no_server_writes_is_refused(content: bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        json_text(content)
