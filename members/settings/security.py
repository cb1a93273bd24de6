"""Settings that a member and a replica share: TLS files, their token, and who may call them.

The rule it keeps: TLS takes all three files, or none is given.
"""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator, model_validator

from ...certifier.errors import InvalidSetting
from ..security.access import AccessList
from ..security.credentials import Credentials, Tls, credentials_of, tls_of


def no_file(value: object) -> object:
    """Returns None for an empty text: the environment of a container leaves a file out so."""
    return None if value == "" else value


File = Annotated[Path | None, BeforeValidator(no_file)]


class SecuritySettings(BaseModel):
    """The identity of a process, the authorities that it trusts, and its access list."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tls_authority: File = None
    """PEM file: the authorities whose certificates are trusted. With the two below, everything that
    is served or asked speaks mutual TLS. Default: none, so that a group on loopback needs no
    files; a network that others use needs them."""
    tls_certificate: File = None
    """PEM file: the certificate that is shown, as a server and as a client, with what links it to
    an authority. It names each host of the address. Default: none, see `tls_authority`."""
    tls_key: File = None
    """PEM file: the certificate's private key, without a passphrase. Default: none."""
    token_file: File = None
    """A file with the token that is shown to members. Default: none; the certificate identifies
    this process."""
    access: AccessList | None = None
    """Who may call what: a TOML file, or the table itself (`security/access.py`). Default: none,
    whoever can connect may do everything."""

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
        """Returns the credentials that are shown to members.

        Raises InvalidSetting if a file cannot serve.
        """
        return credentials_of(self.tls, self.token_file)


def complete_tls(
    authority: Path | None, certificate: Path | None, key: Path | None, prefix: str = "tls"
) -> Tls | None:
    """Calls `tls_of`, with its error as a ValueError, which validators raise."""
    try:
        return tls_of(authority, certificate, key, prefix)
    except InvalidSetting as error:
        raise ValueError(f"{error.name} is missing: expected {error.expected}") from None


def read_access(path: Path) -> dict[str, object]:
    """Returns the document of an access file. Raises ValueError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected a TOML file") from None
