"""Serves gRPC reflection under its two names, `v1` and the older `v1alpha`.

Tools of today ask for `grpc.reflection.v1` first, and some for nothing else; the library has only
`v1alpha`, whose messages are the same, field by field. The file that describes `v1` is made from
the library's, so that tools find the description of the service that they are using, too.
"""

from collections.abc import Iterable

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer


def _described() -> FileDescriptor:
    """Returns the file of `v1`, which it adds to what reflection tells of."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.options.ClearField("deprecated")
    text = text_format.MessageToString(file).replace("v1alpha", "v1")
    pool = descriptor_pool.Default()
    pool.Add(text_format.Parse(text, FileDescriptorProto()))
    return pool.FindFileByName(file.name.replace("v1alpha", "v1"))


DESCRIPTOR = _described()
SERVICE = DESCRIPTOR.services_by_name["ServerReflection"]
NAMES = (SERVICE.full_name, reflection.SERVICE_NAME)


def serve_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Adds both services to a server, which then describes `services` and these two."""
    names = (*services, *NAMES)
    reflection.enable_server_reflection(names, server)
    handler = grpc.stream_stream_rpc_method_handler(
        ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    (method,) = SERVICE.methods
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE.full_name, {method.name: handler}),)
    )
