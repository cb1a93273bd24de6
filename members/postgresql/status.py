"""How others ask a member what it does now, and what it has done since it connected.

The rule it keeps: the numbers are the member's own, so that asking costs the server nothing. It
answers over the socket of its backends, to the server's account and root, who prove that they know
the token of `groupcert.settings`.
"""

import socket
from contextlib import closing
from pathlib import Path

from google.protobuf.json_format import Parse, ParseError

from groupcert.v1.postgresql_pb2 import PostgresqlStatus

from ...certifier.errors import NotServing
from .attachment import copy_unsuitable, name_of, opened_attached
from .backend_socket import short
from .backends import STATUS
from .handshake import ask

TIMEOUT_SECONDS = 5.0


def ask_member(dsn: str) -> PostgresqlStatus:
    """Returns the status of the member of a server.

    Raises:
        UnsuitableTarget: Nothing is attached there, or it is a copy.
        NotServing: The server does not answer, or it has no member; its state says why.
    """
    with opened_attached(dsn) as connection:
        row = connection.execute(
            "SELECT socket_path, token, out_of_group, groupcert.copied() FROM groupcert.settings"
        ).fetchone()
    assert row is not None, "an attached server without settings"
    path, token, reason, copied = row
    if copied:
        raise copy_unsuitable(dsn, copied)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(TIMEOUT_SECONDS)
            with short(Path(path)) as address:
                asking.connect(address)
            with asking.makefile("rb") as answers:
                answer = ask(asking, answers, token, STATUS.decode())
            return Parse(answer, PostgresqlStatus(), ignore_unknown_fields=True)
    except (OSError, ValueError, ParseError) as error:
        state = f"without a member at {path} ({reason or error})"
        raise NotServing(member=name_of(dsn), state=state) from None
