"""How a member and those who ask it prove to each other that they know the token of
`groupcert.settings`. It is never sent: whoever listens at the path of the socket would have it.

Who asks sends a nonce. The member answers with one of its own and with a proof, the HMAC of
both; who asks compares it, and sends a proof of its own. The labels of the two differ, so that none
can be sent back. `Connection` in triggers.sql asks in the same way.

A frame is four bytes of length, most significant first, and a body of text.
"""

import hmac
import secrets
import socket
import struct
from typing import BinaryIO, NamedTuple

NONCE_BYTES = 16
MEMBER, ASKER = "member", "asker"
_CREDENTIALS = struct.Struct("3i")


class Nonces(NamedTuple):
    """The numbers that proofs are made with: one of each side, used once."""

    asker: str
    member: str


def new_nonce() -> str:
    """Returns a nonce."""
    return secrets.token_hex(NONCE_BYTES)


def proof_of(token: str, side: str, nonces: Nonces) -> str:
    """Returns the proof of a side, MEMBER or ASKER, that it knows the token: an HMAC, in
    hexadecimal digits.
    """
    return hmac.digest(token.encode(), " ".join((side, *nonces)).encode(), "sha256").hex()


def is_proof(given: str, token: str, side: str, nonces: Nonces) -> bool:
    """Returns whether a proof is that of the side."""
    return hmac.compare_digest(given.encode(), proof_of(token, side, nonces).encode())


def peer_uid(connected: socket.socket) -> int:
    """Returns the account of the process at the other end of a unix socket."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return int(uid)


def ask(connected: socket.socket, answers: BinaryIO, token: str, question: str) -> str:
    """Asks a member one thing, and returns its answer, once both sides have proved themselves.

    Raises:
        OSError: It has hung up, or cannot prove that it is the member.
        ValueError: It sends no text.
    """
    nonce = new_nonce()
    connected.sendall(framed(nonce))
    other, _, proof = _read(answers).partition(" ")
    nonces = Nonces(nonce, other)
    if not is_proof(proof, token, MEMBER, nonces):
        raise PermissionError("who listens there cannot prove that it is the member")
    connected.sendall(framed(proof_of(token, ASKER, nonces)) + framed(question))
    return _read(answers)


def framed(text: str) -> bytes:
    """Returns a text as it is sent."""
    body = text.encode()
    return struct.pack(">I", len(body)) + body


def _read(answers: BinaryIO) -> str:
    body = answers.read(int.from_bytes(answers.read(4)))
    if not body:
        raise ConnectionError("the member has hung up")
    return body.decode()
