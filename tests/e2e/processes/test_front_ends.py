"""``--front-ends``: connections are accepted by processes of their own, and nothing else is different.

All of `tests/e2e` runs in this form with PYBACKEND_FRONT_ENDS=2 in the environment; here is what that form alone has.
"""

import ctypes
import json
import os
import queue
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import trustme

from pybackend.frontend.remote import messages
from tests.support.connection import Connection, binary_body, connected, head, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import DEADLINE_S, serving

BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
PATH = "/v2/models/identity/infer"
MIB = 1 << 20

ENDLESS = """
import time

class TritonPythonModel:
    def execute(self, requests):
        print("it has begun", flush=True)
        time.sleep(3600)
"""


PATIENT = """
import time

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "begun")
        (request,) = requests
        ended = "cancelled" if request.is_cancelled() else "answered"
        open(f"{self.directory}/{ended}", "a").write("x")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("front_ends")
    write_model(directory, "identity", IDENTITY, identity_config())
    return directory


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    traces = tmp_path_factory.mktemp("traces") / "traces"
    flags = ("--front-ends=2", "--log-access", "--model-control-mode=explicit", "--load-model=*")
    with serving(repository, flags=(*flags, f"--trace-config=triton,file={traces}")) as server:
        yield server


def front_ends(server) -> dict[int, str]:
    """The names of the front ends, by process."""
    return {pid: name for pid in server.child_pids() if "front end" in (name := _command(pid))}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    except OSError:
        return ""


def owner_of(server, connection) -> int:
    """The front end that has a client's connection."""
    local = connection.getsockname()[1]
    return next(pid for pid in front_ends(server) if local in _remote_ports(pid))


def _remote_ports(pid: int) -> set[int]:
    held = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in held}


def streamed(client, tensor, count: int) -> list[np.ndarray]:
    """The answers to so many requests on one stream."""
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    for _ in range(count):
        client.async_stream_infer("identity", [tensor])
    found = [answers.get(timeout=DEADLINE_S) for _ in range(count)]
    client.stop_stream()
    return [each.as_numpy("OUT") for each in found]


def test_processes_say_what_they_are(server):
    assert sorted(front_ends(server).values()) == ["pybackend front end 1", "pybackend front end 2"]
    server.wait_for("2 front ends are ready")
    metrics = server.metrics()
    for number in (1, 2):
        assert metrics[f'pybackend_front_end_resident_bytes{{front_end="{number}"}}'] > 1 << 20
        assert metrics[f'pybackend_front_end_cpu_seconds_total{{front_end="{number}"}}'] > 0


def test_one_answer_whoever_was_asked(server):
    """Figures of all requests are the same on every connection, and each request is counted once."""
    before = server.metrics()
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(12)]
        for connection in connections:
            connection.send(post(PATH, BODY))
        for connection in connections:
            assert connection.reply().status == 200
        statistics = []
        for connection in connections:
            connection.send(head("GET", "/v2/models/identity/stats"))
            statistics.append(connection.reply().json["model_stats"][0]["inference_stats"]["success"]["count"])
    assert len(set(statistics)) == 1
    name = 'nv_inference_request_success{model="identity",version="1"}'
    assert server.metrics()[name] - before.get(name, 0) == 12


def test_addresses_of_clients(server):
    with connected(server.port) as connection:
        port = connection.socket.getsockname()[1]
        connection.send(head("GET", "/v2/models"))
        assert connection.reply().status == 200
    server.wait_for(rf"http 127\.0\.0\.1:{port} GET /v2/models 200")


def test_malformed_requests_are_counted(server):
    """A front end answers what is no HTTP by itself, and the server counts it."""

    def refusals() -> float:
        return sum(value for name, value in server.metrics().items() if 'reason="malformed"' in name)

    before = refusals()
    with connected(server.port) as connection:
        connection.send(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert connection.reply().status == 400
    wait_until(lambda: refusals() == before + 1, "the refusal is not counted")


def test_loads_and_unloads(server):
    assert server.request("POST", "/v2/repository/models/identity/unload").status == 200
    for _ in range(6):
        assert server.infer("identity", BODY).status in {400, 404, 503}
    assert server.request("POST", "/v2/repository/models/identity/load").status == 200
    for _ in range(6):
        assert server.infer("identity", BODY).status == 200


def test_settings_that_change_while_a_request_arrives(server):
    """The front end that has its beginning answers it, whatever comes meanwhile."""
    settings = [
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}, {"trace_level": ["OFF"]}),
        ("/v2/logging", {"log_verbose_level": 1}, {"log_verbose_level": 0}),
    ]
    request = post(PATH, BODY)
    with connected(server.port) as connection:
        for path, on, off in settings:
            for _ in range(3):  # the third head is known
                connection.send(request[:-1])
                assert server.request("POST", path, on).status == 200
                connection.send(request[-1:])
                assert connection.reply().status == 200
                assert server.request("POST", path, off).status == 200


