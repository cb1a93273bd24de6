"""Flags of all verbs that call members: how they connect.

The rule it keeps: a verb that calls members takes these flags as one argument, `connect`, so that
each verb has the same flags, and the same names in the environment as the settings of members.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from groupcert.members.security.credentials import Credentials

_HELP = {
    "tls_authority": "PEM: authorities to trust. Mutual TLS, with the two below.",
    "tls_certificate": "PEM: the certificate to show.",
    "tls_key": "PEM: its private key.",
    "token_file": "A file with the token to show.",
}


class ConnectFlags(NamedTuple):
    """The flags given for connections to members."""

    tls_authority: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    token_file: Path | None

    def credentials(self) -> "Credentials":
        """Returns the credentials shown to members. Raises InvalidSetting if a file is unfit."""
        from groupcert.members.security.credentials import credentials_of, tls_of

        tls = tls_of(self.tls_authority, self.tls_certificate, self.tls_key)
        return credentials_of(tls, self.token_file)


def connecting(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the flags in place of its parameter `connect`."""
    signature = inspect.signature(verb)
    own = [each for name, each in signature.parameters.items() if name != "connect"]
    assert len(own) < len(signature.parameters), "it has no parameter connect"

    @wraps(verb)
    def run(**given: Any) -> None:
        flags = ConnectFlags(*(given.pop(name) for name in ConnectFlags._fields))
        verb(**given, connect=flags)

    parameters = [*own, *(_parameter(name) for name in ConnectFlags._fields)]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _parameter(name: str) -> inspect.Parameter:
    option = typer.Option(help=_HELP[name], envvar=f"GROUPCERT_{name.upper()}")
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, option],
    )
