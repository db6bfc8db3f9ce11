"""Models that call models of other servers: those of other pools, which a file names."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.support.callers import ONE, caller, sender, write_caller, write_targets
from tests.support.gates import Gate, wait_until
from tests.support.repositories import write_model
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.e2e

KEY = "the-key-between-servers"
FAR = ("double", "repeat", "describe", "far_caller")
CANCELS = 'parameters { key: "CANCEL_CALLS_WITH_REQUEST" value: { string_value: "yes" } }'
MIXED = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_FP32 dims: -1 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: -1 } ]
ensemble_scheduling {
    step [ { model_name: "double" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ]
}
"""


class Servers:
    """A server of the default pool, and two of the pool "far"; and one that has all models, to compare with."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.models = directory / "models"
        self._files = {pool: directory / f"{pool}.json" for pool in ("default", "far")}
        self._addresses: dict[str, list[str]] = {}
        self._stack = stack
        (directory / "key").write_text(f"{KEY}\n")
        self.tell()
        trace = f"--trace-config=triton,file={directory / 'trace'}"
        self.near = self._start(
            "default",
            trace,
            "--trace-config=rate=1",
            "--trace-config=level=TIMESTAMPS",
            "--model-control-mode=explicit",
            "--load-model=*",
        )
        keys = (f"--api-key-file={directory / 'key'}", "--api-key-exempt=health")
        self.far = [self._start("far", *keys, "--grpc-header-forward-pattern=traceparent") for _ in range(2)]
        self.tell(*self.far)
        self.single = stack.enter_context(serving(self.models))

    def _start(self, pool: str, *flags: str) -> ServerProcess:
        started = serving(self.models, flags=(f"--pools-file={self._files[pool]}", *flags))
        return self._stack.enter_context(started)

    def tell(self, *far: ServerProcess, times: int = 1) -> None:
        """Let the servers of the default pool know where these are, and these where that is, named so many times."""
        servers = {"far": [server.grpc_url for server in far]}
        if far:
            servers["default"] = [self.near.grpc_url] * times
        for pool, file in self._files.items():
            document = {
                "own": pool,
                "models": dict.fromkeys(FAR, "far"),
                "servers": servers,
                "headers": {"x-api-key": KEY},
            }
            new = file.with_suffix(".new")
            new.write_text(json.dumps(document))
            new.replace(file)
        for server in (self.near, *far) if hasattr(self, "near") else ():
            server.process.send_signal(signal.SIGHUP)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("pools")
    write_targets(directory / "models", "double", "repeat", "describe")
    write_caller(directory / "models", extra=f"{ONE} {CANCELS}")
    write_caller(directory / "models", "deep_caller", extra="instance_group { kind: KIND_CPU count: 8 }")
    for name in ("near_caller", "far_caller"):
        write_caller(directory / "models", name)
    with ExitStack() as stack:
        found = Servers(directory, stack)
        # Until the servers have read where the others are.
        ready = "return pb_utils.is_model_ready('double')"
        wait_until(lambda: sender(found.near)(ready).status == 200, "the pools are known")
        yield found


@pytest.mark.parametrize(
    "code",
    [
        "return value(call('double', IN=[1.5, -2]).exec())",
        "return value(call('double', IN=np.arange(300_000, dtype=np.float32)).exec())[-3:]",
        "return [value(each) for each in call('repeat', IN=[3]).exec(decoupled=True)]",
        "return [value(each) for each in call('double', IN=[3]).exec(decoupled=True)]",
        "found = seen(call('describe', ['OUT0', 'OUT1'], request_id='7', timeout=5_000_000, TEXT=['a', '']).exec())\n"
        "return [{**json.loads(text), 'parameters': {}} for [text] in found.values()]",
        "return failure(call('double', model_version=9, IN=[1]).exec())[0]",
        "return failure(call('double', NOTHING=[1]).exec())[0]",
        "return [pb_utils.is_model_ready('double'), pb_utils.is_model_ready('double', '9')]",
        "return value(call('far_caller', CODE=[\"return value(call('near_caller', CODE=['return 5']).exec(), 'JSON')\"]).exec(), 'JSON')",
    ],
)
def test_the_answer_is_that_of_one_server(servers: Servers, code: str) -> None:
    assert caller(servers.near)(code) == caller(servers.single)(code)


def test_the_servers_of_a_pool_take_turns(servers: Servers) -> None:
    def count(server: ServerProcess) -> int:
        reply = server.request("GET", "/v2/models/double/stats", headers={"x-api-key": KEY})
        return int(reply.json["model_stats"][0]["inference_count"])

    before = [count(server) for server in servers.far]
    assert caller(servers.near)("return [value(call('double', IN=[n]).exec()) for n in range(10)]") == [
        [2.0 * number] for number in range(10)
    ]
    assert all(count(server) > earlier for server, earlier in zip(servers.far, before, strict=True))


def test_models_of_several_pools_cannot_wait_for_each_other(servers: Servers) -> None:
    back = "return failure(call('caller', CODE=['return 1']).exec())[1]"
    [text] = caller(servers.near)(f"return value(call('far_caller', CODE=[{back!r}]).exec(), 'JSON')")
    assert (
        "models of several pools would wait for each other: caller -> far_caller -> caller. Put them into one pool"
        in text
    )


def test_the_way_of_a_call_has_a_limit(servers: Servers) -> None:
    code = "return failure(call('double', IN=[1]).exec())"
    for _ in range(7):
        code = f"return value(call('deep_caller', CODE=[{code!r}]).exec(), 'JSON')[0]"
    found = caller(servers.near, "deep_caller")(code)
    for _ in range(7):
        found = json.loads(found)
    kind, text = found
    assert kind == "UNAVAILABLE"
    assert (
        f"8 models wait for each other already, which is the limit between pools: {'deep_caller -> ' * 8}double" in text
    )


@pytest.mark.parametrize("path", ["", "x", "5", '{"a": 1}', "[5]", "[" * 100_000, '["double"]', json.dumps(["m"] * 8)])
def test_a_client_that_sends_another_path_gets_its_answer(servers: Servers, path: str) -> None:
    code = "return value(call('double', IN=[1]).exec())"
    assert caller(servers.near)(code, _parameters={"pybackend_path": path}) == [2.0]


@pytest.mark.parametrize("call", ["call('double', model_version=9, IN=[1])", "call('double', NOTHING=[1])"])
def test_a_refused_stream_has_one_error(servers: Servers, call: str) -> None:
    [one] = caller(servers.near)(f"return [failure(each)[1] for each in {call}.exec(decoupled=True)]")
    [same] = caller(servers.single)(f"return [failure(each)[1] for each in {call}.exec(decoupled=True)]")
    assert one in same


def test_sequences_stay_in_their_pool(servers: Servers) -> None:
    code = "return failure(call('double', correlation_id=5, IN=[1]).exec())"
    kind, text = caller(servers.near)(code)
    assert (kind, "a sequence needs it in the caller's pool" in text) == ("UNSUPPORTED", True)


def test_the_trace_goes_on_there(servers: Servers) -> None:
    code = "return seen(call('describe', trace=request.trace(), TEXT=['a']).exec())"
    assert "traceparent" in json.dumps(caller(servers.near)(code))
    assert "traceparent" not in json.dumps(caller(servers.near)(code.replace("trace=request.trace(), ", "")))


def test_a_deadline_of_the_client_holds_for_the_other_server(servers: Servers) -> None:
    held = (
        "pass_gate(state['directory'], 'held')\n"
        "while not request.is_cancelled():\n    time.sleep(0.01)\n"
        "open(os.path.join(state['directory'], 'cancelled'), 'w').close()\n"
        "return 1"
    )
    gate = Gate(servers.models / "far_caller", "held")
    code = f"return seen(call('far_caller', CODE=[{held!r}]).exec())"
    tensor = grpcclient.InferInput("CODE", [1], "BYTES").set_data_from_numpy(np.array([code], np.object_))
    with (
        grpcclient.InferenceServerClient(servers.near.grpc_url) as client,
        gate.holding(lambda: client.infer("caller", [tensor], client_timeout=2)) as calling,
        pytest.raises(InferenceServerException, match="Deadline Exceeded"),
    ):
        calling.result(timeout=60)
    wait_until((servers.models / "far_caller" / "cancelled").exists, "the other server's model was told")


def test_models_of_other_pools_cannot_be_loaded_here(servers: Servers, snapshot) -> None:
    assert caller(servers.near)("return raised(pb_utils.load_model, 'double')")[0] == "TritonModelException"
    reply = servers.near.request("POST", "/v2/repository/models/double/load", b"{}")
    assert reply.error == snapshot


def test_an_ensemble_and_its_parts_belong_to_one_pool(servers: Servers, tmp_path: Path) -> None:
    write_targets(tmp_path / "models", "double")
    write_model(tmp_path / "models", "mixed", None, MIXED)
    file = tmp_path / "pools"
    file.write_text(json.dumps({"own": "default", "models": {"double": "far"}, "servers": {}, "headers": {}}))
    with serving(tmp_path / "models", flags=(f"--pools-file={file}",), ready=False) as server:
        server.wait_for("'double' is in pool 'far', and this is 'default': put an ensemble and its parts into one pool")


@pytest.mark.parametrize(
    "document",
    [
        "{}",
        "[]",
        "x",
        '{"own": "default", "models": ["a"], "servers": {}, "headers": {}}',
        '{"own": "default", "models": {}, "servers": {"far": "127.0.0.1:8001"}, "headers": {}}',
    ],
)
def test_a_file_that_names_no_pools_gets_one_sentence(servers: Servers, tmp_path: Path, document: str) -> None:
    (tmp_path / "pools").write_text(document)
    server = ServerProcess([servers.models], f"--pools-file={tmp_path / 'pools'}")
    assert server.wait() == 1
    assert "does not name pools" in server.output
    assert "Traceback" not in server.output


def test_an_error_that_speaks_of_a_server_that_stops_is_no_reason_to_call_again(servers: Servers) -> None:
    runs = servers.models / "far_caller" / "runs"
    fails = "open(os.path.join(state['directory'], 'runs'), 'a').write('x')\nraise ValueError('Server is stopping')"
    caller(servers.near)(f"return failure(call('far_caller', CODE=[{fails!r}]).exec())")
    assert runs.read_text() == "x"


def test_calls_go_on_while_the_servers_change(servers: Servers) -> None:
    back = (
        "large = np.arange(1_000_000, dtype=np.float32)\n"
        "answers = [call('near_caller', CODE=['return 1'], IN=large).exec() for _ in range(30)]\n"
        "return [each.error().message() for each in answers if each.has_error()]"
    )
    with ThreadPoolExecutor() as pool:
        calling = pool.submit(caller(servers.near), f"return value(call('far_caller', CODE=[{back!r}]).exec(), 'JSON')")
        times = cycle((2, 1))
        while not calling.done():
            servers.tell(*servers.far, times=next(times))
    servers.tell(*servers.far)
    assert calling.result() == ["[]"]


def test_a_server_that_dies_takes_only_its_calls(servers: Servers) -> None:
    """The last test: one server of the pool is left, and then none."""
    double = "return [seen(call('double', IN=[1]).exec()) for _ in range(20)]"
    victim, other = servers.far
    held = "pass_gate(state['directory'], 'dies')\nreturn 1"
    gate = Gate(servers.models / "far_caller", "dies")
    code = f"return in_threads(lambda _: seen(call('far_caller', CODE=[{held!r}]).exec()), 1, 2)"
    with gate.holding(lambda: caller(servers.near)(code), 2) as calling:
        victim.process.kill()
        victim.wait()
    answers = calling.result(timeout=60)
    lost = "the connection with the server of pool 'far' that had this call broke: whether it has run is unknown"
    assert sorted(map(str, answers)) == sorted([str({"JSON": ["1"]}), str(["UNAVAILABLE", lost])])
    assert caller(servers.near)(double) == [{"OUT": [2.0]}] * 20
    servers.tell(other)
    other.stop()
    kind, text = caller(servers.near)("return failure(call('double', IN=[1]).exec())")
    assert (kind, "no server of pool 'far' can take this call now" in text) == ("UNAVAILABLE", True)
    servers.tell()
    wait_until(
        lambda: (
            "pool 'far' has no server now: try again"
            in caller(servers.near)("return failure(call('double', IN=[1]).exec())")[1]
        ),
        "the pool is empty",
    )
