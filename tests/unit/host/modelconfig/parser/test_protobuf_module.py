"""The generated protobuf module is loaded without grpc, and a gRPC client in the same process does not notice."""

from __future__ import annotations

import subprocess
import sys

import pytest

OURS = """
from pybackend.modelconfig.parser import parse_config_text, format_config_text
assert parse_config_text('name: "a"', "x")["name"] == "a"
"""
THEIRS = """
import tritonclient.grpc
from tritonclient.grpc import model_config_pb2, service_pb2
from google.protobuf import text_format
response = service_pb2.ModelConfigResponse()
response.config.CopyFrom(text_format.Parse('name: "b"', model_config_pb2.ModelConfig()))
assert response.config.name == "b" and isinstance(response.config, model_config_pb2.ModelConfig)
assert tritonclient.grpc.model_config_pb2 is model_config_pb2
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


def test_parsing_imports_neither_grpc_nor_the_client() -> None:
    run(f"{OURS}\nimport sys\nassert not {{'grpc', 'tritonclient', 'tritonclient.grpc'}} & set(sys.modules)")


@pytest.mark.parametrize("code", [OURS + THEIRS + OURS, THEIRS + OURS + THEIRS], ids=["ours first", "theirs first"])
def test_client_and_parser_share_a_process(code: str) -> None:
    run(code)
    run(code + "import pybackend.modelconfig.parser as p\nassert p._ModelConfig is model_config_pb2.ModelConfig")
