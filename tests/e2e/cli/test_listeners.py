"""Where a server listens: Unix-domain sockets, IPv6, and ports that several servers share."""

import os
import re
import signal
import socket
import stat
import subprocess

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2

from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import DEADLINE_S, serving

READY = "1 of 1 model is ready"
LIVE = "/inference.GRPCInferenceService/ServerLive"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    write_model(place, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    return place


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return tmp_path_factory.mktemp("empty")


def curl(*arguments, **options):
    done = subprocess.run(
        ["curl", "-sS", "--max-time", str(DEADLINE_S), *arguments], capture_output=True, check=False, **options
    )
    assert not done.returncode, done.stderr
    return done.stdout.decode()


def is_live(address):
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(LIVE, response_deserializer=service_pb2.ServerLiveResponse.FromString)
        return call(b"", timeout=DEADLINE_S).live


def infer(address, count):
    array = np.arange(count, dtype=np.float32)
    tensor = tritonclient.grpc.InferInput("IN", [count], "FP32")
    tensor.set_data_from_numpy(array)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with tritonclient.grpc.InferenceServerClient(address, channel_args=options) as client:
        np.testing.assert_array_equal(client.infer("identity", [tensor]).as_numpy("OUT"), array)


def test_unix_domain_sockets(repository, tmp_path):
    web, calls = tmp_path / "http.sock", tmp_path / "grpc.sock"
    flags = (f"--http-address=unix:{web}", f"--grpc-address=unix:{calls}")
    old = os.umask(0o077)
    try:
        with serving(repository, flags=flags, ready=False) as server:
            server.wait_for(READY)
            server.wait_for(f'Started HTTPService at unix:{web}"')
            server.wait_for(f'Started GRPCInferenceService at unix:{calls}"')
            server.wait_for(r"Started Metrics Service at 127.0.0.1:\d+")
            for path in (web, calls):
                assert stat.S_IMODE(path.stat().st_mode) == 0o660
            body = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.5, 2]}]}'
            url = "http://localhost/v2/models/identity/infer"
            for _ in range(2):
                assert '"data":[1.5,2.0]' in curl("--unix-socket", web, "-d", body, url)
            # Large ones go into and out of shared memory.
            header = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[3000000],"parameters":{"binary_data_size":12000000}}]}'
            large = tmp_path / "body"
            large.write_bytes(header + np.arange(3_000_000, dtype=np.float32).tobytes())
            length = f"Inference-Header-Content-Length: {len(header)}"
            found = curl(
                "--unix-socket",
                web,
                "-H",
                length,
                "-H",
                "Expect:",
                "--data-binary",
                f"@{large}",
                "-w",
                "%{http_code}",
                "-o",
                os.devnull,
                url,
            )
            assert found == "200"
            for count in (3, 3_000_000):
                infer(f"unix:{calls}", count)
            assert is_live(f"unix://{calls}")
            assert server.stop() == 0
    finally:
        os.umask(old)
    assert not web.exists()
    assert not calls.exists()


def test_a_socket_file_whose_server_was_killed(empty, tmp_path):
    path = tmp_path / "http.sock"
    flags = (f"--http-address=unix:{path}", "--allow-grpc=false")
    for number in (signal.SIGKILL, signal.SIGTERM):
        with serving(empty, flags=flags, ready=False) as server:
            server.wait_for("Started Metrics Service")
            assert curl("--unix-socket", path, "http://localhost/v2/health/live", "-w", "%{http_code}").endswith("200")
            server.stop(number)
        assert path.exists() is (number == signal.SIGKILL)


def test_ipv6_alone_and_both_families(empty):
    flags = ("--http-address=ipv6:[::1]", "--grpc-address=::")
    with serving(empty, flags=flags, ready=False) as server:
        web = server.wait_for(r"Started HTTPService at (\[::1\]:\d+)")[1]
        assert curl("-g", f"http://{web}/v2/health/live", "-w", "%{http_code}").endswith("200")
        port = server.wait_for(r"Started GRPCInferenceService at \[::\]:(\d+)")[1]
        assert is_live(f"127.0.0.1:{port}")
        assert is_live(f"[::1]:{port}")


def test_the_log_tells_that_the_address_of_http_is_not_that_of_grpc(empty):
    for flags, told in (
        (("--grpc-address=0.0.0.0",), True),
        ((), False),
    ):
        with serving(empty, flags=flags, ready=False) as server:
            line = server.wait_for("Started GRPCInferenceService at .*")[0]
            assert (
                "which other machines can reach, unlike HTTP. --http-address does not apply to gRPC" in line
            ) is told


