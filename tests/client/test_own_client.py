"""``pybackend_client`` over HTTP and gRPC, for threads and for coroutines, and the module that ``pybackend client``
writes."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest

from pybackend.modelconfig.protobuf.messages import message_class
from pybackend_client import (
    AccessError,
    AsyncClient,
    Client,
    ClientError,
    ConnectionLostError,
    DeadlineError,
    InvalidRequestError,
    ModelFailedError,
    ModelNotFoundError,
    Retries,
    UnavailableError,
    UnreachableError,
    WrongInputError,
)
from tests.support.gates import wait_until
from tests.support.repositories import copy_model, identity_config, write_model
from tests.support.server import serving

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERS = np.arange(4, dtype=np.float32)
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("client")
    copy_model(root / "models", "script")
    (root / "keys").write_text(KEY)
    repositories = [EXAMPLES / name / "model_repository" for name in ("add_sub", "decoupled", "string_upper")]
    flags = (f"--api-key-file={root / 'keys'}", "--api-key-exempt=health")
    with serving(root / "models", *repositories, flags=flags) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def url(server, request):
    return server.url if request.param == "http" else f"grpc://{server.grpc_url}"


@pytest.fixture
def client(url):
    with Client(url, api_key=KEY) as client:
        yield client


def test_arrays_go_in_and_out_by_name(client):
    assert (client.is_ready(), client("add_sub").is_ready(), client("nix").is_ready()) == (True, True, False)
    answer = client("add_sub", outputs=["OUTPUT1"], request_id="7").infer(INPUT0=NUMBERS, INPUT1=[1, 2, 3, 4])
    assert (list(answer), answer.request_id, answer.model_version) == (["OUTPUT1"], "7", "1")
    assert answer["OUTPUT1"].tolist() == [-1, -1, -1, -1]
    assert list(client("add_sub", version=1).metadata().inputs) == ["INPUT0", "INPUT1"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client("add_sub").infer(INPUT0=NUMBERS, INPUT1=NUMBERS), range(64)))
    assert {tuple(each["OUTPUT0"].tolist()) for each in answers} == {(0.0, 2.0, 4.0, 6.0)}


def test_texts_are_bytes_and_streams_yield_answers(client):
    (name,) = client("string_upper").metadata().inputs
    (upper,) = client("string_upper").infer(**{name: ["hello"]}).values()
    assert upper.tolist() == [b"HELLO"]
    streamed = client("repeat").stream(VALUES=[4, 2], DELAYS_MS=[0, 0])
    assert [each["VALUE"].tolist() for each in streamed] == [[4], [2]]


def test_errors_have_types_and_say_what_to_do(client, url):
    with pytest.raises(
        WrongInputError, match=r"has no input 'INPUT2': did you mean 'INPUT[01]'\? Its inputs: INPUT0 \(FP32"
    ):
        client("add_sub").infer(INPUT2=NUMBERS)
    with pytest.raises(WrongInputError, match=r"input 'INPUT0' wants FP32 \[4\]"):
        client("add_sub").infer(INPUT0=[1, 2], INPUT1=NUMBERS)
    with pytest.raises(InvalidRequestError, match=r"missing required input\(s\) \['INPUT1'\]"):
        client("add_sub").infer(INPUT0=NUMBERS)
    with pytest.raises(ModelNotFoundError, match="unknown model"):
        client("nix").infer(X=1)
    with pytest.raises(DeadlineError):
        client("add_sub", timeout_s=1e-9).infer(INPUT0=NUMBERS, INPUT1=NUMBERS)
    script = client("script").stream(text_input=json.dumps([{"text_output": "x"}, {"error": "broken"}]))
    assert next(script)["text_output"].tolist() == [b"x"]
    with pytest.raises(ModelFailedError, match="broken"):
        next(script)
    # Messages of a stream have no codes in gRPC.
    first_error = ModelFailedError if url.startswith("grpc:") else UnavailableError
    unavailable = json.dumps([{"error": "no place", "code": "UNAVAILABLE"}])
    with pytest.raises(first_error, match="no place"):
        next(client("script").stream(text_input=unavailable))

    async def streamed():
        async with AsyncClient(url, api_key=KEY) as other:
            await anext(other("script").stream(text_input=unavailable))

    with pytest.raises(first_error, match="no place"):
        asyncio.run(streamed())
    with Client(url, api_key="wrong") as stranger, pytest.raises(AccessError, match="the API key is not one of"):
        stranger("add_sub").infer(INPUT0=NUMBERS, INPUT1=NUMBERS)


def test_leaving_a_stream_cancels_the_request(client, server):
    before = server.output.count("the script was cancelled")
    stream = client("script").stream(text_input=json.dumps([{"forever": "x" * 1000}]))
    next(stream)
    stream.close()
    wait_until(lambda: server.output.count("the script was cancelled") > before, "the model has seen that nobody waits")


def test_coroutines_share_connections(url):
    async def many():
        async with AsyncClient(url, api_key=KEY, connections=4) as client:
            assert await client.is_ready()
            assert not await client("nix").is_ready()
            ask = client("add_sub")
            answers = await asyncio.gather(*(ask.infer(INPUT0=NUMBERS, INPUT1=NUMBERS) for _ in range(64)))
            streamed = [each["VALUE"].tolist() async for each in client("repeat").stream(VALUES=[4], DELAYS_MS=[0])]
            with pytest.raises(ModelNotFoundError):
                await client("nix").metadata()
            with pytest.raises(DeadlineError):
                await client("add_sub", timeout_s=1e-9).infer(INPUT0=NUMBERS, INPUT1=NUMBERS)
            with pytest.raises(WrongInputError):
                await ask.infer(INPUT2=1)
            return [each["OUTPUT0"].tolist() for each in answers], streamed

    assert asyncio.run(many()) == ([[0, 2, 4, 6]] * 64, [[4]])


def test_any_route_of_http_can_be_asked(server):
    with Client(server.url, api_key=KEY) as client:
        assert client.request("GET", "/v2/models")["models"]
        assert {row["name"] for row in client.request("POST", "/v2/repository/index", {})} >= {"add_sub", "script"}
        with pytest.raises(ModelNotFoundError, match="unknown model"):
            client.request("GET", "/v2/models/nix/config")
    with Client(f"grpc://{server.grpc_url}") as client, pytest.raises(ClientError, match=r"begins with http://"):
        client.request("GET", "/v2/models")

    async def asked():
        async with AsyncClient(server.url, api_key=KEY) as client:
            return await client.request("GET", "/v2/models/add_sub/stats")

    assert asyncio.run(asked())["model_stats"][0]["name"] == "add_sub"


ECHOES = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            (given,) = request.inputs()
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_follow_a_model_whose_inputs_have_changed(tmp_path, protocol):
    write_model(tmp_path, "echoes", ECHOES, identity_config(extra=DECOUPLED))
    flags = ("--model-control-mode=explicit", "--load-model=echoes")
    with serving(tmp_path, flags=flags) as server:
        url = server.url if protocol == "http" else f"grpc://{server.grpc_url}"
        with Client(url) as client, Client(server.url) as control:
            assert [each["OUT"].tolist() for each in client("echoes").stream(IN=[1])] == [[1]]
            configuration = control("echoes").configuration()
            configuration["input"][0]["name"] = "OTHER"
            changes = {"parameters": {"config": json.dumps(configuration)}}
            control.request("POST", "/v2/repository/models/echoes/load", changes)
            assert [each["OUT"].tolist() for each in client("echoes").stream(OTHER=[2])] == [[2]]


SIZES = """
class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([list(map(len, each))], np.int32).ravel())])
            for each in given
        ]
