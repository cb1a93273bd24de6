"""A member with an access list, whose server's tables nobody else writes.

Everything is real: a member and its server; who changes the schema has the role `postgresql` and
no other one.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from groupcert import Client
from groupcert.members.client.client_options import CertifiableTransaction, certifiable
from groupcert.members.commands.cli import app
from groupcert.members.demo.postgresql_servers import GroupAtServers, Primary
from groupcert.members.errors.permissions import KeyReserved
from groupcert.members.errors.postgresql_servers import RowsAtServer
from groupcert.members.postgresql.schema_changes import KEY
from groupcert.members.security.access import Role
from groupcert.members.security.credentials import Credentials
from groupcert.v1.transaction_pb2 import VERDICT_CERTIFIED, Changes
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.nats, pytest.mark.cluster, pytest.mark.database, pytest.mark.slow]

PROBE = "INSERT INTO t VALUES (1, '') ON CONFLICT (id) DO UPDATE SET note = ''"
ROLES = {
    "operator": [Role.ADMIN, Role.OBSERVE],
    "shop": [Role.READ, Role.WRITE],
    "changer": [Role.POSTGRESQL, Role.WRITE],
}


class Reserved(Primary):
    """A server of a member that knows principals."""

    def __init__(self, tokens: Path) -> None:
        super().__init__("m1", tokens)
        self._tokens = tokens

    def command(self, name: str, *arguments: str) -> Result:
        """Runs a verb with the token of a principal."""
        return CliRunner().invoke(app, [*arguments, "--token-file", str(self._tokens / name)])


@pytest.fixture
def reserved(tmp_path: Path) -> Iterator[Reserved]:
    """The group's operator has reserved the tables of `public`; the server takes commits."""
    principals = []
    for name, roles in ROLES.items():
        (tmp_path / name).write_text(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        principals += ["[[principal]]", f'name = "{name}"', f'token_sha256 = "{digest}"']
        principals += [f"roles = {json.dumps(roles)}"]
    (tmp_path / "access.toml").write_text("\n".join(principals))
    reserved = Reserved(tmp_path)
    with reserved.server:
        reserved.attach("CREATE TABLE t (id int PRIMARY KEY, note text)")
        group = GroupAtServers(
            [reserved],
            tmp_path / "group",
            settings={"access": str(tmp_path / "access.toml")},
            credentials=Credentials(token="operator"),
        )
        with group:
            change = ("group", "set", "postgresql_tables=public.*", reserved.address)
            done = reserved.command("operator", *change)
            assert done.exit_code == 0, done.output
            reserved.query(PROBE)
            yield reserved


def test_rows_of_tables_are_taken_from_their_servers_alone(reserved: Reserved) -> None:
    with Client(reserved.address, token="shop") as client:
        for key, value in ((b"public.t/50", b"not json"), (KEY, b"junk")):
            with pytest.raises(KeyReserved, match="'shop' may not write key") as raised:
                client.certify(written(key, value))
            assert raised.value.key == key.decode()
        assert client.certify(written(b"shop/1", b"")).verdict == VERDICT_CERTIFIED
        with pytest.raises(RowsAtServer, match="use SQL there"):
            client.transaction().get(b"public.t/1")
    with Client(reserved.address, token="changer") as client:
        client.certify(written(b"public.t/50", b'{"id":50,"note":"by a changer"}'))
    query = "SELECT note FROM t WHERE id = 50"
    assert wait_for("the row", lambda: reserved.query(query)) == [("by a changer",)]
    reserved.query(PROBE)


def written(key: bytes, value: bytes) -> CertifiableTransaction:
    """A transaction that writes a row."""
    transaction = certifiable(snapshot=1, write_set=(), first_attempt=True)
    transaction.changes = Changes(put_keys=[key], put_values=[value]).SerializeToString()
    return transaction


def test_a_schema_change_takes_the_role(reserved: Reserved, tmp_path: Path) -> None:
    (tmp_path / "change.sql").write_text("ALTER TABLE t ADD more int;")
    change = ("postgresql", "ddl", str(tmp_path / "change.sql"), "--dsn", reserved.dsn)
    refused = reserved.command("shop", *change, "--member", reserved.address)
    assert isinstance(refused.exception, KeyReserved)
    assert refused.exception.key == KEY.decode()
    done = reserved.command("changer", *change, "--member", reserved.address)
    assert done.exit_code == 0, done.output
    assert reserved.query("SELECT more FROM t") == [(None,)]
