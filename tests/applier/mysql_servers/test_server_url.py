"""Addresses of servers as URLs."""

import pytest

from groupcert.applier.mysql_servers.server_url import ServerUrl
from groupcert.certifier.errors import InvalidSetting


def test_a_url_has_percent_encoded_parts() -> None:
    url = ServerUrl.parse("mariadb://re%40pl:p%2Fw%3A@db.example:3307/my%20shop")
    assert (url.user, url.password, url.database) == ("re@pl", "p/w:", "my shop")
    assert str(url) == "db.example:3307"
    assert "p/w" not in repr(url)


def test_the_port_is_that_of_the_servers() -> None:
    url = ServerUrl.parse("mysql://repl@db.example")
    assert (str(url), url.database, url.mode) == ("db.example:3306", "", "preferred")


@pytest.mark.parametrize(
    "text",
    [
        "db.example:3306",
        "postgresql://u:secret@db.example/shop",
        "mysql://u:secret@/shop",
        "mysql://u:secret@db.example:port/shop",
        "mysql://u:secret@db.example/shop/orders",
        "mysql://u:secret@db.example/shop?ssl=1",
        "mysql://u:secret@db.example/shop?ssl-mode=some",
    ],
)
def test_another_text_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidSetting, match="mysql://user:password@host:port") as raised:
        ServerUrl.parse(text)
    assert "secret" not in str(raised.value)


def test_files_that_are_not_there_are_named() -> None:
    with pytest.raises(InvalidSetting, match="ssl-ca=none"):
        ServerUrl.parse("mysql://u@db.example?ssl-ca=none")


@pytest.mark.parametrize(
    ("path", "meant"), [("", {"shop", "other"}), ("/shop", {"shop"}), ("/mysql", {"mysql"})]
)
def test_the_rows_of_one_database_are_meant_or_of_all_but_the_servers_own(
    path: str, meant: set[str]
) -> None:
    url = ServerUrl.parse(f"mysql://u@db.example{path}")
    databases = ("shop", "other", "mysql", "sys", "information_schema", "performance_schema")
    assert {database for database in databases if url.has_database(database)} == meant
