"""Connections between clients and members: plain or over mutual TLS, with a token or without.

The rule it keeps: a token leaves this machine over TLS only. A server reads its certificates again
when their files change; files that do not fit each other, as during a renewal, are ignored, and the
server keeps the old ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from ...certifier.errors import InvalidSetting, PortTaken
from ..host.loopback import is_loopback
from ..security.credentials import Credentials, PemFiles, Tls

ChannelOptions = Sequence[tuple[str, Any]]
AUTHORIZATION = "authorization"
ADMITTED = "groupcert-admitted"
"""Initial metadata of a call with a stream of requests, which a member sends once it lets it in."""
STREAM_ENDED = (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""Errors of gRPC where something is sent over a stream that has ended; who receives knows why."""
_DIRECTLY = (("grpc.enable_http_proxy", 0),)
"""Channel option: a proxy would read what is sent in clear, a token among it."""
Read = TypeVar("Read")
log: structlog.stdlib.BoundLogger = structlog.get_logger()


def open_channel(
    address: str, credentials: Credentials, options: ChannelOptions = ()
) -> grpc.Channel:
    """Returns a channel to a member; it connects when it is first used.

    Raises InvalidSetting if a file cannot serve, or a token would cross a network in clear.
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
    address: str, credentials: Credentials, options: ChannelOptions = ()
) -> grpc.aio.Channel:
    """Returns the same for asyncio; its calls take `token_metadata`. Raises as `open_channel`."""
    secure = _secure(address, credentials)
    if secure is None:
        return grpc.aio.insecure_channel(address, (*options, *_DIRECTLY))
    return grpc.aio.secure_channel(address, secure, options)


async def is_admitted(call: "grpc.aio.StreamStreamCall[Any, Any]") -> bool:
    """Returns whether a member has let in a call with a stream of requests. To one that it refuses,
    nothing may be written: gRPC would tell of its own failure to do so, and not of the refusal.
    """
    return any(name == ADMITTED for name, _ in await call.initial_metadata())


class Ending:
    """How a call ended at first. Where something is being sent over a stream that its member ends,
    gRPC puts an error of its own in the place of what the member said.
    """

    def __init__(self, call: "grpc.aio.Call") -> None:
        """Follows a call from before anything is sent."""
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    def of(self, error: grpc.RpcError) -> grpc.RpcError:
        """Returns the error that the call ended with, of which the caller got `error`."""
        first = self._first
        return error if first is None or first.code() is grpc.StatusCode.INTERNAL else first

    def _note(self, call: Any) -> None:
        reading = _error_of(call)
        try:
            reading.send(None)  # It does not wait: the status is there.
        except StopIteration as read:
            self._first = self._first or read.value
        reading.close()


async def _error_of(call: "grpc.aio.Call") -> grpc.aio.AioRpcError | None:
    """Returns the error that a call has ended with, if it has."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return None
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(code, initial, trailing, await call.details(), None)


def token_metadata(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call over such a channel. Raises as `open_channel`."""
    if not credentials.token:
        return ()
    return ((AUTHORIZATION, f"Bearer {credentials.token}"),)


def _secure(address: str, credentials: Credentials) -> grpc.ChannelCredentials | None:
    """Returns gRPC's credentials for TLS; None for a plain connection. Raises as `open_channel`."""
    if credentials.tls is None:
        if credentials.token and not is_loopback(address.rpartition(":")[0]):
            expected = "none without TLS, over which nobody can read it on its way"
            raise InvalidSetting(name="token", value=f"for {address}", expected=expected)
        return None
    credentials.tls.check()
    files = credentials.tls.read()
    return grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)


def add_port(server: grpc.Server | grpc.aio.Server, address: str, tls: Tls | None) -> None:
    """Lets a server listen; with TLS it takes only clients with a valid certificate.

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
    renewal = Renewal(tls)

    def read() -> grpc.ServerCertificateConfiguration:
        return _configuration(tls.read())

    return grpc.dynamic_ssl_server_credentials(
        read(),
        lambda: renewal.newest(read),  # type: ignore[arg-type, return-value]  # None: no change
        require_client_authentication=True,
    )


class Renewal:
    """Reads a server's files again; it is asked at each handshake whether they have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp = tls.stamp()

    def newest(self, read: Callable[[], Read]) -> Read | None:
        """Returns the result of `read` if the files are new, and fit; else None."""
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            self._tls.check()
            found = read()
        except (OSError, InvalidSetting) as error:
            log.warning("certificates_not_renewed", text=str(error))
            return None
        log.info("certificates_renewed", certificate=str(self._tls.certificate))
        return found


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

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        """Adds the token to a call, whether it has one request and one answer, or streams."""
        metadata = (*(client_call_details.metadata or ()), *self._metadata)
        return continuation(_CallDetails(client_call_details, metadata), request)

    intercept_unary_stream = intercept_unary_unary
    intercept_stream_unary = intercept_unary_unary  # type: ignore[assignment]  # names differ
    intercept_stream_stream = intercept_unary_unary  # type: ignore[assignment]  # as above
