"""After which errors a companion begins again by itself."""

import pytest

from groupcert.certifier.errors import GroupcertError
from groupcert.members.errors.postgresql_servers import SchemaChangeFailed
from groupcert.members.errors.transactions import MemberFailed
from groupcert.members.postgresql.process import passes

MEMBER = "127.0.0.1:7101"


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (MemberFailed(address=MEMBER, code="UNKNOWN", explanation="a call was cut off"), True),
        (SchemaChangeFailed(gtid="a:1", server="s", cause="c", statements="t"), False),
    ],
)
def test_who_goes_on_without_its_operator(error: GroupcertError, goes_on: bool) -> None:
    """A member that is killed in the midst of a call ended the companion of its server for good."""
    assert passes(error) == goes_on
