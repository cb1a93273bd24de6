"""Character sets of MySQL and MariaDB: a text's bytes as a text.

A set that has no decoder here is an error of whoever reads a text, never a guess.

Source: information_schema.collations of MySQL 9.7 and MariaDB 10.11; MariaDB's source, "Unicode
collations of UCA 14.0.0", for ids from 2048 on.
"""

import codecs
import re
from collections.abc import Callable, Mapping
from itertools import chain
from types import MappingProxyType

BINARY = "binary"
_NOPAD = 1024
_UCA_14 = 2048
_UCA_14_SETS = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")

_CODECS = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "ascii": "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "hp8": "hp-roman8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis-620",
    "ujis": "euc_jp",
}
_BACKSLASH = MappingProxyType({0xFF3C: 0x5C})
_CORRECTED: dict[str, Mapping[int, int]] = {
    "cp866": {0x2116: 0x207F, 0xA4: 0xB2},
    "gb18030": {0xE7C7: 0x1E3F},
    "greek": {0x2018: 0x2BD, 0x2019: 0x2BC},
    "hebrew": {0xAF: 0x203E},
    "koi8u": {0x2219: 0x2022},
    **dict.fromkeys(("sjis", "ujis"), _BACKSLASH),
}
"""Characters that the servers have in place of Python's."""
_COLLATIONS = {
    "armscii8": (32, 64),
    "ascii": (11, 65),
    "big5": (1, 84),
    BINARY: (63,),
    "cp1250": (26, 34, 44, 66, 99),
    "cp1251": (14, 23, 50, 51, 52),
    "cp1256": (57, 67),
    "cp1257": (29, 58, 59),
    "cp850": (4, 80),
    "cp852": (40, 81),
    "cp866": (36, 68),
    "cp932": (95, 96),
    "dec8": (3, 69),
    "eucjpms": (97, 98),
    "euckr": (19, 85),
    "gb18030": (248, 249, 250),
    "gb2312": (24, 86),
    "gbk": (28, 87),
    "geostd8": (92, 93),
    "greek": (25, 70),
    "hebrew": (16, 71),
    "hp8": (6, 72),
    "keybcs2": (37, 73),
    "koi8r": (7, 74),
    "koi8u": (22, 75),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "latin2": (2, 9, 21, 27, 77),
    "latin5": (30, 78),
    "latin7": (20, 41, 42, 79),
    "macce": (38, 43),
    "macroman": (39, 53),
    "sjis": (13, 88),
    "swe7": (10, 82),
    "tis620": (18, 89),
    "ucs2": (35, 90, *range(128, 152), 159, *range(640, 672)),
    "ujis": (12, 91),
    "utf16": (54, 55, *range(101, 125), *range(672, 704)),
    "utf16le": (56, 62),
    "utf32": (60, 61, *range(160, 184), *range(736, 768)),
    "utf8mb3": (33, 76, 83, *range(192, 216), 223, *range(576, 608)),
    "utf8mb4": (45, 46, *range(224, 248), *range(255, 324), *range(608, 640)),
}
_CHARSETS = {number: name for name, numbers in _COLLATIONS.items() for number in numbers}


def charset_of(collation: int) -> str | None:
    """Returns the character set of a collation by its id; None for an unknown one.

    >>> charset_of(8), charset_of(255), charset_of(46 + 1024), charset_of(2048 + 256 + 3)
    ('latin1', 'utf8mb4', 'utf8mb4', 'utf8mb4')
    """
    if collation >= _UCA_14:
        place = collation - _UCA_14 >> 8
        return _UCA_14_SETS[place] if place < len(_UCA_14_SETS) else None
    return _CHARSETS.get(collation - _NOPAD if collation >= _NOPAD else collation)


def text_decoder(charset: str) -> Callable[[bytes], str] | None:
    """Returns the function that reads a text of a character set; None for an unknown one. It raises
    UnicodeDecodeError.
    """
    if charset in _DECODERS:
        return _DECODERS[charset]
    if (codec := _CODECS.get(charset)) is None:
        return None
    if (corrected := _CORRECTED.get(charset)) is not None:
        return lambda content: content.decode(codec).translate(corrected)
    return lambda content: content.decode(codec)


def _latin1(content: bytes) -> str:
    if content.isascii():
        return content.decode("ascii")
    return codecs.charmap_decode(content, "strict", _LATIN1)[0]


def _big5(content: bytes) -> str:
    try:
        return content.decode("big5")
    except UnicodeDecodeError:
        # Seven characters of ETEN's; cp950 has other punctuation than the servers.
        return content.decode("cp950")


def _eucjpms(content: bytes) -> str:
    """Returns a text whose two-byte characters are those of cp932, in EUC's places."""
    return _EUC.sub(_euc_character, content.decode("latin-1"))


def _euc_character(found: re.Match[str]) -> str:
    content = found[0].encode("latin-1")
    if len(content) == 3:
        text = content.decode("euc_jp")
        return {"~": "\uff5e", "\xa6": "\uffe4"}.get(text, text)
    if content[0] == _EUC_KATAKANA:
        return content[1:].decode("cp932")
    row, cell = content[0] - 0xA1, content[1] - 0xA1
    if row >= _EUC_OWN_ROW:
        return chr(0xE000 + 94 * (row - _EUC_OWN_ROW) + cell)
    first = row // 2 + (0x81 if row < 62 else 0xC1)
    second = cell + 0x9F if row % 2 else cell + 0x40 + (cell >= 63)
    return bytes((first, second)).decode("cp932")


_EUC_KATAKANA = 0x8E
_EUC_OWN_ROW = 84
"""The first row of characters that users define."""
_EUC = re.compile("[\x8e\xa1-\xfe][\xa1-\xfe]|\x8f[\xa1-\xfe]{2}|[\x80-\xff]")
_DECODERS: dict[str, Callable[[bytes], str]] = {
    **dict.fromkeys(("utf8mb4", "utf8mb3", "utf8"), bytes.decode),
    "latin1": _latin1,
    "big5": _big5,
    "eucjpms": _eucjpms,
}
# MySQL's latin1 is cp1252, with the control characters where that has none.
_LATIN1 = "".join(
    chain.from_iterable(bytes([n]).decode("cp1252", "ignore") or chr(n) for n in range(256))
)
