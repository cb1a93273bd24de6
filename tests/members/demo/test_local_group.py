"""When a group on this machine is up."""

import pytest
from google.protobuf import text_format

from groupcert.members.demo.local_group import is_whole
from groupcert.v1.group_pb2 import GroupStatus


@pytest.mark.parametrize(
    ("view", "state", "whole"),
    [
        ("m1 m2", "ONLINE", True),
        ("m1 m2 w1", "ONLINE", True),
        ("m1 m2", "JOINING", False),
        ("m1 w1", "ONLINE", False),
        ("m1 m2 m3", "ONLINE", False),
    ],
)
def test_a_group_is_whole_with_all_that_run_of_its_own(view: str, state: str, whole: bool) -> None:
    """m1 and m2 run, m3 was killed, w1 is a member that somebody else has started."""
    text = f"observer {{ state: MEMBER_STATE_{state} }}"
    text += "".join(f'members {{ name: "{name}" }}' for name in view.split())
    status = text_format.Parse(text, GroupStatus())
    assert is_whole(status, ("m1", "m2", "m3"), ("m1", "m2")) == whole