def test_grpc_calls_of_all_kinds(server):
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_live()
        assert client.get_model_config("identity").config.name == "identity"
        tensor = grpcclient.InferInput("IN", [2], "FP32")
        tensor.set_data_from_numpy(np.array([3, 4], np.float32))
        assert client.infer("identity", [tensor]).as_numpy("OUT").tolist() == [3, 4]
        assert [answer.tolist() for answer in streamed(client, tensor, 3)] == [[3, 4]] * 3
        with pytest.raises(grpcclient.InferenceServerException, match="unknown model"):
            client.get_model_config("nobody")


def test_large_messages_pass(server):
    """More than every window and buffer on the way, in both directions."""
    data = np.arange(1 << 21, dtype=np.float32)
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        tensor = grpcclient.InferInput("IN", [data.size], "FP32")
        tensor.set_data_from_numpy(data)
        assert (client.infer("identity", [tensor]).as_numpy("OUT") == data).all()
        assert all((answer == data).all() for answer in streamed(client, tensor, 4))


@pytest.mark.faults
def test_a_killed_front_end_costs_its_connections_only(server):
    """The other's go on, and another one takes its place."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(16)]
        for connection in connections:
            connection.send(head("GET", "/v2/health/live"))
            assert connection.reply().status == 200
        owners = {connection: owner_of(server, connection.socket) for connection in connections}
        victim = owners[connections[0]]
        os.kill(victim, signal.SIGKILL)
        server.wait_for(
            r"pybackend front end \d was killed by signal 9 .*its connections have ended with it\. Restart 1 in a row"
        )
        for connection, owner in owners.items():
            if owner == victim:
                assert connection.at_end()
            else:
                connection.send(head("GET", "/v2/health/live"))
                assert connection.reply().status == 200
    wait_until(lambda: len(front_ends(server)) == 2 and victim not in front_ends(server), "no other took its place")
    for _ in range(8):  # those that chance sends to the new one wait until it accepts them
        assert server.infer("identity", BODY).status == 200


def test_tls_and_new_certificates(repository, tmp_path):
    authority = trustme.CA()
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    flags = ("--front-ends=2", "--http-use-ssl", f"--http-server-cert={pem}", f"--http-server-key={pem}")

    def serial(port: int) -> str:
        with (
            socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(head("GET", "/v2/health/live"))
            assert secure.recv(12) == b"HTTP/1.1 200"
            return str(secure.getpeercert()["serialNumber"])

    with serving(repository, flags=flags, ready=False) as server:
        first = serial(server.port)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("Read the certificates of HTTP")
        assert first not in {serial(server.port) for _ in range(8)}


def test_old_keys_count_nowhere_any_more(repository, tmp_path):
    """Once the log says that the keys were read, and a key that stays counts all along."""
    keys = tmp_path / "keys"
    first, second, third, staying = (f"{name}-key-0123456789" for name in ("first", "second", "third", "staying"))
    keys.write_text(f"{first}\n{staying}")
    flags = ("--front-ends=1", f"--api-key-file={keys}", "--allow-grpc=false")

    with serving(repository, flags=flags, ready=False) as server, ExitStack() as stack:
        server.wait_for("1 of 1 model is ready")
        (front_end,) = front_ends(server)
        connections = [stack.enter_context(connected(server.port)) for _ in range(16)]
        given = [first, staying] * 8

        def statuses(*asked: str) -> list[int]:
            return [server.infer("identity", BODY, {"x-api-key": key}).status for key in asked]

        for connection, key in zip(connections, given, strict=True):
            connection.send(post(PATH, BODY, {"x-api-key": key}))
            assert connection.reply().status == 200
        os.kill(front_end, signal.SIGSTOP)  # it has the old keys for as long as it stands still
        keys.write_text(f"{second}\n{staying}")
        server.process.send_signal(signal.SIGHUP)

        def has_new_keys() -> bool:
            headers = {"x-api-key": second}
            return server.request("GET", "/metrics", headers=headers, port=server.metrics_port).status == 200

        wait_until(has_new_keys, "the server has the old keys")
        for connection, key in zip(connections, given, strict=True):
            connection.send(post(PATH, BODY, {"x-api-key": key}))
        assert "Read the API keys" not in server.output
        os.kill(front_end, signal.SIGCONT)
        for connection, key in zip(connections, given, strict=True):
            assert connection.reply().status in ({200} if key == staying else {200, 401})
        server.wait_for("Read the API keys")
        assert statuses(first, second, staying) == [401, 200, 200]
        keys.write_text(third)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("(?s)Read the API keys.*Read the API keys")
        assert statuses(second, staying, third) == [401, 401, 200]


def test_a_unix_socket_is_shared(repository, tmp_path):
    path = tmp_path / "http.sock"
    with serving(
        repository, flags=("--front-ends=2", f"--http-address=unix:{path}", "--allow-grpc=false"), ready=False
    ) as server:
        server.wait_for("Started HTTPService")
        for _ in range(6):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(DEADLINE_S)
                client.connect(str(path))
                client.sendall(head("GET", "/v2/health/live"))
                assert client.recv(12) == b"HTTP/1.1 200"
    assert not path.exists()


def large_request(nbytes: int, model: str = "integers") -> tuple[bytes, bytes]:
    data = os.urandom(nbytes)
    tensor = {"name": "IN", "datatype": "INT32", "shape": [nbytes // 4], "parameters": {"binary_data_size": nbytes}}
    body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, data)
    return post(f"/v2/models/{model}/infer", body, headers), data


def one_of_each(server, stack: ExitStack) -> dict[int, Connection]:
    found: dict[int, Connection] = {}
    while len(found) < len(front_ends(server)):
        connection = stack.enter_context(connected(server.port))
        connection.send(head("GET", "/v2/health/live"))
        assert connection.reply().status == 200
        found.setdefault(owner_of(server, connection.socket), connection)
    return found


def test_memory_that_one_front_end_does_not_use_serves_clients_of_another(tmp_path):
    """As soon as it is needed, whichever has it."""
    write_model(tmp_path, "integers", IDENTITY, identity_config("TYPE_INT32"))
    flags = ("--front-ends=2", f"--model-memory-limit={40 * MIB}", "--allow-grpc=false")
    requests = [large_request(nbytes * MIB) for nbytes in (32, 16, 32)]
    with serving(tmp_path, flags=flags) as server, ExitStack() as stack:
        connections = one_of_each(server, stack).values()
        for request, data in requests:
            for connection in connections:
                connection.send(request)
                reply = connection.reply()
                assert reply.status == 200, reply.error
                assert reply.body.endswith(data)


@pytest.mark.faults
def test_requests_of_a_killed_front_end_are_cancelled(tmp_path):
    """Those under way, with large tensors; the other front end's are answered, and no memory is missing afterwards."""
    extra = "instance_group { kind: KIND_CPU count: 2 }"
    directory = write_model(tmp_path, "patient", GATE + PATIENT, identity_config("TYPE_INT32", extra=extra))
    gate = Gate(directory, "begun")
    gate.open()
    request, data = large_request(16 * MIB, "patient")
    with (
        serving(tmp_path, flags=("--front-ends=2", f"--model-memory-limit={40 * MIB}")) as server,
        ExitStack() as stack,
    ):
        held = one_of_each(server, stack)
        for connection in held.values():  # both know the model then
            connection.send(request)
            assert connection.reply().status == 200
        gate.close()
        for number, connection in enumerate(held.values(), 3):
            connection.send(request)
            gate.wait_reached(number)
        victim, survivor = held
        os.kill(victim, signal.SIGKILL)
        assert held[victim].at_end()
        server.wait_for("was killed by signal 9")
        gate.open()
        reply = held[survivor].reply()
        assert reply.status == 200
        assert reply.body.endswith(data)
        ended = directory / "cancelled"
        wait_until(lambda: ended.exists() and ended.read_text() == "x", "the victim's request was not cancelled")
        wait_until(lambda: len(front_ends(server)) == 2, "no other took its place")
        for connection in one_of_each(server, stack).values():
            for _ in range(2):
                connection.send(request)
                assert connection.reply().status == 200


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take another process's socket")
def test_a_front_end_that_lies_is_killed_and_others_go_on(server):
    """Garbage comes through the socket of a front end, as from one that was captured."""
    with ExitStack() as stack:
        held = one_of_each(server, stack)
        victim, survivor = held
        with channel_of(victim) as channel:
            channel.send(b"\0\xc1 garbage")
        server.wait_for(r"front end \d was killed, because it broke the rules of its channel: a frame does not decode")
        assert held[victim].at_end()
        held[survivor].send(post(PATH, BODY))
        assert held[survivor].reply().status == 200
    wait_until(lambda: victim not in front_ends(server) and len(front_ends(server)) == 2, "no other took its place")


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take another process's socket")
def test_a_front_end_that_tells_of_a_port_that_it_has_not_is_killed(repository):
    """Nobody would look after any front end if the server looked for such a port."""
    with serving(repository, flags=("--front-ends=1", "--allow-grpc=false")) as server:
        server.wait_for("1 front end is ready")
        (victim,) = front_ends(server)
        with channel_of(victim) as channel:
            channel.send(b"\0" + msgspec.msgpack.encode([messages.Accepting("grpc", "")]))
        server.wait_for(r"broke the rules of its channel: it was not told to accept connections of grpc")
        wait_until(lambda: victim not in front_ends(server) and len(front_ends(server)) == 1, "no other took its place")


