"""Clients that know nothing but the published .proto files: stubs of grpcio-tools, grpc-js, and C++.

The C++ client takes a minute to compile; it runs with ``ALL_LANGUAGES=1`` only.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEFINITIONS = ROOT / "host" / "pybackend" / "modelconfig" / "protobuf" / "definitions"
PEERS = Path(__file__).with_name("peers")
NODE_MODULES = ROOT / "examples" / "clients" / "node_modules"

UNKNOWN = "Request for unknown model: 'nobody' is not found"
GONE = "it is NOT_FOUND: 100 %, ü"
EXPECTED = {
    "live": True,
    "metadata": [["IN", "INT32", [-1, 2]]],
    "contents": [1, 2.5],
    "raw": [1, 2.5],
    "id": "ü",
    "compressed": 4999950000,
    "stream_with_metadata": [[5, GONE]],
    "unknown_model": [5, UNKNOWN],
    "model_error": [5, GONE],
    "deadline": 4,
    "cancelled": 1,
}
SERVICES = {"inference.GRPCInferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}


def check(*command, **environment):
    """Run a client and compare what it has seen."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert set(seen.pop("services")) >= SERVICES
    assert seen.pop("health") in {1, "SERVING"}
    # Answers to one request come in order; those of a decoupled model may come between others.
    stream = seen.pop("stream")
    assert [answer for answer in stream if answer[0] == "a"] == [["a", [0], False], ["a", [1], False], ["a", [], True]]
    assert [answer for answer in stream if answer[0] != "a"] == [UNKNOWN, ["b", [7], True]]
    assert seen == EXPECTED


@pytest.fixture
def address(server):
    """The server's; the marks that its model ``patient`` leaves are removed."""
    yield server.grpc_url
    for name in ("began", "cancelled"):
        (server.repository / "patient" / name).unlink(missing_ok=True)


@pytest.mark.spec("srv-G20")
def test_python_stubs_of_grpcio_tools(address, tmp_path):
    # In Python, health and reflection come as packages: modules of the name grpc.health would hide grpc itself.
    files = [path.name for path in DEFINITIONS.glob("*.proto")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{DEFINITIONS}",
            f"--python_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            *files,
        ],
        check=True,
        timeout=60,
    )
    check(sys.executable, PEERS / "peer.py", address, tmp_path)


@pytest.mark.spec("srv-G20")
def test_javascript_with_grpc_js(address):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    if not (NODE_MODULES / "@grpc" / "grpc-js").is_dir():
        pytest.skip("grpc-js is not installed (npm install --no-package-lock --prefix examples/clients)")
    check(node, PEERS / "peer.cjs", address, DEFINITIONS, NODE_PATH=str(NODE_MODULES))


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif("ALL_LANGUAGES" not in os.environ, reason="compiling takes a minute: set ALL_LANGUAGES=1")
def test_cpp(address, tmp_path):
    plugin = shutil.which("grpc_cpp_plugin")
    assert plugin, "install libgrpc++-dev, protobuf-compiler-grpc and pkg-config"
    files = [path.relative_to(DEFINITIONS) for path in DEFINITIONS.rglob("*.proto")]
    flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "grpc++", "protobuf"], text=True).split()
    protoc = ["protoc", f"-I{DEFINITIONS}", f"--cpp_out={tmp_path}", f"--grpc_out={tmp_path}"]
    subprocess.run([*protoc, f"--plugin=protoc-gen-grpc={plugin}", *map(str, files)], check=True)
    sources = [str(path) for path in tmp_path.rglob("*.cc")]
    peer = tmp_path / "peer"
    compiler = ["g++", "-std=c++17", "-O0", f"-I{tmp_path}", "-o", str(peer), str(PEERS / "peer.cc")]
    subprocess.run([*compiler, *sources, *flags], check=True, timeout=500)
    check(peer, address)