@pytest.mark.spec("srv-H43")
def test_two_servers_share_their_ports(empty):
    """Each answers some of the connections, and one goes on when the other has stopped."""
    shared = ("--reuse-http-port", "--reuse-grpc-port=true", "--id=one")
    with serving(empty, flags=shared, ready=False) as first:
        first.wait_for("Started Metrics Service")
        ports = (f"--http-port={first.port}", f"--grpc-port={first.grpc_url.rpartition(':')[2]}")
        with serving(empty, flags=(*shared, *ports, "--id=two"), ready=False) as second:
            second.wait_for("Started Metrics Service")
            seen = set()
            for _ in range(500):
                seen.add(first.get("/v2").json["name"])
                if len(seen) == 2:
                    break
            assert seen == {"one", "two"}
            assert is_live(first.grpc_url)
            with serving(empty, flags=ports, ready=False) as third:  # without the flag
                assert third.wait() == 1
                assert f"Socket '127.0.0.1:{first.port}' already in use. Stop the program" in third.output
            second.stop()
        assert {first.get("/v2").json["name"] for _ in range(20)} == {"one"}
    with serving(empty, ready=False) as lonely:
        taken = f"--http-port={lonely.port}"
        with serving(empty, flags=("--reuse-http-port=true", taken), ready=False) as server:
            assert server.wait() == 1
            assert re.search(
                "already in use. With --reuse-http-port, every server on the port needs that flag", server.output
            )


SLOW = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")

    def execute(self, requests):
        return []
"""
)


@pytest.mark.spec("srv-H43")
def test_a_server_takes_no_connections_of_a_shared_port_before_it_is_ready(empty, tmp_path):
    """So that a new version of a server can start beside the old one without an error for any client."""
    gate = Gate(write_model(tmp_path / "slow", "slow", SLOW, identity_config()), "initialize")
    shared = ("--reuse-http-port", "--reuse-grpc-port", "--id=one")
    with serving(empty, flags=shared, ready=False) as first:
        first.wait_for("Started HTTPService")
        ports = (f"--http-port={first.port}", f"--grpc-port={first.grpc_url.rpartition(':')[2]}")
        with serving(tmp_path / "slow", flags=(*shared, *ports, "--id=two"), ready=False) as second:
            gate.wait_reached()
            assert {first.get("/v2").json["name"] for _ in range(40)} == {"one"}
            assert "HTTPService" not in second.output
            gate.open()
            second.wait_for("Started GRPCInferenceService")
            wait_until(lambda: first.get("/v2").json["name"] == "two", "the new server takes part")
            first.stop()
            assert {second.get("/v2").json["name"] for _ in range(20)} == {"two"}
        gate.close()
        with serving(tmp_path / "slow", flags=(*shared, *ports), ready=False) as third:
            gate.wait_reached(2)
            assert third.stop() == 0, "a signal while it loads"


def test_many_servers_start_at_one_path(empty, tmp_path):
    """One of them serves, and the others say why they do not; a killed server's file lies there before."""
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    flags = (f"--http-address=unix:{path}", "--allow-grpc=false", "--allow-metrics=false")
    with serving(empty, flags=flags, ready=False) as one, serving(empty, flags=flags, ready=False) as two:
        outcomes = [server.wait_for("Started HTTPService|already in use")[0] for server in (one, two)]
        assert sorted(outcomes) == ["Started HTTPService", "already in use"]
        assert curl("--unix-socket", path, "http://localhost/v2/health/live", "-w", "%{http_code}").endswith("200")


OPEN = r"Everybody who can reach this machine can use (.+), because they need no key: (.+) limits that to this machine"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ("--http-address=0.0.0.0", "--grpc-address=0.0.0.0"),
            [("HTTP and gRPC", "--http-address=127.0.0.1 --grpc-address=127.0.0.1")],
        ),
        (("--http-address=::",), [("HTTP", "--http-address=127.0.0.1")]),
        (("--http-address=0.0.0.0", "--http-restricted-api=inference:key=secret"), []),
        (("--http-address=0.0.0.0", "--api-key-file"), []),
        ((), []),
    ],
)
def test_ports_that_are_open_to_everybody_are_named(empty, tmp_path, flags, told):
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef0123456789abcdef\n")
    keys.chmod(0o600)
    given = tuple(f"{flag}={keys}" if flag == "--api-key-file" else flag for flag in flags)
    with serving(empty, flags=given, ready=False) as server:
        server.wait_for("Started Metrics Service")
        assert re.findall(OPEN, server.output) == told
