"""Connections between clients and members: plain or over mutual TLS, with a token or without.

The rule it keeps: a token leaves this machine over TLS only. Certificates of a server are read
again when their files change; files that do not fit each other, as in the midst of a renewal, are
passed over, and the server keeps what it had.
"""

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import structlog

from certifier.errors import InvalidSetting, PortTaken
from members.credentials import Credentials, PemFiles, Tls
from members.loopback import is_loopback

ChannelOptions = Sequence[tuple[str, Any]]
AUTHORIZATION = "authorization"
_DIRECTLY = (("grpc.enable_http_proxy", 0),)
"""A proxy would read what is sent in clear, a token among it."""
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def open_channel(
    address: str, credentials: Credentials, options: ChannelOptions = ()
) -> grpc.Channel:
    """A channel to a member; it connects when it is first used.

    Raises InvalidSetting: a file cannot serve, or a token would cross a network in clear.
    """
    secure = _secure(address, credentials)
    if secure is None:
        channel = grpc.insecure_channel(address, (*options, *_DIRECTLY))
    else:
        channel = grpc.secure_channel(address, secure, options)
    if not credentials.token:
        return channel
    return grpc.intercept_channel(channel, _TokenInterceptor(credentials.token))


def open_aio_channel(
    address: str, tls: Tls | None, options: ChannelOptions = ()
) -> grpc.aio.Channel:
    """The same for asyncio, without a token. Raises as `open_channel`."""
    secure = _secure(address, Credentials(tls=tls))
    if secure is None:
        return grpc.aio.insecure_channel(address, (*options, *_DIRECTLY))
    return grpc.aio.secure_channel(address, secure, options)


def token_metadata(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """What a call over such a channel takes along. Raises as `open_channel`."""
    if not credentials.token:
        return ()
    return ((AUTHORIZATION, f"Bearer {credentials.token}"),)


def _secure(address: str, credentials: Credentials) -> grpc.ChannelCredentials | None:
    """What gRPC needs for TLS; None for a plain connection. Raises as `open_channel`."""
    if credentials.tls is None:
        if credentials.token and not is_loopback(address.rpartition(":")[0]):
            expected = "none without TLS, over which nobody can read it on its way"
            raise InvalidSetting(name="token", value=f"for {address}", expected=expected)
        return None
    credentials.tls.check()
    files = credentials.tls.read()
    return grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)


def add_port(server: grpc.Server | grpc.aio.Server, address: str, tls: Tls | None) -> None:
    """Lets a server listen; with TLS it takes those clients only whose certificate is good.

    Raises:
        PortTaken: Another process listens there.
        InvalidSetting: A file cannot serve.
    """
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, _server_credentials(tls))
    except RuntimeError:
        raise PortTaken(address=address) from None


def _server_credentials(tls: Tls) -> grpc.ServerCredentials:
    tls.check()
    certificates = _Certificates(tls)
    return grpc.dynamic_ssl_server_credentials(
        certificates.first,
        certificates.changed,  # type: ignore[arg-type]  # None: nothing has changed
        require_client_authentication=True,
    )


class _Certificates:
    """A server's files; gRPC asks at each handshake whether they have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp = tls.stamp()
        self.first = _configuration(tls.read())

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold, if that is new and fits; None: go on with what there is."""
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            self._tls.check()
            files = self._tls.read()
        except (OSError, InvalidSetting) as error:
            log.warning("certificates_not_renewed", text=str(error))
            return None
        log.info("certificates_renewed", certificate=str(self._tls.certificate))
        return _configuration(files)


def _configuration(files: PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(files.key, files.certificate)], files.authority
    )


class _CallDetails(grpc.ClientCallDetails):
    """A call's details with other metadata: gRPC gives no way to change them."""

    def __init__(self, details: grpc.ClientCallDetails, metadata: tuple[Any, ...]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class _TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]  # only the stubs have one
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]  # only the stubs have one
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]  # only the stubs have one
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]  # only the stubs have one
):
    """Adds a token to each call. gRPC's own way, credentials of a call, asks another thread for it
    each time, which costs 250 us where this takes 30.
    """

    def __init__(self, token: str) -> None:
        self._metadata = token_metadata(Credentials(token=token))

    def _continue(
        self, continuation: Callable[..., Any], details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        metadata = (*(details.metadata or ()), *self._metadata)
        return continuation(_CallDetails(details, metadata), request)

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """One request, one answer."""
        return self._continue(continuation, client_call_details, request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """One request, many answers."""
        return self._continue(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request_iterator: Any
    ) -> Any:
        """Many requests, one answer."""
        return self._continue(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request_iterator: Any
    ) -> Any:
        """Many requests, many answers."""
        return self._continue(continuation, client_call_details, request_iterator)
