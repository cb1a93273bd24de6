"""Every rpc that a member serves, found by reflection, and which requests are not sent, and why.

A new rpc of `proto/` is fuzzed without a change here. What its operator may ask of a member by
design, such as to leave its group, would stop the run; so a table says which requests are left out.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import groupcert.v1
from groupcert.members.services import reflection

MEMBERS = ("m1", "m2", "m3")


class Method(NamedTuple):
    """An rpc."""

    path: str
    """As HTTP/2 has it: `/package.Service/Method`."""
    request: type[Message]
    response: type[Message]
    streams_requests: bool
    streams_responses: bool

    @property
    def name(self) -> str:
        """The rpc without its package."""
        return self.path.rpartition(".")[2]


class Exclusion(NamedTuple):
    """Requests of an rpc that are not sent."""

    is_left_out: Callable[[Any], bool]
    reason: str


def _always(_: Message) -> bool:
    return True


EXCLUSIONS: Mapping[str, Exclusion] = {
    "AdminService/Leave": Exclusion(_always, "any request makes the member leave its group"),
    "AdminService/Rejoin": Exclusion(
        lambda request: request.discard_state,
        "a member that comes back anyway would do so with an empty state, from the whole log",
    ),
    "AdminService/ExpelMember": Exclusion(
        lambda request: request.member in MEMBERS, "puts the member that it names out of the view"
    ),
    "AdminService/ChangeSettings": Exclusion(
        lambda request: not request.dry_run,
        "changes what the whole group agrees on: its limits, who may join",
    ),
    "AdminService/SwitchMode": Exclusion(
        lambda request: request.single_primary and request.primary in ("", *MEMBERS),
        "in single-primary mode two of three members take no transactions",
    ),
}


@cache
def methods() -> tuple[Method, ...]:
    """Returns all rpcs, by path: the package's, and those of gRPC's health and reflection."""
    files: list[FileDescriptor] = [
        health_pb2.DESCRIPTOR,
        reflection_pb2.DESCRIPTOR,
        reflection.DESCRIPTOR,
    ]
    names = (each.name for each in iter_modules(groupcert.v1.__path__, "groupcert.v1."))
    files += [import_module(name).DESCRIPTOR for name in names if name.endswith("_pb2")]
    found = [
        _method(method)
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    ]
    return tuple(sorted(found, key=lambda method: method.path))


def method_named(name: str) -> Method:
    """Returns an rpc by its name, as `StoreService/Get`."""
    return next(each for each in methods() if each.name == name)


def why_left_out(method: Method, payload: bytes) -> str:
    """Returns why a request is not sent; empty if it may be. One that is no message may be."""
    exclusion = EXCLUSIONS.get(method.name)
    if exclusion is None:
        return ""
    try:
        request = method.request.FromString(payload)
    except DecodeError:
        return ""
    return exclusion.reason if exclusion.is_left_out(request) else ""


def _method(method: MethodDescriptor) -> Method:
    return Method(
        f"/{method.containing_service.full_name}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
