"""Flags of all verbs that call members: which ones, and how they connect.

The rule it keeps: a verb that calls members takes all of this as one argument, `connect`, so that
each verb has the same flags, and the same names in the environment as the settings of members. The
address stands behind the verb's other arguments; without one a verb goes to the group of the folder
that it is called in. One that changes something says which group that is before it does.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..demo.running_group import DEFAULT_FOLDER, has_group, members_up_in
from ..errors.usage import InvalidOption

if TYPE_CHECKING:
    from ..security.credentials import Credentials

DEFAULT_ADDRESS = "127.0.0.1:7101"
_DEFAULT = f"[default: the group of {DEFAULT_FOLDER}, else {DEFAULT_ADDRESS}]"
ONE = f"A member, host:port. {_DEFAULT}"
SEVERAL = f"Members, host:port, one after the other or with commas. {_DEFAULT}"
_HELP = {
    "tls_authority": "PEM: authorities to trust. Mutual TLS, with the two below.",
    "tls_certificate": "PEM: the certificate to show.",
    "tls_key": "PEM: its private key.",
    "token_file": "A file with the token to show.",
}
_ADDRESS = "GROUPCERT_ADDRESS"
_FOLDER = Annotated[
    Path | None, typer.Option(help="In place of ADDRESS: a folder of groupcert up.")
]
_GROUP = Annotated[
    str | None,
    typer.Option(envvar="GROUPCERT_GROUP", help="The group that is meant; no other is changed."),
]
Verb = Callable[..., None]


class ConnectFlags(NamedTuple):
    """The members to call, and the flags given for connections to them."""

    tls_authority: Path | None
    tls_certificate: Path | None
    tls_key: Path | None
    token_file: Path | None
    given: tuple[str, ...] = ()
    data_folder: Path | None = None
    group: str | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The members to call: those that were given, or else those of a folder's group.

        Raises:
            InvalidOption: Both were given.
            InvalidSetting: There is no group in `data_folder`.
            NothingUp: The folder's group is down.
        """
        if self.given and self.data_folder:
            folder = str(self.data_folder)
            raise InvalidOption(name="--data-folder", value=folder, expected="no ADDRESS beside it")
        if self.given:
            return self.given
        if self.data_folder is None and not has_group(DEFAULT_FOLDER):
            return (DEFAULT_ADDRESS,)
        return tuple(members_up_in(self.data_folder or DEFAULT_FOLDER).values())

    @property
    def address(self) -> str:
        """The member to call, in a verb that calls one."""
        return self.addresses[0]

    def credentials(self) -> "Credentials":
        """Returns the credentials shown to members. Raises InvalidSetting if a file is unfit."""
        from ..security.credentials import credentials_of, tls_of

        tls = tls_of(self.tls_authority, self.tls_certificate, self.tls_key)
        return credentials_of(tls, self.token_file)

    def tell_group(self) -> None:
        """Says on standard error which group a verb is about to change.

        Raises:
            InvalidOption: It is not the one of `--group`.
            NotServing: No member answers.
        """
        from .group_admin import group_at

        found = group_at(self.addresses, self.credentials())
        if self.group not in (None, found.group):
            expected = f"{found.group}, which is the group at {self.address}; nothing was changed"
            raise InvalidOption(name="--group", value=self.group, expected=expected)
        members = ", ".join(f"{each.name} {each.address}" for each in found.members)
        typer.echo(f"groupcert: group {found.group}: {members or 'nobody in its view'}", err=True)


def connecting(
    *,
    help: str | None = ONE,
    several: bool = False,
    is_last_word: bool = False,
    in_environment: bool = True,
    schemes: tuple[str, ...] = (),
    changes: bool = False,
) -> Callable[[Verb], Verb]:
    """Makes what gives a verb the flags in place of its parameter `connect`.

    Args:
        help: Of the argument ADDRESS; None: the verb has its addresses from elsewhere.
        several: Whether it takes several.
        is_last_word: Whether the verb looks for the address in its own words; it wins then.
        in_environment: Whether GROUPCERT_ADDRESS stands for it.
        schemes: Beginnings of addresses that are no member's.
        changes: Whether it changes a group, and so takes `--group`; it calls `tell_group` before.
    """
    address = _address(help, several, in_environment) if help else None
    takes_folder = address is not None or is_last_word

    def with_flags(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [each for name, each in signature.parameters.items() if name != "connect"]
        assert len(own) < len(signature.parameters), "it has no parameter connect"

        @wraps(verb)
        def run(**given: Any) -> None:
            flags = ConnectFlags(*(given.pop(name) for name in _HELP))
            flags = flags._replace(group=given.pop("group", None))
            variable = os.environ.get(_ADDRESS, "")
            texts = variable.split() if is_last_word else _listed(given.pop("address", None))
            if takes_folder and (folder := given.pop("data_folder")):
                flags = flags._replace(data_folder=folder)
                # A flag wins over the environment.
                texts = [] if " ".join(texts) == variable else texts
            if texts:
                flags = flags._replace(given=parsed(texts, schemes, several=several))
            verb(**given, connect=flags)

        parameters = [*own, *([address] if address else []), *map(_parameter, _HELP)]
        parameters += [_keyword("data_folder", _FOLDER)] if takes_folder else []
        parameters += [_keyword("group", _GROUP)] if changes else []
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return with_flags


def parsed(
    texts: Sequence[str],
    schemes: tuple[str, ...] = (),
    *,
    several: bool = True,
    name: str = "ADDRESS",
) -> tuple[str, ...]:
    """Returns the addresses in texts, which may have several with commas.

    Raises InvalidOption: One is malformed, or there are several where one is meant.

    >>> parsed(["a:1,[::1]:7101", "b:2"])
    ('a:1', '[::1]:7101', 'b:2')
    """
    from ..core.addresses import ADDRESS_SHAPE, is_address

    addresses = [each.strip() for text in texts for each in text.split(",")]
    for address in addresses:
        if not is_address(address) and not address.startswith(schemes):
            raise InvalidOption(name=name, value=address, expected=ADDRESS_SHAPE)
    if not several and len(addresses) > 1:
        raise InvalidOption(name=name, value=",".join(texts), expected="one member's")
    return tuple(addresses)


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _address(help: str, several: bool, in_environment: bool) -> inspect.Parameter:
    argument = typer.Argument(
        help=help,
        metavar="ADDRESS..." if several else "ADDRESS",
        envvar=_ADDRESS if in_environment else None,
        show_default=False,
    )
    kind = list[str] | None if several else str | None
    return _keyword("address", Annotated[kind, argument])


def _parameter(name: str) -> inspect.Parameter:
    option = typer.Option(help=_HELP[name], envvar=f"GROUPCERT_{name.upper()}")
    return _keyword(name, Annotated[Path | None, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)
