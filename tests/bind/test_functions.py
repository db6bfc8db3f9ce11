"""Functions of this process, served by a server beside it: what they get and return, and what their clients see."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from pybackend.cli.commands import run
from pybackend_bind.client import DecoupledModelClient, ModelClient, PyTritonClientInferenceServerError
from pybackend_bind.decorators import (
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    pad_batch,
    sample,
    triton_context,
)
from pybackend_bind.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonValidationError,
    RequestError,
)
from pybackend_bind.model_config import DynamicBatcher, ModelConfig, ModelWarmup, Tensor, WarmupInput
from pybackend_bind.triton import RemoteTriton, Triton, TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig
from pybackend_client import Client
from tests.support.gates import wait_until
from tests.support.repositories import write_model

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P15")]

FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
VECTOR = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
RESULT = [Tensor(name="y", dtype=np.float32, shape=(-1,))]


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    with Triton(config=TritonConfig(**FREE)) as triton:
        yield triton


@pytest.fixture
def model(triton: Triton, request: pytest.FixtureRequest):
    """Binds a function, by the name of the test; returns a client."""
    clients = []

    def bind(function, inputs=VECTOR, outputs=RESULT, *, client=ModelClient, protocol="http", strict=None, **config):
        name = f"{re.sub('[^a-z_0-9]', '_', request.node.name)}_{len(clients)}"
        triton.bind(
            name,
            function,
            inputs,
            outputs,
            config=ModelConfig(**config),
            **({} if strict is None else {"strict": strict}),
        )
        clients.append(client(f"{protocol}://{triton.addresses[protocol]}", name))
        return clients[-1]

    yield bind
    for client in clients:
        client.close()


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_a_function_runs_in_this_process(model) -> None:
    weights, threads = [2.0], set()

    @batch
    def linear(x):
        threads.add(threading.current_thread())
        return {"y": x * np.float32(weights[0])}

    client = model(linear)
    assert client.infer_sample(ones(2))["y"].tolist() == [2, 2]
    weights[0] = 3.0
    assert client.infer_batch(x=ones(2, 2))["y"].tolist() == [[3, 3], [3, 3]]
    assert len(threads) == 1
    assert threads <= set(threading.enumerate()) - {threading.main_thread()}


def test_without_decorators_it_gets_requests(model, triton) -> None:
    seen = []

    def add(requests):
        seen.extend((type(requests), sorted(request), request.parameters) for request in requests)
        return [{"y": request["x"] + request.data["x"]} for request in requests]

    client = model(add)
    answer = client.infer_sample(ones(2), parameters={"n": 3, "s": "text", "b": True})
    assert answer["y"].tolist() == [2, 2]
    assert seen == [(list, ["x"], {"n": 3, "s": "text", "b": True})]


def test_tritonclient_sees_an_ordinary_model(model, triton) -> None:
    client = model(batch(lambda x: [x]), batching=True, max_batch_size=16)
    http = httpclient.InferenceServerClient(triton.addresses["http"])
    config = http.get_model_config(client.model_config.model_name)
    assert (config["max_batch_size"], config["backend"], "dynamic_batching" in config) == (16, "python", True)
    given = grpcclient.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(ones(1, 2))
    with grpcclient.InferenceServerClient(triton.addresses["grpc"]) as grpc:
        answer = grpc.infer(client.model_config.model_name, [given])
    assert answer.as_numpy("y").tolist() == [[1, 1]]
    http.close()


def test_requests_of_several_clients_are_joined(model) -> None:
    gate, sizes = threading.Event(), []

    @batch
    def first(x):
        sizes.append(len(x))
        gate.wait(60)
        return {"y": x + len(sizes)}

    client = model(first, max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=100))
    answers: list[float] = []
    threads = [
        threading.Thread(target=lambda: answers.append(float(client.infer_sample(ones(1))["y"][0]))) for _ in range(4)
    ]
    threads[0].start()
    wait_until(lambda: sizes == [1], "the first execution")
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(60)
    assert sum(sizes) == len(answers) == 4


def test_several_functions_are_instances_that_run_at_the_same_time(model) -> None:
    together = threading.Barrier(2, timeout=60)

    def instance(number):
        @batch
        def infer(x):
            together.wait()
            return {"y": x * 0 + number}

        return infer

    client = model([instance(1), instance(2)], batching=True, max_batch_size=1)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(client.infer_sample(ones(1))["y"][0])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [1, 2]


def test_methods_and_objects_can_be_bound(model) -> None:
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        @batch
        def infer(self, x):
            return {"y": x * self.factor}

        @batch
        @first_value("x", squeeze_single_values=False)
        def __call__(self, x):
            return {"y": np.asarray([x * self.factor])}

    assert model(Scaler(2).infer).infer_sample(ones(1))["y"].tolist() == [2]
    assert model(Scaler(3)).infer_sample(ones(1))["y"].tolist() == [3]


def test_coroutines_can_be_bound(model) -> None:
    @batch
    async def double(x):
        await asyncio.sleep(0)
        return {"y": 2 * x}

    assert model(double).infer_sample(ones(1))["y"].tolist() == [2]


def test_strings_in_and_out(model) -> None:
    @batch
    def upper(text):
        return {"bytes": np.char.upper(text.astype(bytes)), "unicode": np.char.decode(text.astype(bytes), "utf-8")}

    outputs = [Tensor(name=name, dtype=np.bytes_, shape=(1,)) for name in ("bytes", "unicode")]
    client = model(upper, [Tensor(name="text", dtype=bytes, shape=(1,))], outputs)
    answer = client.infer_sample(np.array(["grün".encode()], object))
    assert answer["bytes"].tolist() == ["GRüN".encode()]
    assert answer["unicode"].tolist() == ["grün".encode()]


def test_models_without_batching_get_single_samples(model) -> None:
    @sample
    def total(x):
        return [x.sum(keepdims=True)]

    client = model(total, batching=False)
    assert client.infer_sample(ones(3))["y"].tolist() == [3]


def test_the_decorators_together(model) -> None:
    seen = []

    @fill_optionals(scale=np.array([10], np.float32))
    @group_by_keys
    @batch
    @pad_batch
    @first_value("scale")
    @triton_context
    def infer(x, scale, triton_context):
        seen.append((x.shape, float(scale), triton_context.model_configs[infer].max_batch_size))
        return {"y": x[:1] * scale}

    inputs = [*VECTOR, Tensor(name="scale", dtype=np.float32, shape=(1,), optional=True)]
    client = model(infer, inputs, max_batch_size=4)
    assert client.infer_sample(x=ones(2))["y"].tolist() == [10, 10]
    assert client.infer_sample(x=ones(2), scale=np.array([3], np.float32))["y"].tolist() == [3, 3]
    assert seen == [((4, 2), 10, 4), ((4, 2), 3, 4)]


@batch
def count(x):
    for number in range(int(x[0, 0])):
        yield {"y": x * 0 + number}


async def count_async(requests):
    for number in range(int(requests[0]["x"][0, 0])):
        await asyncio.sleep(0)
        yield [{"y": request["x"] * 0 + number} for request in requests]


@pytest.mark.parametrize("function", [count, count_async])
def test_a_generator_is_a_stream(model, function) -> None:
    client = model(function, decoupled=True, client=DecoupledModelClient, protocol="grpc")
    assert [answer["y"].tolist() for answer in client.infer_sample(np.array([3], np.float32))] == [[0], [1], [2]]
    assert [answer["y"].tolist() for answer in client.infer_batch(np.array([[2]], np.float32))] == [[[0]], [[1]]]


def test_a_stream_does_not_hold_up_others_and_ends_with_its_client(model) -> None:
    ended = threading.Event()

    @batch
    def endless(x):
        try:
            while True:
                yield {"y": x}
        finally:
            ended.set()

    client = model(endless, decoupled=True, client=DecoupledModelClient, protocol="grpc")
    first, second = (client.infer_sample(ones(1)) for _ in range(2))
    for _ in range(100):
        assert next(first)["y"].tolist() == next(second)["y"].tolist() == [1]
    first.close()
    assert ended.wait(60)
    assert next(second)["y"].tolist() == [1]
    ended.clear()
    second.close()
    assert ended.wait(60)


def returned(value):
    return lambda requests: value


WRONG = [
    (returned(None), "must return a list with a dictionary of arrays for each request"),
    (returned({"y": ones(1, 1)}), "It returned dict"),
    (returned([]), "got 1 request and returned 0 results"),
    (returned([{}, {}]), "got 1 request and returned 2 results"),
    (returned([ones(1, 1)]), "must return a dictionary of arrays for each request, and returned ndarray"),
    (returned([{"y": [1.0]}]), "returned list as output 'y': return NumPy arrays by name"),
    (returned([{3: ones(1, 1)}]), "returned an output 3, which was not bound"),
    (returned([{"y": np.ones((1, 1), complex)}]), "output 'y' of model"),
    (returned(value for value in ([],)), "A generator needs ModelConfig(decoupled=True)"),
    (batch(lambda x: {"y": ones(3, 1)}), "the function got 1 samples: its first dimension must be 1"),
    (batch(lambda x: [x, x]), "returned 2 arrays, and the model has 1 outputs"),
    (batch(lambda z: {"y": z}), "unexpected keyword argument"),
]


@pytest.mark.parametrize(("function", "text"), WRONG)
def test_a_wrong_result_is_an_error_of_its_request(model, function, text) -> None:
    with pytest.raises(Exception, match=re.escape(text)):
        model(function).infer_sample(ones(1))


STRICT = [
    ({"y": np.ones((1, 1), np.float64)}, "was bound as float32, and the function returned float64"),
    ({"y": np.ones((1, 1, 1), np.float32)}, r"was bound with shape \[-1\], and the function returned \[1, 1\]"),
    ({"y": np.array([["good"]])}, "was bound as float32, and the function returned <U4"),
]


@pytest.mark.parametrize(("result", "text"), STRICT)
def test_strict_compares_results_with_what_was_bound(model, result, text) -> None:
    with pytest.raises(Exception, match=text):
        model(returned([result]), strict=True).infer_sample(ones(1))
    model(returned([result])).infer_sample(ones(1))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"z": np.ones((1, 1), np.float32)}, "returned an output 'z', which was not bound: y"),
        ({}, "returned no output 'y', which was bound. It returned an empty dictionary"),
    ],
)
def test_names_of_results_are_those_that_were_bound(model, result, text, strict) -> None:
    with pytest.raises(Exception, match=text):
        model(returned([result]), strict=strict).infer_sample(ones(1))


def test_a_function_may_leave_out_what_its_client_does_not_want(model, triton) -> None:
    seen = []

    def halves(requests):
        seen.extend(sorted(request.requested_output_names) for request in requests)
        return [dict.fromkeys(request.requested_output_names, request["x"]) for request in requests]

    outputs = [*RESULT, Tensor(name="z", dtype=np.float32, shape=(-1,))]
    name = model(halves, outputs=outputs).model_config.model_name
    with Client(triton.addresses["http"]) as client:
        assert list(client(name, outputs=["z"]).infer(x=ones(1, 1))) == ["z"]
        assert sorted(client(name).infer(x=ones(1, 1))) == ["y", "z"]
    assert seen == [["z"], ["y", "z"]]


def test_validated_outputs_are_not_empty(model) -> None:
    client = model(returned([{}]), strict=False, parameters={"VALIDATE_OUTPUTS": "yes"})
    with pytest.raises(Exception, match="returned no output 'y', which"):
        client.infer_sample(ones(1))


def test_an_exception_is_an_error_with_a_place_and_a_traceback_in_the_log(model, caplog) -> None:
    @batch
    def divide(x):
        raise ZeroDivisionError("no such number")

    client = model(divide)
    with caplog.at_level(logging.ERROR, "pybackend_bind"), pytest.raises(Exception) as caught:
        client.infer_sample(ones(1))
    assert "message: ZeroDivisionError: no such number" in str(caught.value)
    assert re.search(rf"{re.escape(__file__)}\(\d+\): divide", str(caught.value))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_function_may_give_its_error_a_code(model, triton, caplog) -> None:
    @batch
    def refuse(x):
        raise RequestError("x is too small", "INVALID_ARG")

    client = model(refuse)
    given = httpclient.InferInput("x", [1, 1], "FP32").set_data_from_numpy(ones(1, 1))
    http = httpclient.InferenceServerClient(triton.addresses["http"])
    with pytest.raises(InferenceServerException, match=r"^\[400\] x is too small$"):
        http.infer(client.model_config.model_name, [given])
    http.close()
    assert not caplog.records


def test_a_stream_ends_with_the_error_of_its_function(model) -> None:
    @batch
    def breaks(x):
        yield {"y": x}
        raise ValueError("half way")

    client = model(breaks, decoupled=True, client=DecoupledModelClient, protocol="grpc")
    answers = client.infer_sample(ones(1))
    assert next(answers)["y"].tolist() == [1]
    with pytest.raises(Exception, match="ValueError: half way"):
        next(answers)


def test_even_sys_exit_ends_only_its_request(model) -> None:
    @batch
    def leave(x):
        raise SystemExit(3)

    client = model(leave)
    for _ in range(2):
        with pytest.raises(Exception, match="SystemExit: 3"):
            client.infer_sample(ones(1))


def test_warm_up(model) -> None:
    seen = []

    @batch
    def infer(x):
        seen.append(x.tolist())
        return {"y": x}

    warmup = ModelWarmup("zeros", 1, {"x": WarmupInput(np.float32, (2,), zero_data=True)}, 2)
    model(infer, model_warmup=[warmup])
    assert seen == [[[0, 0]], [[0, 0]]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"infer_func": 3}, PyTritonValidationError, "3 is no function"),
        ({"infer_func": []}, PyTritonValidationError, "an empty list of functions"),
        ({"infer_func": [print, "text"]}, PyTritonValidationError, "'text' is no function"),
        ({"infer_func": count}, PyTritonValidationError, "pass ModelConfig(decoupled=True)"),
        ({"model_name": "a/b"}, PyTritonValidationError, "'a/b' is no name for a model"),
        ({"model_name": ".."}, PyTritonValidationError, "is no name for a model"),
        ({"model_version": 0}, PyTritonValidationError, "model_version is 0"),
        ({"inputs": "x"}, PyTritonValidationError, "pass a list of Tensor"),
        ({"inputs": [*VECTOR, *VECTOR]}, PyTritonValidationError, "two of the inputs are called 'x'"),
        ({"inputs": [Tensor(name="x", dtype=complex, shape=(1,))]}, PyTritonValidationError, "has no datatype"),
        (
            {"outputs": [Tensor(name="y", dtype=np.float32, shape=(1,), optional=True)]},
            PyTritonValidationError,
            "is optional",
        ),
        ({"inputs": [Tensor((1.5,), np.float32, "x")]}, PyTritonValidationError, "the shape of tensor 'x' is (1.5,)"),
        ({"inputs": [Tensor(3, np.float32)]}, PyTritonValidationError, "the shape of tensor 'INPUT_1' is 3"),
        ({"inputs": [Tensor((1,), None, "x")]}, PyTritonValidationError, "tensor 'x' has dtype None"),
        ({"config": {"batching": True}}, PyTritonValidationError, "config is of type dict: pass ModelConfig(...)"),
        ({"config": ModelConfig(batcher=3)}, PyTritonModelConfigError, "the configuration of model 'wrong' is wrong"),
        ({"config": ModelConfig(parameters=3)}, PyTritonModelConfigError, "the configuration of model 'wrong' is"),
        ({"config": ModelConfig(max_batch_size=0)}, PyTritonBadParameterError, "max_batch_size is 0"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(triton, arguments, error, text) -> None:
    usual = {"model_name": "wrong", "infer_func": print, "inputs": VECTOR, "outputs": RESULT}
    with pytest.raises(error, match=re.escape(text)):
        triton.bind(**{**usual, **arguments})


def test_the_name_of_a_function_that_the_server_refuses_is_free_again(triton) -> None:
    identity = batch(lambda x: {"y": x})
    with pytest.raises(PyTritonModelConfigError, match="dimension"):
        triton.bind("again", identity, [Tensor(name="x", dtype=np.float32, shape=(-5,))], RESULT)
    triton.bind("again", identity, VECTOR, RESULT)
    with ModelClient(triton.addresses["http"], "again") as client:
        assert client.infer_sample(ones(1))["y"].tolist() == [1]


def test_a_name_is_taken_once_even_by_two_threads(triton) -> None:
    outcomes = []

    def bind():
        try:
            triton.bind("taken", batch(lambda x: {"y": x}), VECTOR, RESULT)
            outcomes.append("bound")
        except PyTritonInvalidOperationError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=bind) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    taken = "a function is bound as 'taken' already: bind this one by another name"
    assert sorted(outcomes) == sorted(["bound", taken, taken])


def test_models_that_are_bound_first_are_there_when_the_server_is_ready() -> None:
    with Triton(config=TritonConfig(**FREE), triton_lifecycle_policy=LATER) as triton:
        assert not triton.is_alive()
        triton.bind("identity", batch(lambda x: {"y": x}), VECTOR, RESULT)
        for _ in range(2):  # it can be started again, and its functions are still bound
            triton.run()
            with ModelClient(triton.addresses["http"], "identity", lazy_init=False) as client:
                assert client.infer_sample(ones(1))["y"].tolist() == [1]
            assert triton.stop()
            assert not triton.stop()
            assert triton.addresses == {}


LATER = TritonLifecyclePolicy(launch_triton_on_startup=False)


def test_after_a_stop_a_name_can_be_bound_again() -> None:
    def answers(name):
        with ModelClient(triton.addresses["http"], name) as client:
            return client.infer_sample(ones(1))["y"].tolist()

    def bind(name, factor=1):
        triton.bind(name, batch(lambda x: {"y": factor * x}), VECTOR, RESULT)

    with Triton(config=TritonConfig(**FREE), triton_lifecycle_policy=LATER) as triton:
        bind("kept")
        bind("again")
        triton.stop()  # nothing runs
        with pytest.raises(PyTritonInvalidOperationError, match="a function is bound as 'again' already"):
            bind("again")
        triton.run()
        triton.stop()
        bind("again", 2)
        with pytest.raises(PyTritonInvalidOperationError, match="a function is bound as 'again' already"):
            bind("again")
        triton.run()
        assert [answers("again"), answers("kept")] == [[2], [1]]
        for name in ("again", "kept"):
            with pytest.raises(PyTritonInvalidOperationError, match=f"a function is bound as '{name}' already"):
                bind(name)


def test_a_repository_of_models_with_code_is_served_beside_the_functions(tmp_path) -> None:
    code = """
    import os
    class TritonPythonModel:
        def execute(self, requests):
            pid = pb_utils.Tensor("PID", np.array([os.getpid()], np.int64))
            return [pb_utils.InferenceResponse([pid]) for _ in requests]
    """
    write_model(tmp_path, "coded", code, 'output { name: "PID" data_type: TYPE_INT64 dims: [1] }')
    config = TritonConfig(**FREE, model_repository=tmp_path)
    own = batch(lambda x: {"y": x * 0 + os.getpid()})
    with Triton(config=config) as triton, Client(triton.addresses["http"]) as client:
        triton.bind("own", own, [Tensor((-1,), np.int64, "x")], [Tensor((-1,), np.int64, "y")])
        assert client("own").infer(x=np.ones((1, 1), np.int64))["y"].tolist() == [[os.getpid()]]
        assert client("coded").infer()["PID"].tolist() != [os.getpid()]


@pytest.mark.parametrize(
    "function", [lambda: RemoteTriton(url="localhost"), lambda: __import__("pybackend_bind.proxy.types")]
)
def test_names_that_are_not_here_say_what_is(function) -> None:
    with pytest.raises(
        (PyTritonInvalidOperationError, ImportError), match=r"use Triton\(\)|pybackend_bind.requests.Request"
    ):
        function()


# Tokens


def refusals(triton: Triton, **headers: str) -> list[str]:
    """The refusals of the statistics over HTTP and gRPC with these headers."""
    found = []
    for module, protocol in ((httpclient, "http"), (grpcclient, "grpc")):
        with module.InferenceServerClient(triton.addresses[protocol]) as client:
            try:
                client.get_inference_statistics(headers=headers)
            except InferenceServerException as error:
                found.append(error.message())
    return found


def test_a_token_restricts_what_does_not_serve_models(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("triton-access-token", "triton-grpc-protocol-triton-access-token")
    refused = [
        f"This API is restricted, expecting header '{names[0]}'",
        f"This protocol is restricted, expecting header '{names[1]}'",
    ]
    caplog.set_level(logging.INFO)
    with Triton(config=TritonConfig(**FREE)) as triton:
        triton.bind("own", batch(lambda x: {"y": x}), VECTOR, RESULT)
        token = triton.get_access_token()
        url = f"--url={triton.addresses['http']}"
        assert f"`pybackend status {url} --header=triton-access-token=TOKEN` looks at the server" in caplog.text
        for command in ("status", "top"):
            assert run([command, url]) == 1
            told = capsys.readouterr().err
            assert "(--header=triton-access-token=TOKEN sends it; in the program" in told
            assert "triton.get_access_token() has it)" in told
        assert run(["status", url, f"--header=triton-access-token={token}"]) == 0
        assert refusals(triton) == refused
        assert refusals(triton, **dict.fromkeys(names, f"{token}x")) == refused
        assert refusals(triton, **dict.fromkeys(names, token)) == []
        with ModelClient(triton.addresses["http"], "own") as client:
            assert client.infer_sample(ones(1))["y"].tolist() == [1]
        assert triton.server_pid is not None
        assert token.encode() not in Path(f"/proc/{triton.server_pid}/cmdline").read_bytes()


def test_other_routes_can_be_restricted_and_clients_have_the_token() -> None:
    security = TritonSecurityConfig(access_token="secret-1", restricted_endpoints=["inference", "model-config"])
    assert "secret-1" not in repr(security)
    with Triton(config=TritonConfig(**FREE), security_config=security) as triton:
        triton.bind("own", batch(lambda x: {"y": x}), VECTOR, RESULT)
        assert triton.get_access_token() == "secret-1"
        assert refusals(triton) == []
        for url in (triton.addresses["http"], f"grpc://{triton.addresses['grpc']}"):
            with (
                pytest.raises(PyTritonClientInferenceServerError, match="restricted"),
                ModelClient(url, "own") as client,
            ):
                client.infer_sample(ones(1))
            with (
                ModelClient(url, "own", access_token="secret-1") as client,
                ModelClient.from_existing_client(client) as same,
            ):
                assert same.infer_sample(ones(1))["y"].tolist() == [1]


def test_settings_of_the_server_that_restrict_routes_stand_instead_of_a_token(monkeypatch) -> None:
    own = {"http_restricted_api": "statistics:x=1", "grpc_restricted_protocol": "statistics:x=1"}
    with Triton(config=TritonConfig(**FREE, **own)) as triton:
        assert triton.get_access_token() is None
        assert refusals(triton, **{"x": "1", "triton-grpc-protocol-x": "1"}) == []
    with Triton(config=TritonConfig(**FREE), security_config=TritonSecurityConfig(restricted_endpoints=[])) as triton:
        assert refusals(triton) == []
    with pytest.raises(PyTritonValidationError, match="and so does a setting of the server"):
        Triton(config=TritonConfig(**own), security_config=TritonSecurityConfig())
    with pytest.raises(
        PyTritonValidationError, match="there is no endpoint 'attic' to restrict: the endpoints are health,"
    ):
        TritonSecurityConfig(restricted_endpoints=["attic"])
    monkeypatch.setenv("PYBACKEND_HTTP_RESTRICTED_API", "statistics:x=1")
    assert Triton().get_access_token() is None
