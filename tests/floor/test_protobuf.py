"""The server works with the oldest release of protobuf that it allows, with the newest, and with protobuf in plain
Python.

The package has no upper bound, so these are what pip may choose. The newest one is as new as the environment that holds
it: ``PYBACKEND_FLOOR_CACHE`` names an empty directory to have it made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory, text_format
from google.protobuf.descriptor import FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.floor import environments
from tests.support.thorough import thorough

ROOT = Path(__file__).resolve().parents[2]

READS_AND_WRITES = """
import json, sys
from google.protobuf import text_format
from pybackend.modelconfig.protobuf.messages import message_class
for name, (written, text) in json.load(sys.stdin).items():
    message = message_class(name).FromString(bytes.fromhex(written))
    assert text_format.MessageToString(message) == text, name
    assert message.SerializeToString(deterministic=True).hex() == written, name
"""

SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.1,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_INT32: -1,
    FieldDescriptor.CPPTYPE_INT64: -(2**63),
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}


def full(message: Any) -> dict[str, Any]:
    """Keyword arguments for a message in which every field is set."""
    return {field.name: _value(field) for field in message.fields}


def _value(field: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return {_item(key): _item(value)}
    return [_item(field)] if field.is_repeated else _item(field)


def _item(field: Any) -> Any:
    if field.message_type is not None:
        return full(field.message_type)
    if field.enum_type is not None:
        return max(field.enum_type.values_by_number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"\xff" if field.type == FieldDescriptor.TYPE_BYTES else "é"
    return SCALARS[field.cpp_type]


def _examples() -> dict[str, tuple[str, str]]:
    """Every message of Triton's client, full: its bytes and its text."""
    messages = [
        message_factory.GetMessageClass(each)(**full(each))
        for module in (model_config_pb2, service_pb2)
        for each in module.DESCRIPTOR.message_types_by_name.values()
    ]
    return {
        each.DESCRIPTOR.full_name: (
            each.SerializeToString(deterministic=True).hex(),
            text_format.MessageToString(each),
        )
        for each in messages
    }


def _releases() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (allowed,) = [each for each in project["dependencies"] if each.startswith("protobuf")]
    assert "<" not in allowed, "a ceiling keeps the server from being installed beside other packages"
    return {"oldest": allowed.replace(">=", "=="), "newest": "protobuf"}


def _run(python: str, *arguments: str, text: str = "", **variables: str) -> None:
    paths = ":".join(str(ROOT / folder) for folder in ("host", "stub", "sdk"))
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths} | variables,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", ["oldest", *thorough("newest")])
@pytest.mark.timeout(200)
def test_a_release_of_protobuf_reads_and_writes_messages_and_configurations(release):
    try:
        python = environments.host_python_with(_releases()[release])
    except environments.Unavailable as reason:
        pytest.skip(str(reason))
    _run(python, "-c", READS_AND_WRITES, text=json.dumps(_examples()))

    _run(
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "tests/unit/host/modelconfig/test_parser.py",
    )


def test_protobuf_in_plain_python_will_do():
    """It is what pip installs where there is no wheel for a machine, such as on musl."""
    _run(
        sys.executable,
        "-c",
        READS_AND_WRITES,
        text=json.dumps(_examples()),
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python",
    )
