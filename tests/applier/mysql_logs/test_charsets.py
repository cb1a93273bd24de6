"""Texts are read as the server converts them, and each collation belongs to its character set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from groupcert.applier.mysql_logs.charsets import charset_of, text_decoder
from tests import servers
from tests.applier.mysql_logs.logged_rows import Session, execute, plain_session

pytestmark = pytest.mark.database
WITHOUT = {"armscii8", "binary", "dec8", "geostd8", "keybcs2", "swe7"}
"""Character sets that have no decoder: a text in one of them is refused by its name."""
AT_ONCE = 2_000


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session of a MariaDB."""
    folder: Path = tmp_path_factory.mktemp("charsets")
    with servers.where_installed(), servers.MariaDbServer(folder) as running:
        with plain_session(running.port, "shop") as connection:
            yield connection


def test_each_collation_belongs_to_its_character_set(session: Session) -> None:
    rows = execute(
        session,
        "SELECT id, character_set_name "
        "FROM information_schema.collation_character_set_applicability WHERE id IS NOT NULL",
    )
    assert len(rows) > 400
    assert [charset_of(int(str(number))) for number, _ in rows] == [name for _, name in rows]


def test_characters_are_those_that_the_server_converts_them_to(session: Session) -> None:
    longest = execute(
        session, "SELECT character_set_name, maxlen FROM information_schema.character_sets"
    )
    tried = 0
    for charset, bytes_max in longest:
        decode = text_decoder(str(charset))
        assert (decode is None) == (charset in WITHOUT)
        if decode is None or str(charset).startswith(("utf", "ucs")):
            continue
        for content, expected in converted(session, str(charset), int(str(bytes_max))):
            tried += 1
            try:
                found = decode(content)
            except UnicodeDecodeError:
                # Characters that users define, and that have no name anywhere else.
                assert ord(expected) >= 0xE000 or len(content) == 3, (charset, content, expected)
            else:
                assert found == expected, (charset, content)
    assert tried > 100_000


def converted(session: Session, charset: str, bytes_max: int) -> Iterator[tuple[bytes, str]]:
    """Bytes that are a character, and the character."""
    codes = [bytes([code]) for code in range(256)]
    if bytes_max > 1:
        pairs = [bytes([first, last]) for first in range(0x81, 0xFF) for last in range(0x40, 0xFF)]
        codes += pairs
    if bytes_max == 3:
        codes += [b"\x8f" + pair for pair in pairs if min(pair) > 0xA0]
    for start in range(0, len(codes), AT_ONCE):
        some = codes[start : start + AT_ONCE]
        columns = (
            f"HEX(CONVERT(CONVERT(X'{code.hex()}' USING {charset}) USING utf32))" for code in some
        )
        (row,) = execute(session, f"SELECT {', '.join(columns)}")
        for code, shown in zip(some, row, strict=True):
            text = bytes.fromhex(str(shown)).decode("utf-32-be") if shown is not None else ""
            # A question mark stands for what is no character.
            if len(text) == 1 and text not in "?\ufffd":
                yield code, text
