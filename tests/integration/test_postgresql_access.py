"""A member with an access list, which takes rows of PostgreSQL tables from companions alone.

Everything is real: a member, a server and its companion, whose token has the role `postgresql` and
no other one.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from groupcert import Client
from groupcert.members.commands.cli import app
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.demo.postgresql_servers import Primary
from groupcert.members.errors.permissions import KeyReserved
from groupcert.members.postgresql.schema_changes import KEY
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.slow]

PROBE = "INSERT INTO t VALUES (1, '') ON CONFLICT (id) DO UPDATE SET note = ''"
ROLES = {
    "operator": [Role.ADMIN, Role.OBSERVE],
    "shop": [Role.READ, Role.WRITE],
    "companion": [Role.POSTGRESQL],
}


class Reserved(Primary):
    """A server with its companion, at a member that knows principals."""

    def __init__(self, member: str, tokens: Path) -> None:
        super().__init__("m1", member, tokens, "--token-file", str(tokens / "companion"))
        self._tokens = tokens

    def command(self, name: str, *arguments: str) -> Result:
        """Runs a verb with the token of a principal."""
        return CliRunner().invoke(app, [*arguments, "--token-file", str(self._tokens / name)])


@pytest.fixture
def reserved(tmp_path: Path) -> Iterator[Reserved]:
    """The group's operator has reserved the tables of `public`; the companion takes commits."""
    principals = []
    for name, roles in ROLES.items():
        (tmp_path / name).write_text(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        principals += ["[[principal]]", f'name = "{name}"', f'token_sha256 = "{digest}"']
        principals += [f"roles = {json.dumps(roles)}"]
    (tmp_path / "access.toml").write_text("\n".join(principals))
    with LocalGroup(
        tmp_path / "group",
        members=1,
        settings={"access": str(tmp_path / "access.toml")},
        credentials=Credentials(token="operator"),
    ) as group:
        reserved = Reserved(group.addresses["m1"], tmp_path)
        with reserved.server:
            reserved.attach("CREATE TABLE t (id int PRIMARY KEY, note text)")
            with reserved.companion:
                change = ("group", "set", "postgresql_tables=public.*", reserved.member)
                done = reserved.command("operator", *change)
                assert done.exit_code == 0, done.output
                reserved.wait_until_it_commits(PROBE)
                yield reserved


def test_rows_of_tables_are_taken_from_companions_alone(reserved: Reserved) -> None:
    with Client(reserved.member, token="shop") as client:
        for key, value in ((b"public.t/50", b"not json"), (KEY, b"junk")):
            transaction = client.transaction()
            transaction.put(key, value)
            with pytest.raises(KeyReserved, match="'shop' may not write key") as raised:
                transaction.commit()
            assert raised.value.key == key.decode()
        with client.transaction() as transaction:
            transaction.delete(b"shop/1")
        with client.transaction() as transaction:
            assert transaction.get(b"public.t/1") == b'{"id":1,"note":""}'
    with Client(reserved.member, token="companion") as client:
        with client.transaction() as transaction:
            transaction.put(b"public.t/50", b'{"id":50,"note":"by a companion"}')
    query = "SELECT note FROM t WHERE id = 50"
    assert wait_for("the row", lambda: reserved.query(query)) == [("by a companion",)]
    assert reserved.companion.is_running
    reserved.query(PROBE)


def test_a_schema_change_takes_the_role(reserved: Reserved, tmp_path: Path) -> None:
    (tmp_path / "change.sql").write_text("ALTER TABLE t ADD more int;")
    change = ("postgresql", "ddl", str(tmp_path / "change.sql"), "--dsn", reserved.dsn)
    refused = reserved.command("shop", *change, "--member", reserved.member)
    assert isinstance(refused.exception, KeyReserved)
    assert refused.exception.key == KEY.decode()
    done = reserved.command("companion", *change, "--member", reserved.member)
    assert done.exit_code == 0, done.output
    assert reserved.query("SELECT more FROM t") == [(None,)]