def sockets_of(pid: int) -> Iterator[socket.socket]:
    """Copies of the sockets of a process, each until the next one is asked for."""
    pidfd_getfd, libc = 438, ctypes.CDLL(None)
    opened = os.pidfd_open(pid)
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith("socket:"):
                with socket.socket(fileno=libc.syscall(pidfd_getfd, opened, int(link.name), 0)) as copy:
                    yield copy
    finally:
        os.close(opened)


def channel_of(pid: int) -> socket.socket:
    """A copy of the socket through which a front end speaks with the server."""
    return next(
        each.dup() for each in sockets_of(pid) if (each.family, each.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )


def listeners(port: int) -> int:
    """How many sockets of a port take new connections."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[1].split(":")[1], 16) == port and row[3] == "0A" for row in rows)


def listener_of(pid: int) -> socket.socket:
    """A copy of a front end's only listening socket."""
    return next(each.dup() for each in sockets_of(pid) if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@pytest.mark.faults
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_listener_that_was_shut_down_is_bound_again(repository, tmp_path, kind, dies):
    """A captured front end that its system-call filter does not stop may have done so, and then die."""
    path = tmp_path / "http.sock"
    flags = ("--front-ends=1",) if kind == "tcp" else ("--front-ends=2", f"--http-address=unix:{path}")
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        serving(repository, flags=(*flags, "--allow-grpc=false"), ready=False) as server,
    ):
        server.wait_for("1 of 1 model is ready")
        before = front_ends(server)
        for pid in before:
            if dies:
                os.kill(pid, signal.SIGSTOP)
            with listener_of(pid) as listener:
                listener.shutdown(socket.SHUT_RDWR)
                if kind == "tcp":  # then it cannot even listen again
                    listener.connect_ex(elsewhere.getsockname())
            if dies:
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: len(front_ends(server)) == len(before) and not before.keys() & front_ends(server).keys(),
            "none was replaced",
        )

        def answers() -> bool:
            try:
                with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as client:
                    client.settimeout(DEADLINE_S)
                    client.connect(str(path) if kind == "unix" else ("127.0.0.1", server.port))
                    client.sendall(head("GET", "/v2/health/ready"))
                    return client.recv(12) == b"HTTP/1.1 200"
            except ConnectionError:
                return False

        wait_until(answers, "nobody answers")
        assert [answers() for _ in range(20)] == [True] * 20
        assert "never retrieved" not in server.output


