"""Addresses of MySQL and MariaDB servers as URLs, and connections to them.

    mysql://user:password@host:port/database?ssl-ca=FILE&ssl-mode=verify-identity

All parts are percent-encoded; `mariadb://` means the same, as the server says which it is. Without
`ssl-mode` a connection is encrypted if the server can, and with `ssl-ca` it has to be, to a server
whose certificate that authority signed.

Source: MySQL 8.4 Reference Manual, 6.2.5 "Connecting to the Server Using URI-Like Strings", and
"--ssl-mode".
"""

import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql

from ...certifier.errors import GroupcertError, InvalidSetting
from .source_errors import SourceLost, SourceRefused

PORT = 3306
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""Seconds in which a server has to answer a statement."""
_MODES = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
_FILES = ("ssl-ca", "ssl-cert", "ssl-key")
_EXPECTED = "mysql://user:password@host:port/database, with ssl-mode, ssl-ca, ssl-cert, ssl-key"
_NOT_LET_IN = (1044, 1045, 1129, 1130, 1142, 1227, 1251, 1698, 1820, 1862, 2026, 2059, 2061, 3118)
"""Numbers of errors: user, password, host, right, or the way to prove them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """The address of a server, and who connects. `database`: empty if none is named."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    tls: ssl.SSLContext | None = field(repr=False)
    mode: str

    @classmethod
    def parse(cls, url: str) -> "ServerUrl":
        """Returns the parts of a URL.

        Raises:
            InvalidSetting: it is none, or names a file that cannot be read. No message has the
                password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or PORT
        except ValueError:
            raise InvalidSetting(name="source", value="a URL", expected=_EXPECTED) from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        mode = options.get("ssl-mode", "verify-ca" if "ssl-ca" in options else "preferred")
        is_known = options.keys() <= {"ssl-mode", *_FILES} and mode in _MODES
        is_server = parts.scheme in ("mysql", "mariadb") and parts.hostname
        if not is_server or not is_known or "/" in parts.path[1:]:
            shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}?{parts.query}"
            raise InvalidSetting(name="source", value=shown.rstrip("?"), expected=_EXPECTED)
        return cls(
            host=parts.hostname or "",
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path[1:]),
            tls=_tls(mode, options),
            mode=mode,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def has_database(self, database: str) -> bool:
        """Returns whether a database's rows are meant: those of the one that is named, or of all
        but the server's own.
        """
        if self.database:
            return database == self.database
        return database not in ("mysql", "information_schema", "performance_schema", "sys")

    def connect(self, *, answer_seconds: float = ANSWER_SECONDS) -> "pymysql.Connection[Any]":
        """Returns a connection, no database chosen; each statement commits.

        Raises:
            SourceRefused: the server does not let this user in, or not without TLS.
            SourceLost: it does not answer.
        """
        try:
            return pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password.encode(),
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                read_timeout=answer_seconds,
                write_timeout=answer_seconds,
                ssl=self.tls,
                ssl_disabled=self.mode == "disabled",
            )
        except (pymysql.err.MySQLError, RuntimeError) as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> GroupcertError:
        """Returns the error to raise for one of the driver's."""
        number = error.args[0] if error.args else 0
        is_tls = isinstance(getattr(error, "original_exception", None), ssl.SSLError)
        if number in _NOT_LET_IN or is_tls or isinstance(error, RuntimeError):
            return SourceRefused(
                source=str(self),
                problem=_text(error),
                next_step=f"correct user, password and ssl-mode of the URL, or the rights of "
                f"{self.user!r} at the server: GRANT REPLICATION SLAVE ON *.*",
            )
        return SourceLost(source=str(self), cause=_text(error))


def _text(error: Exception) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def _tls(mode: str, options: dict[str, str]) -> ssl.SSLContext | None:
    """Returns the context for a mode; None where the driver's own way is meant."""
    if mode in ("disabled", "preferred"):
        return None
    authority, certificate, key = (options.get(name) for name in _FILES)
    try:
        context = ssl.create_default_context(cafile=authority)
        # Certificates that servers make for themselves are not strict.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = mode == "verify-identity"
        context.verify_mode = ssl.CERT_NONE if mode == "required" else ssl.CERT_REQUIRED
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        files = ", ".join(f"{name}={options[name]}" for name in _FILES if name in options)
        expected = f"certificates and a key that can be read ({error})"
        raise InvalidSetting(name="source", value=files, expected=expected) from None
    return context
