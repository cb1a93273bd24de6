"""The allow-list of members: who is refused, and what is said."""

import pytest

from groupcert.members.core.group_settings import check_allowed, refused_names
from groupcert.members.errors.permissions import MemberNotAllowed


def test_an_empty_list_allows_any_name() -> None:
    assert refused_names((), ("m1", "m9")) == ()
    check_allowed((), ("m9",))


def test_names_that_are_not_listed_are_refused_once_each_as_they_were_proposed() -> None:
    assert refused_names(("m1", "m2"), ("m9", "m1", "m8", "m9")) == ("m9", "m8")


def test_names_are_compared_as_they_are() -> None:
    assert refused_names(("m1",), ("M1", "m1 ", "m")) == ("M1", "m1 ", "m")


def test_a_refusal_names_both_sides() -> None:
    check_allowed(("m1", "m2"), ("m2",))
    with pytest.raises(MemberNotAllowed, match="member 'm8, m9' is not allowed") as caught:
        check_allowed(("m1", "m2"), ("m8", "m1", "m9"))
    assert caught.value.allowed == "m1, m2"