@pytest.mark.faults
def test_a_front_end_that_cannot_be_started_is_told_and_replaced(server):
    """Readiness says so through the other, which gets all new connections: nobody waits for one that may never come."""
    with ExitStack() as stack:
        (victim, _), (_, connection) = one_of_each(server, stack).items()
        name = front_ends(server)[victim]

        def status() -> int:
            connection.send(head("GET", "/v2/health/ready"))
            return connection.reply().status

        def is_told() -> bool:
            for pid, each in front_ends(server).items():
                if each == name:
                    os.kill(pid, signal.SIGKILL)
            return status() == 400 and listeners(server.port) == 1

        wait_until(is_told, "readiness does not tell, or clients wait")
        wait_until(lambda: status() == 200, "it does not come back")
        assert listeners(server.port) == 2
        for _ in range(8):
            assert server.infer("identity", BODY).status == 200


@pytest.mark.faults
@pytest.mark.thorough
def test_memory_of_a_killed_front_end_comes_back(repository):
    """A tensor that was arriving when its process was killed leaves room for one that needs the same memory."""
    data = bytes(32 * MIB)
    body, headers = binary_body(
        {
            "inputs": [
                {
                    "name": "IN",
                    "datatype": "FP32",
                    "shape": [len(data) // 4],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "parameters": {"binary_data_output": True},
        },
        data,
    )
    request = post(PATH, body, headers)
    with serving(repository, flags=("--front-ends=1", f"--model-memory-limit={40 * MIB}")) as server:
        for _ in range(2):  # the front end knows the model then
            assert server.infer("identity", BODY).status == 200
        with connected(server.port) as arriving:
            arriving.send(memoryview(request)[:-1])
            (victim,) = front_ends(server)
            os.kill(victim, signal.SIGKILL)
            assert arriving.at_end()

        def answers() -> bool:
            with connected(server.port) as connection:
                connection.send(request)
                reply = connection.reply()
            return reply.status == 200 and reply.body.endswith(data)

        wait_until(answers, "the memory does not come back")


@pytest.mark.faults
def test_a_second_signal_hurries(repository, tmp_path):
    write_model(tmp_path, "endless", ENDLESS, identity_config())
    with serving(tmp_path, flags=("--front-ends=1",)) as server, connected(server.port) as connection:
        found = front_ends(server)
        connection.send(post("/v2/models/endless/infer", BODY))
        server.wait_for("it has begun")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        assert not any("front end" in _command(pid) for pid in found)


@pytest.mark.spec("srv-P05")
@pytest.mark.parametrize("verbose", [0, 1], ids=["answered by the front end", "forwarded"])
def test_a_stop_waits_for_no_further_calls_of_a_client_that_has_an_answer_to_get(tmp_path, verbose):
    """Models have all that the client may send, as its connection was told to end: the grace is over at once."""
    gate = Gate(write_model(tmp_path, "patient", GATE + PATIENT, identity_config()), "begun")
    flags = ("--front-ends=1", "--exit-timeout-secs=7200", "--exit-keepalive-secs=3600", f"--log-verbose={verbose}")
    with serving(tmp_path, flags=flags) as server, grpcclient.InferenceServerClient(server.grpc_url) as client:
        tensor = grpcclient.InferInput("IN", [2], "FP32")
        tensor.set_data_from_numpy(np.ones(2, np.float32))
        with gate.holding(lambda: client.infer("patient", [tensor])) as answer:
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("Waiting for in-flight requests")
        assert answer.result().as_numpy("OUT").tolist() == [1, 1]
        assert server.wait() == 0


@pytest.mark.faults
def test_nothing_stays_of_a_killed_server(repository):
    with serving(repository, flags=("--front-ends=2",)) as server:
        found = front_ends(server)
        server.process.kill()
        server.wait()
        wait_until(lambda: not any("front end" in _command(pid) for pid in found), "they are still there")


@pytest.mark.faults
@pytest.mark.thorough
def test_a_stopped_front_end_is_replaced(repository):
    with serving(repository, flags=("--front-ends=1",)) as server:
        (victim,) = front_ends(server)
        os.kill(victim, signal.SIGSTOP)
        server.wait_for("was killed, because it has been stopped for 10 s")
        wait_until(lambda: front_ends(server) and victim not in front_ends(server), "no other took its place")
        assert server.get("/v2/health/ready").status == 200


@pytest.mark.faults
@pytest.mark.thorough
def test_descriptors_that_are_exhausted_in_one_front_end(repository):
    """Further clients are refused, and served again once others have gone; the engine's process has its own."""
    few = ("/bin/sh", "-c", 'ulimit -n 256; exec "$0" "$@"', sys.executable)
    with serving(repository, flags=("--front-ends=2",), python=few) as server, ExitStack() as stack:
        held = [stack.enter_context(connected(server.port)) for _ in range(500)]
        server.wait_for("Clients use all descriptors available to them")
        assert server.metrics()
        for each in held:
            each.close()
        for _ in range(20):
            server.wait_until("/v2/health/ready", 200)


@pytest.mark.thorough
def test_ten_thousand_connections(repository):
    """Over four front ends: each connection gets an answer while all others are open."""
    with serving(repository, flags=("--front-ends=4", "--allow-grpc=false")) as server, ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(10_000)]
        for each in held:
            each.settimeout(DEADLINE_S)
        for start in range(0, len(held), 500):
            for each in held[start : start + 500]:
                each.sendall(post(PATH, BODY))
            for each in held[start : start + 500]:
                assert each.recv(12) == b"HTTP/1.1 200"