"""
SIZES_CONFIG = """
input { name: "IN" data_type: TYPE_STRING dims: -1 }
output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_stream_takes_bytes_that_are_no_text(tmp_path, protocol):
    write_model(tmp_path, "sizes", SIZES, f'backend: "python" {SIZES_CONFIG}')
    with (
        serving(tmp_path) as server,
        Client(server.url if protocol == "http" else f"grpc://{server.grpc_url}") as client,
    ):
        (answer,) = client("sizes").stream(IN=[b"\xff\0\xfe", "größer"])
        assert answer["OUT"].tolist() == [3, len("größer".encode())]


def test_a_server_that_is_not_there_is_unreachable():
    quick = Retries(attempts=2, first_pause_s=0)
    for url in ("localhost:1", "grpc://localhost:1", "unix:/nix/server.sock"):
        with Client(url, retries=quick) as client:
            assert not client.is_ready()
            with pytest.raises(UnreachableError, match="no server answers at"):
                client("m").infer(X=1)
    for url in ("http://", "ftp://x", "grpc://"):
        with pytest.raises(ValueError, match="is not the URL of a server"):
            Client(url)
    with pytest.raises(ValueError, match="the header 'Authorization' has a line break"):
        AsyncClient("localhost:1", api_key="key\r\nx: y")
    for headers in ({"a b": "c"}, {"": "c"}, {"a": "\u20ac"}):
        with pytest.raises(ValueError, match="has a line break or another character that no header has"):
            Client("localhost:1", headers=headers)


