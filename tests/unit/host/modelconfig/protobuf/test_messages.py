"""The messages are those of Triton's client and of gRPC's own packages: field by field, and byte for byte."""

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import message_factory, text_format
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from pybackend.modelconfig.protobuf.messages import DESCRIPTOR_SET, descriptor_pool, message_class
from tests.support.protobuf_messages import contents_of

DEFINITIONS = DESCRIPTOR_SET.parent / "definitions"

OTHERS = {
    "model_config.proto": model_config_pb2.DESCRIPTOR,
    "grpc_service.proto": service_pb2.DESCRIPTOR,
    "grpc/health/v1/health.proto": health_pb2.DESCRIPTOR,
    "grpc/reflection/v1alpha/reflection.proto": reflection_pb2.DESCRIPTOR,
}
"""Our files, and the same files as others have them."""

V1 = "grpc/reflection/v1/reflection.proto"
"""No package has this version; its messages are those of v1alpha."""

MESSAGES = [
    (name, f"{other.package}.{message}") for name, other in OTHERS.items() for message in other.message_types_by_name
]


def copied(file: Any) -> FileDescriptorProto:
    copy = FileDescriptorProto()
    file.CopyToProto(copy)
    return copy


def enum_facts(enum: EnumDescriptorProto) -> list[tuple[str, int]]:
    return [(value.name, value.number) for value in enum.value]


def message_facts(message: DescriptorProto) -> dict[str, Any]:
    return {
        "fields": [
            (
                field.name,
                field.number,
                field.type,
                field.type_name,
                field.label,
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None,
            )
            for field in message.field
        ],
        "map entry": message.options.map_entry,
        "nested": {nested.name: message_facts(nested) for nested in message.nested_type},
        "enums": {enum.name: enum_facts(enum) for enum in message.enum_type},
    }


def file_facts(file: FileDescriptorProto) -> dict[str, Any]:
    return {
        "package": file.package,
        "syntax": file.syntax,
        "imports": list(file.dependency),
        "messages": {message.name: message_facts(message) for message in file.message_type},
        "enums": {enum.name: enum_facts(enum) for enum in file.enum_type},
        "services": {
            service.name: {
                method.name: (method.input_type, method.output_type, method.client_streaming, method.server_streaming)
                for method in service.method
            }
            for service in file.service
        },
    }


def test_the_committed_descriptors_are_compiled_from_the_definitions(tmp_path):
    compiled = tmp_path / "descriptors.binpb"
    sources = sorted(str(path.relative_to(DEFINITIONS)) for path in DEFINITIONS.rglob("*.proto"))
    arguments = ["protoc", "-I", str(DEFINITIONS), "--include_imports", f"--descriptor_set_out={compiled}", *sources]
    assert protoc.main(arguments) == 0
    assert compiled.read_bytes() == DESCRIPTOR_SET.read_bytes(), "type: make schema"
    assert sorted({*OTHERS, V1}) == sources


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_has_the_same_messages_enums_and_services_as_others_have(name):
    ours, theirs = (file_facts(copied(file)) for file in (descriptor_pool().FindFileByName(name), OTHERS[name]))
    if name.endswith("health.proto") and "HealthListRequest" not in theirs["messages"]:
        del ours["messages"]["HealthListRequest"], ours["messages"]["HealthListResponse"]
        del ours["services"]["Health"]["List"]  # only newer releases of its package have it
    assert ours == theirs


def test_both_versions_of_reflection_differ_in_the_package_only():
    newer, older = (
        str(file_facts(copied(descriptor_pool().FindFileByName(f"grpc/reflection/{version}/reflection.proto"))))
        for version in ("v1", "v1alpha")
    )
    assert newer == older.replace("v1alpha", "v1")


@pytest.mark.parametrize(("file", "name"), MESSAGES, ids=[name for _, name in MESSAGES])
@given(data=st.data())
@settings(max_examples=6)
def test_any_message_has_the_same_bytes_as_others_write(file, name, data):
    theirs_of = message_factory.GetMessageClass(OTHERS[file].message_types_by_name[name.rpartition(".")[2]])
    contents = data.draw(contents_of(descriptor_pool().FindMessageTypeByName(name)))
    ours, theirs = message_class(name)(**contents), theirs_of(**contents)
    written = ours.SerializeToString(deterministic=True)
    assert written == theirs.SerializeToString(deterministic=True)
    assert text_format.MessageToString(theirs_of.FromString(written)) == text_format.MessageToString(ours)
    assert message_class(name).FromString(written).SerializeToString(deterministic=True) == written


@pytest.mark.parametrize("name", ["inference.Nothing", "google.protobuf.FileDescriptorProto", ""])
def test_a_message_that_no_definition_has(name):
    with pytest.raises(KeyError):
        message_class(name)


OURS = """
from pybackend.modelconfig.parser import parse_config_text
assert parse_config_text('name: "a"', "x")["name"] == "a"
from pybackend.modelconfig.protobuf.messages import message_class
ours = message_class("inference.ModelInferRequest")
assert ours(id="a").SerializeToString() == b"\\x1a\\x01a"
"""
THEIRS = """
import tritonclient.grpc, grpc_health.v1.health_pb2, grpc_reflection.v1alpha.reflection_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
response = service_pb2.ModelConfigResponse(config=model_config_pb2.ModelConfig(name="b"))
assert response.config.name == "b" and isinstance(response.config, model_config_pb2.ModelConfig)
tritonclient.grpc.InferenceServerClient("localhost:1").close()
"""


def run(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_messages_need_neither_grpc_nor_a_client():
    run(f"{OURS}\nimport sys\nassert not {{'grpc', 'tritonclient'}} & set(sys.modules)")


@pytest.mark.parametrize("code", [OURS + THEIRS + OURS, THEIRS + OURS + THEIRS], ids=["ours first", "theirs first"])
def test_a_client_shares_the_process(code):
    run(f"{code}\nassert ours is not service_pb2.ModelInferRequest")
