"""The error of a program that the machine does not have, in the tree of `certifier/errors.py`.

Unavailable
└── ServerMissing             SERVER_MISSING
"""

from ...certifier.errors import Unavailable


class ServerMissing(Unavailable):
    """The machine has no such server."""

    message = "no {server} here: {advice}"
    server: str
    advice: str