def test_a_closed_client_of_grpc_is_an_error_of_the_client():
    client = Client("grpc://localhost:1")
    client.close()
    for use in (client.is_ready, lambda: client("m").infer(X=1)):
        with pytest.raises(ClientError, match="the client is closed"):
            use()

    async def asked():
        client = AsyncClient("grpc://localhost:1")
        await client.close()
        await client("m").infer(X=1)

    with pytest.raises(ClientError, match="the client is closed"):
        asyncio.run(asked())


# Servers that fail


class Unreliable:
    """A server whose model X takes anything; each infer request gets the next of the given treatments."""

    def __init__(self, *treatments):
        outer, self.treatments, self.count, lock = self, list(treatments), 0, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                tensor = {"name": "X", "datatype": "FP32", "shape": [1]}
                self.answer(200, {"name": "m", "versions": ["1"], "inputs": [tensor], "outputs": []})

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    outer.count += 1
                    treatment = outer.treatments.pop(0) if outer.treatments else 200
                if treatment == "close":
                    self.close_connection = True
                elif treatment == "garbage":
                    self.wfile.write(b"\x00\x01garbage\r\n\r\n")
                    self.close_connection = True
                elif treatment == "half":
                    body = b'{"outputs": []}'
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (2 * len(body), body))
                    self.close_connection = True
                elif treatment == "half a stream":
                    event = b"data: {}\n\n"
                    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                    self.wfile.write(head + b"%x\r\n%b\r\n" % (len(event), event))
                    self.close_connection = True
                elif treatment == "no protocol":
                    self.answer(200, [1])
                else:
                    self.answer(treatment, {"outputs": []} if treatment == 200 else {"error": "busy"})

            def answer(self, status, document):
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


async def ask_async(url, **options):
    async with AsyncClient(url, retries=options.pop("retries", None)) as client:
        return await client("m", **options).infer(X=1)


def ask_sync(url, **options):
    with Client(url, retries=options.pop("retries", None)) as client:
        return client("m", **options).infer(X=1)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    return ask_sync if request.param == "sync" else lambda url, **options: asyncio.run(ask_async(url, **options))


def test_a_busy_server_is_asked_again_but_not_for_ever(ask):
    with Unreliable(503, 429) as busy:
        assert dict(ask(busy.url, repeatable=True, retries=Retries(first_pause_s=0.001))) == {}
        assert busy.count == 3
    with Unreliable(*[503] * 9) as busy:
        with pytest.raises(UnavailableError, match="busy"):
            ask(busy.url, repeatable=True, retries=Retries(first_pause_s=0.001))
        assert busy.count == 3
    with Unreliable(*[503] * 9) as busy:
        with pytest.raises(UnavailableError):
            ask(busy.url, repeatable=True, retries=Retries(first_pause_s=0.001, budget=1, attempts=9))
        assert busy.count == 2, "the budget has one retry"


@pytest.mark.parametrize("treatment", ["close", "garbage", "half", 503])
def test_a_request_that_may_have_run_is_repeated_only_on_demand(ask, treatment):
    with Unreliable(treatment) as frail:
        with pytest.raises(UnavailableError if treatment == 503 else ConnectionLostError):
            ask(frail.url, retries=Retries(first_pause_s=0.001))
        assert frail.count == 1
    with Unreliable(treatment) as frail:
        assert dict(ask(frail.url, repeatable=True, retries=Retries(first_pause_s=0.001))) == {}
        assert frail.count == 2


def test_a_stream_that_breaks_off_is_an_error_after_what_has_arrived():
    with Unreliable("half a stream", "half a stream") as frail:
        with Client(frail.url) as client:
            answers = client("m").stream(X=1)
            assert dict(next(answers)) == {}
            with pytest.raises(ConnectionLostError):
                next(answers)

        async def streamed():
            async with AsyncClient(frail.url) as client:
                answers = client("m").stream(X=1)
                assert dict(await anext(answers)) == {}
                with pytest.raises(ConnectionLostError):
                    await anext(answers)

        asyncio.run(streamed())


