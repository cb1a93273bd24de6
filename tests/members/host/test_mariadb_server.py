"""A MariaDB server on this machine: who is let in."""

from pathlib import Path

import pymysql
import pytest

from tests.servers import MariaDbServer, connect_mariadb, where_installed

pytestmark = pytest.mark.database


def test_a_password_is_asked_for_at_every_start_and_is_in_no_log(tmp_path: Path) -> None:
    with where_installed():
        server = MariaDbServer(tmp_path, "--log-bin=binlog", password="secret")
    for _ in range(2):
        with server:
            with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
                connect_mariadb(server.url)  # It shows none.
            assert server.query("SELECT 1") == [(1,)]
            assert server.query("SELECT @@gtid_binlog_pos") == [("",)]
    assert (tmp_path / "passwords.sql").stat().st_mode & 0o077 == 0
    assert "secret" not in server.log.read_text()
