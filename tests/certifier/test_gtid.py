"""GTIDs as text: every spelling that MySQL reads, one that is printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupcert.certifier.errors import InvalidGtid
from groupcert.certifier.gtid import (
    NUMBER_MAX,
    Gtid,
    parse_gtid,
    parse_number,
    parse_source,
    parse_uuid,
)
from groupcert.certifier.gtid_set import GtidSet

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

tags = st.from_regex("[a-z_][a-z0-9_]{0,31}", fullmatch=True)
sources = st.builds(
    lambda uuid, tag: f"{uuid}:{tag}" if tag else str(uuid), st.uuids(), st.none() | tags
)


@given(st.builds(Gtid, sources, st.integers(1, NUMBER_MAX)))
def test_a_gtid_is_read_back_as_it_was_printed(gtid: Gtid) -> None:
    assert parse_gtid(str(gtid)) == gtid
    assert parse_gtid(str(gtid).upper()) == gtid


@pytest.mark.parametrize(
    "text",
    [
        UUID,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f"\n {UUID} ",
    ],
)
def test_every_spelling_of_a_uuid_is_one_source(text: str) -> None:
    assert parse_uuid(text) == UUID
    assert parse_source(text) == UUID
    assert parse_source(f"{text} : Tag_1") == f"{UUID}:tag_1"


def test_numbers_from_one_to_the_largest_are_read() -> None:
    assert parse_number("1") == 1
    assert parse_number(" 007 ") == 7
    assert parse_number("9223372036854775806") == NUMBER_MAX


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("", "", "<uuid>:<number>"),
        ("5", "5", "<uuid>:<number>"),
        (f"{UUID}:", "", "a number from 1"),
        (f"{UUID}:0", "0", "a number from 1"),
        (f"{UUID}:-1", "-1", "a number from 1"),
        (f"{UUID}:1_0", "1_0", "a number from 1"),
        (f"{UUID}:\u0665", "\u0665", "a number from 1"),
        (f"{UUID}:9223372036854775807", "9223372036854775807", "9223372036854775806"),
        (f"{UUID}:{'1' * 5000}", "1" * 5000, "a number from 1"),
        (f"{UUID}:1tag:1", "1tag", "no digit first"),
        (f"{UUID}:{'a' * 33}:1", "a" * 33, "1 to 32 letters"),
        (f"{UUID}::1", "", "a tag"),
        (f"{UUID}:\u212a:1", "\u212a", "a tag"),
        (f"{UUID}:a:b:1", "a:b", "a tag"),
        (f"{UUID[:-1]}:1", UUID[:-1], "a UUID"),
        (f"{{{UUID}:1", f"{{{UUID}", "a UUID"),
        (f"{UUID.replace('-', '', 1)}:1", UUID.replace("-", "", 1), "a UUID"),
    ],
)
def test_a_text_that_is_no_gtid_is_refused_with_its_bad_part(
    text: str, part: str, expected: str
) -> None:
    with pytest.raises(InvalidGtid) as caught:
        parse_gtid(text)
    assert caught.value.text == part
    assert expected in caught.value.expected


def test_a_source_of_mariadb_is_a_domain_and_a_server() -> None:
    assert parse_gtid(" 0-1 : 5") == Gtid("0-1", 5)
    assert str(GtidSet.parse("10-3:7,0-1:1-4:6")) == "0-1:1-4:6,10-3:7"
    with pytest.raises(InvalidGtid, match="a UUID such as"):
        parse_gtid("00-1:5")
