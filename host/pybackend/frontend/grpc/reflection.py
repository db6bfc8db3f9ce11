"""Server reflection: clients such as grpcurl ask which services there are, and for their definitions."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pybackend.modelconfig.protobuf.messages import descriptor_pool, message_class
from pybackend.protocol.grpc.status import GrpcStatus

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""Both versions have the same messages."""


class Reflection:
    """The service in one of :data:`PACKAGES`, which also names the other services."""

    def __init__(self, package: str, services: Sequence[str]) -> None:
        self._package = package
        self._services = sorted([*services, *(f"{each}.ServerReflection" for each in PACKAGES)])

    async def answer(self, request: Any) -> Any:
        answer = message_class(f"{self._package}.ServerReflectionResponse")(
            valid_host=request.host, original_request=request
        )
        kind = request.WhichOneof("message_request")
        try:
            if kind == "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            elif kind == "file_by_filename":
                _add_files(answer, descriptor_pool().FindFileByName(request.file_by_filename))
            elif kind == "file_containing_symbol":
                _add_files(answer, descriptor_pool().FindFileContainingSymbol(request.file_containing_symbol))
            elif kind == "all_extension_numbers_of_type":
                descriptor_pool().FindMessageTypeByName(request.all_extension_numbers_of_type)
                answer.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
            else:
                raise KeyError
        except KeyError:
            answer.error_response.error_code = GrpcStatus.NOT_FOUND
            answer.error_response.error_message = "this server has no such file, symbol or extension"
        return answer


def _add_files(answer: Any, first: Any) -> None:
    files, waiting = {first.name: first}, [first]
    while waiting:
        for each in waiting.pop().dependencies:
            if each.name not in files:
                files[each.name] = each
                waiting.append(each)
    for file in files.values():
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
