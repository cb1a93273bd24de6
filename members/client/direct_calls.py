"""Calls of a member's services by themselves, for tools that make few of them and wait for each."""

import grpc

from ...certifier.errors import GroupcertError
from ..security.credentials import ANONYMOUS, Credentials
from ..wire.channels import open_channel
from ..wire.statuses import error_from
from .remote_member import CHANNEL_OPTIONS


class DirectMember:
    """A connection to one member; stubs are made of its channel."""

    def __init__(self, address: str, credentials: Credentials = ANONYMOUS) -> None:
        self.address = address
        self.channel = open_channel(address, credentials, CHANNEL_OPTIONS)
        self._has_tls = credentials.tls is not None

    def failure(self, error: grpc.RpcError) -> GroupcertError:
        """Returns the error that a failed call to this member means to its caller."""
        return error_from(error, self.address, has_tls=self._has_tls)
