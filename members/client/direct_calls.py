"""Calls of a member's services by themselves, for tools that make few of them and wait for each."""

import grpc

from groupcert.certifier.errors import GroupcertError
from groupcert.members.client.remote_member import CHANNEL_OPTIONS
from groupcert.members.security.credentials import ANONYMOUS, Credentials
from groupcert.members.wire.channels import open_channel
from groupcert.members.wire.statuses import error_from


class DirectMember:
    """A connection to one member; stubs are made of its channel."""

    def __init__(self, address: str, credentials: Credentials = ANONYMOUS) -> None:
        self.address = address
        self.channel = open_channel(address, credentials, CHANNEL_OPTIONS)
        self._has_tls = credentials.tls is not None

    def failure(self, error: grpc.RpcError) -> GroupcertError:
        """Returns what a failed call to this member means to its caller."""
        return error_from(error, self.address, has_tls=self._has_tls)
