"""The values that settings of a group may have: a file, an operator and the log say the same."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from groupcert.members.core.addresses import is_address
from groupcert.members.core.group_settings import RANGES, is_name, member_problem, settings_problem
from groupcert.members.core.log_records import GroupSettings
from groupcert.members.runtime.opening import group_settings
from groupcert.members.settings.member import MemberConfig
from tests.members.state_machines import SETTINGS, run_of

TEXTS = ("", "close", "tight", "m1", "a b", "m1\n", "x" * 64, "x" * 65, "é", "a:1", "[::1]:65535")
TEXTS_OF_TABLES = (
    "public.*",
    "accounts",
    "public.a/1",
    "p.a,p.b",
    ".t",
    "p.",
    f"p.{'x' * 129}",
    "p.\n",
)
TEXTS_OF_ADDRESSES = ("a:0", "a:65536", "a:1:1", "[::1]:1", "a:1\n", f"{'a' * 298}:1", "a" * 301)


def config(**values: object) -> GroupSettings | None:
    """The settings of a group whose member has these in its file; None: it refuses them."""
    given: dict[str, Any] = {"group": "g", "member": "m1", "log_server": "embedded", **values}
    try:
        return group_settings(MemberConfig.model_validate(given))
    except ValidationError:
        return None


@pytest.mark.parametrize("name", RANGES)
def test_a_number_that_a_file_may_have_counts_in_the_log_and_no_other(name: str) -> None:
    least, most = RANGES[name]
    for value in (least - 1, least, most, most + 1, 2**70):
        settings = SETTINGS._replace(**{name: value})  # type: ignore[arg-type]  # a field's name
        problem = settings_problem(settings)
        assert (config(**{name: value}) is not None) == (not problem), problem
        assert not problem or problem == f"{name} is {value}: expected {least} to {most}"


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_a_file_may_have_counts_in_the_log_and_no_other(text: str) -> None:
    for name, value in (("group", text), ("gc_window", text), ("members_allowed", (text,))):
        settings = SETTINGS._replace(**{name: value})  # type: ignore[arg-type]  # as above
        assert (config(**{name: value}) is not None) == (not settings_problem(settings)), name
    assert is_name(text) == (config(member=text) is not None)


@pytest.mark.parametrize("text", [*TEXTS, *TEXTS_OF_TABLES])
def test_a_pattern_of_tables_that_a_file_may_have_counts_in_the_log_and_no_other(text: str) -> None:
    principal = {"name": "any", "certificate": "any", "roles": ["postgresql"]}
    found = config(postgresql_tables=(text,), access={"principal": [principal]})
    problem = settings_problem(SETTINGS._replace(postgresql_tables=(text,)))
    assert (found is not None) == (not problem)
    assert not problem or "expected schema.table, such as public.*" in problem


@pytest.mark.parametrize("text", [*TEXTS, *TEXTS_OF_ADDRESSES])
def test_an_address_that_a_file_may_have_is_one_in_the_log(text: str) -> None:
    assert is_address(text) == (config(address=text) is not None)


@pytest.mark.parametrize("text", ["", "junk", SETTINGS.group_uuid.upper(), "a" * 32])
def test_the_groups_uuid_is_in_the_one_spelling(text: str) -> None:
    assert "group_uuid is" in settings_problem(SETTINGS._replace(group_uuid=text))


def test_what_every_file_gives_counts() -> None:
    found = config(members_allowed="m1,m2,m2", gc_window="tight", single_primary=True)
    assert found is not None
    assert not settings_problem(found), "a name that stands twice does no harm"


def test_a_member_of_a_view_has_a_name_and_an_address() -> None:
    assert not member_problem(run_of(1))
    assert member_problem(replace(run_of(1), name="m 1")).startswith("name 'm 1'")
    assert member_problem(replace(run_of(1), address="m1")).startswith("address 'm1'")