def test_a_server_that_says_nothing_is_not_ready():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("http", "grpc"):
            url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
            with Client(url, timeout_s=0.1) as client:
                assert not client.is_ready()
            with Client(url) as client:
                assert not client("m", timeout_s=0.1).is_ready()

        async def asked():
            async with AsyncClient(url, timeout_s=0.1) as client:
                return await client.is_ready()

        assert not asyncio.run(asked())


def test_other_failures_are_not_repeated(ask):
    for treatment, error in ((500, ModelFailedError), (400, InvalidRequestError), ("no protocol", ClientError)):
        with Unreliable(treatment) as server:
            with pytest.raises(error):
                ask(server.url)
            assert server.count == 1


class Replying:
    """A gRPC server whose model answers each request with the same message."""

    def __init__(self, response):
        self.server = grpc.server(ThreadPoolExecutor(1))
        x = {"name": "X", "datatype": "FP32", "shape": [1]}
        answers = {
            "ModelMetadata": message_class("inference.ModelMetadataResponse")(name="m", inputs=[x]),
            "ModelInfer": response,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda _request, _context, answer=answer: answer.SerializeToString()
            )
            for name, answer in answers.items()
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self.server.add_generic_rpc_handlers((service,))
        self.url = f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(None).wait()


def test_grpc_answers_may_hold_values_instead_of_bytes(ask):
    response = message_class("inference.ModelInferResponse")()
    for name, datatype, field, values in (
        ("NUMBERS", "INT16", "int_contents", [1, -2]),
        ("TEXTS", "BYTES", "bytes_contents", [b"a", b"longer"]),
    ):
        tensor = response.outputs.add(name=name, datatype=datatype, shape=[2])
        getattr(tensor.contents, field).extend(values)
    response.outputs.add(name="NONE", datatype="FP32", shape=[0, 3])
    with Replying(response) as server:
        answer = ask(server.url)
    assert {name: (str(array.dtype), array.tolist()) for name, array in answer.items()} == {
        "NUMBERS": ("int16", [1, -2]),
        "TEXTS": ("object", [b"a", b"longer"]),
        "NONE": ("float32", []),
    }


def test_a_grpc_answer_that_contradicts_itself_is_an_error_of_the_client(ask):
    def assert_refused(raw, **tensor):
        output = {"name": "X", "datatype": "INT8", "shape": [2], **tensor}
        response = message_class("inference.ModelInferResponse")(outputs=[output], raw_output_contents=raw)
        with Replying(response) as server, pytest.raises(ClientError, match="answer is not of the v2 protocol"):
            ask(server.url)

    for raw in ([b"1"], [b"12", b"12"], [b"123"]):
        assert_refused(raw)
    assert_refused([], datatype="INT3")
    assert_refused([], contents={"int_contents": [1, 1000]})


# The command


def test_the_written_module_calls_the_model(server, tmp_path):
    command = [
        sys.executable,
        "-m",
        "pybackend",
        "client",
        "--url",
        f"http://{server.url}",
        "--header",
        f"x-api-key={KEY}",
    ]
    for model in ("add_sub", "repeat", "script"):
        subprocess.run([*command, model, "--out", tmp_path / f"{model}_client.py"], check=True)
    again = subprocess.run(
        [*command, "add_sub", "--out", tmp_path / "add_sub_client.py"], capture_output=True, text=True, check=False
    )
    assert (again.returncode, again.stderr) == (
        1,
        f"error: {tmp_path / 'add_sub_client.py'} exists: --force replaces it\n",
    )
    unknown = subprocess.run([*command, "nix"], capture_output=True, text=True, check=False)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "unknown model" in unknown.stderr
    program = f"""
from add_sub_client import AddSub
from repeat_client import Repeat
from script_client import Script
from pybackend_client import Client
with Client("{server.url}", api_key="{KEY}") as client:
    print(AddSub(client).infer(INPUT0=[1, 2, 3, 4], INPUT1=[1, 1, 1, 1]).OUTPUT0)
    print([each.VALUE for each in Repeat(client).stream(VALUES=[5], DELAYS_MS=[0])])
    print([each.text_output for each in Script(client, timeout_s=9).stream(text_input='[{{"text_output": "x"}}]')])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "[2. 3. 4. 5.]",
        "[array([5], dtype=int32)]",
        "[array([b'x'], dtype=object)]",
    ], done
