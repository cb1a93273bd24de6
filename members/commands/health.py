"""`groupcert health`: checks whether a member or a log server serves, as containers do.

The rule it keeps: it imports little, because it is called often: asking costs less than the answer.
"""

import json
import sys
import urllib.request

from ..security.credentials import Credentials

FINE, UNAVAILABLE = 0, 3
TIMEOUT_SECONDS = 2.0


def show_health(address: str, credentials: Credentials, *, as_json: bool = False) -> int:
    """Prints the health of `address`; returns 0 if it serves, else 3.

    Args:
        address: A member, `host:port`, or a log server: NATS's monitoring, `http://host:port`, or
            the page at which etcd says that it is healthy, `http://host:port/health`.
        credentials: Credentials to show, with the authority to trust.
    """
    if address.startswith(("http://", "https://")):
        is_serving, text = _log_server(address, credentials)
    else:
        is_serving, text = _member(address, credentials)
    document = {"address": address, "serving": is_serving, "state": text}
    sys.stdout.write(f"{json.dumps(document) if as_json else f'{address} {text}'}\n")
    return FINE if is_serving else UNAVAILABLE


def _member(address: str, credentials: Credentials) -> tuple[bool, str]:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from ..wire.channels import open_channel

    with open_channel(address, credentials) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            return False, f"UNREACHABLE: {error.details()}"
    states = health_pb2.HealthCheckResponse.ServingStatus
    return answer.status == states.SERVING, states.Name(answer.status)


def _log_server(address: str, credentials: Credentials) -> tuple[bool, str]:
    context = credentials.tls.client_context() if credentials.tls else None
    page = address if address.endswith("/health") else f"{address}/healthz"
    try:
        with urllib.request.urlopen(page, timeout=TIMEOUT_SECONDS, context=context):
            return True, "SERVING"
    except OSError as error:
        return False, f"UNREACHABLE: {error}"
