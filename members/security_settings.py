"""The settings that a member and a replica share: TLS files, the token that they show, and
who may call them.

The rule it keeps: TLS is there with all three files, or not at all.
"""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from certifier.errors import InvalidSetting
from members.access import AccessList
from members.credentials import Credentials, Tls, credentials_of, tls_of


class SecuritySettings(BaseModel):
    """Who a process is to others, whom it trusts, and with what."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tls_authority: Path | None = None
    """PEM file: the authorities whose certificates are trusted. With the two below, everything that
    is served or asked speaks mutual TLS. Default: none, so that a group on loopback needs no
    files; a network that others use needs them."""
    tls_certificate: Path | None = None
    """PEM file: the certificate that is shown, as a server and as a client, with what links it to
    an authority. It names each host of the address. Default: none, see `tls_authority`."""
    tls_key: Path | None = None
    """PEM file: the certificate's private key, without a passphrase. Default: none."""
    token_file: Path | None = None
    """A file with the token that is shown to members. Default: none; the certificate says who
    this is."""
    access: AccessList | None = None
    """Who may call what: a TOML file, or the table itself (`members/access.py`). Default: none,
    whoever can connect may do everything."""

    @field_validator("tls_authority", "tls_certificate", "tls_key", "token_file", mode="before")
    @classmethod
    def _no_file(cls, value: object) -> object:
        return no_file(value)

    @field_validator("access", mode="before")
    @classmethod
    def _read_access(cls, value: object) -> object:
        value = no_file(value)
        return read_access(Path(value)) if isinstance(value, (str, Path)) else value

    @model_validator(mode="after")
    def _check_tls(self) -> "SecuritySettings":
        complete_tls(self.tls_authority, self.tls_certificate, self.tls_key)
        return self

    @property
    def tls(self) -> Tls | None:
        """The three files; None: connections are plain."""
        return tls_of(self.tls_authority, self.tls_certificate, self.tls_key)

    def credentials(self) -> Credentials:
        """What is shown to members.

        Raises InvalidSetting: a file cannot serve.
        """
        return credentials_of(self.tls, self.token_file)


def no_file(value: object) -> object:
    """An empty text is no file: that is how the environment of a container leaves one out."""
    return None if value == "" else value


def complete_tls(
    authority: Path | None, certificate: Path | None, key: Path | None, prefix: str = "tls"
) -> Tls | None:
    """As `tls_of`, with ValueError, which validators raise."""
    try:
        return tls_of(authority, certificate, key, prefix)
    except InvalidSetting as error:
        raise ValueError(f"{error.name} is missing: expected {error.expected}") from None


def read_access(path: Path) -> dict[str, object]:
    """An access file as it stands. Raises ValueError: it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected a TOML file") from None
