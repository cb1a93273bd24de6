"""Credentials of this process: its certificate, the authority that it trusts, and its token.

The rule it keeps: TLS is mutual or not there. Authority, certificate and key come from PEM files,
all three or none; a file that cannot serve is named before anything connects. A token is never
shown, not even by `repr`.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...certifier.errors import InvalidSetting

TOKEN_CHARACTERS_MAX = 1_024
"""A token travels in the headers of each call, of which peers accept about 8 KB."""
_PARTS = ("authority", "certificate", "key")

Stamp = tuple[tuple[int, int, int], ...]


class PemFiles(NamedTuple):
    """The content of the three files."""

    authority: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Three PEM files: the authority that this process trusts, its certificate and its key."""

    authority: str | Path
    """Certificates of the authorities that sign the other side's certificates."""
    certificate: str | Path
    """This process's certificate, followed by the chain to an authority."""
    key: str | Path
    """The private key of the certificate, without a passphrase, which a server could not ask
    for."""

    def read(self) -> PemFiles:
        """Returns the files as they are now. Raises OSError."""
        return PemFiles(*(Path(path).read_bytes() for path in self._paths()))

    def stamp(self) -> Stamp:
        """Returns another value after each change of a file. Raises OSError."""
        each = [Path(path).stat() for path in self._paths()]
        return tuple((found.st_mtime_ns, found.st_size, found.st_ino) for found in each)

    def client_context(self) -> ssl.SSLContext:
        """Returns the context that the standard library needs to connect: it checks certificate and
        host name.

        Raises OSError, of which `ssl.SSLError` is one: a file cannot serve.
        """
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(str(self.certificate), str(self.key), password=lambda: b"")
        return context

    def server_context(self) -> ssl.SSLContext:
        """Returns the context that the standard library needs to serve: it takes only clients with
        a valid certificate. Raises as `client_context`.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(str(self.certificate), str(self.key), password=lambda: b"")
        return context

    def check(self, prefix: str = "tls") -> None:
        """Raises InvalidSetting, which names the first file that cannot serve as `prefix_part`."""
        for part, path in zip(_PARTS, self._paths(), strict=True):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise _unusable(f"{prefix}_{part}", path, error.strerror or str(error)) from None
        for part, path in (("authority", self.authority), ("certificate", self.certificate)):
            try:
                ssl.create_default_context(cafile=str(path))
            except OSError as error:
                raise _unusable(f"{prefix}_{part}", path, _reason(error)) from None
        try:
            self.client_context()
        except OSError as error:
            raise _unusable(f"{prefix}_key", self.key, _reason(error)) from None

    def _paths(self) -> tuple[str | Path, ...]:
        return self.authority, self.certificate, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials that a client shows to members."""

    tls: Tls | None = None
    """None: connections are plain."""
    token: str = field(default="", repr=False)
    """Sent with each call; empty: not sent."""


ANONYMOUS = Credentials()


def tls_of(
    authority: str | Path | None,
    certificate: str | Path | None,
    key: str | Path | None,
    prefix: str = "tls",
) -> Tls | None:
    """Returns the files as one value; None if none is given.

    Raises InvalidSetting: one is missing; it is named as `prefix_part`.
    """
    if authority and certificate and key:
        return Tls(authority=authority, certificate=certificate, key=key)
    given = dict(zip(_PARTS, (authority, certificate, key), strict=True))
    present = [f"{prefix}_{part}" for part, path in given.items() if path]
    if present:
        missing = next(f"{prefix}_{part}" for part, path in given.items() if not path)
        verb = "are" if present[1:] else "is"
        expected = f"a PEM file, since {' and '.join(present)} {verb} given: TLS is mutual"
        raise InvalidSetting(name=missing, value="", expected=expected)
    return None


def credentials_of(tls: Tls | None, token_file: Path | None) -> Credentials:
    """Returns the credentials to show to members. Raises InvalidSetting if a file cannot serve."""
    if tls is not None:
        tls.check()
    return Credentials(tls=tls, token=read_token(token_file) if token_file else "")


def read_token(path: Path) -> str:
    """Returns the token in a file, without white space around it.

    Raises InvalidSetting if the file has no valid token; the error does not contain what it has.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        expected = f"a file with a token ({cause})"
        raise InvalidSetting(name="token_file", value=path, expected=expected) from None
    if not is_token(token):
        expected = f"one line of 1 to {TOKEN_CHARACTERS_MAX} printable ASCII characters, no spaces"
        raise InvalidSetting(name="token_file", value=path, expected=expected)
    return token


def is_token(text: str) -> bool:
    """Returns whether `text` can be sent as a token."""
    is_printable = all("!" <= character <= "~" for character in text)
    return 0 < len(text) <= TOKEN_CHARACTERS_MAX and is_printable


def _unusable(name: str, path: str | Path, cause: str) -> InvalidSetting:
    expected = f"a PEM file that can be used ({cause})"
    return InvalidSetting(name=name, value=path, expected=expected)


def _reason(error: OSError) -> str:
    """Returns OpenSSL's reason to take no file: `KEY_VALUES_MISMATCH` as words."""
    reason = error.reason if isinstance(error, ssl.SSLError) else ""
    return reason.lower().replace("_", " ") if reason else "no PEM in it"
