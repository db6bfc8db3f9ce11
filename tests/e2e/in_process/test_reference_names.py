"""Programs for the reference's package ``tritonserver`` with another import: what its own tests check of names, types
and errors."""

from __future__ import annotations

import asyncio
import gc
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pybackend as tritonserver
from tests.support.repositories import write_model

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P14")]

_CODE = """
import json

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        outputs = [
            pb_utils.Tensor(tensor.name().replace("input", "output"), tensor.as_numpy()) for tensor in request.inputs()
        ]
        return pb_utils.InferenceResponse([*outputs, pb_utils.Tensor("output_parameters", np.array([request.parameters()], object))])
"""
_TYPES = {"fp16": "FP16", "bool": "BOOL", "string": "STRING", "int64": "INT64", "fp64": "FP64"}


def _tensors(kind: str, suffix: str = "") -> str:
    found = [f'{{ name: "{name}_{kind}" data_type: TYPE_{of} dims: [-1] {suffix} }}' for name, of in _TYPES.items()]
    return ", ".join(found)


_CONFIG = f"""
backend: "python"
max_batch_size: 8
input [ {_tensors("input", "optional: true")} ]
output [ {_tensors("output")}, {{ name: "output_parameters" data_type: TYPE_STRING dims: [1] }} ]
"""


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> tritonserver.Options:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "test", _CODE, _CONFIG)
    return tritonserver.Options(
        server_id="TestServer",
        model_repository=repository,
        model_control_mode=tritonserver.ModelControlMode.EXPLICIT,
        startup_models=["test"],
        exit_timeout=5,
    )


@pytest.fixture(scope="module")
def server(options: tritonserver.Options) -> Iterator[tritonserver.Server]:
    server = tritonserver.Server(options).start(wait_until_ready=True)
    yield server
    server.stop()


FP16 = np.random.default_rng(1).random((1, 100)).astype(np.float16)


class _Broken(tritonserver.MemoryAllocator):
    def allocate(self, *_arguments: Any, **_keywords: Any) -> tritonserver.MemoryBuffer:
        raise RuntimeError("no memory here")


class _Counting(tritonserver.MemoryAllocator):
    def __init__(self, spare_bytes: int = 8) -> None:
        self.asked: list[Any] = []
        self.given: list[tritonserver.MemoryBuffer] = []
        self._spare_bytes = spare_bytes

    def allocate(
        self, size: int, memory_type: tritonserver.MemoryType, memory_type_id: int, tensor_name: str
    ) -> tritonserver.MemoryBuffer:
        self.asked.append((size, memory_type, memory_type_id, tensor_name))
        usual = tritonserver.default_memory_allocators[tritonserver.MemoryType.CPU]
        self.given.append(
            usual.allocate(size=size + self._spare_bytes, memory_type=memory_type, memory_type_id=0, tensor_name="")
        )
        return self.given[-1]


# Servers


def test_a_server_that_is_not_started_says_so_and_start_returns_it(options: tritonserver.Options) -> None:
    server = tritonserver.Server(options)
    for ask in (server.ready, server.live, server.metadata):
        with pytest.raises(tritonserver.InvalidArgumentError, match=r"^the server is not started: call start"):
            ask()
    assert server.start(wait_until_ready=True, polling_interval=0.01, timeout=60) is server
    try:
        assert server.live()
        assert server.ready()
        assert server.metadata()["name"] == "TestServer"
    finally:
        server.stop()
    for ask in (server.ready, server.live):
        with pytest.raises(tritonserver.InvalidArgumentError, match=r"^the server is stopped: start"):
            ask()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({}, tritonserver.InvalidArgumentError, "model_repository"),
        ({"model_repository": []}, tritonserver.InvalidArgumentError, "model_repository"),
        ({"model_repository": 1}, TypeError, "^model_repository is 1: pass a string or a path or a list of values"),
        ({"server_id": 1}, TypeError, "^server_id is 1: pass a string$"),
        ({"exit_timeout": "5"}, TypeError, "^exit_timeout is '5': pass a whole number$"),
        ({"exit_timeout": True}, TypeError, "^exit_timeout is True: pass a whole number$"),
        ({"strict_readiness": 1}, TypeError, "^strict_readiness is 1: pass True or False$"),
        ({"cache_config": ["local"]}, TypeError, r"^cache_config is \['local'\]: pass a dictionary$"),
        ({"startup_models": "test"}, TypeError, "^startup_models is 'test': pass a list of values, each a string$"),
        ({"model_repository": "foo"}, tritonserver.TritonError, "foo"),
    ],
)
def test_wrong_options_fail_at_start(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    server = tritonserver.Server(**fields)
    with pytest.raises(error, match=message) as raised:
        server.start()
    assert isinstance(raised.value, tritonserver.TritonError)


def test_a_repository_that_does_not_exist_is_an_internal_error() -> None:
    with pytest.raises(tritonserver.InternalError):
        tritonserver.Server(model_repository="foo").start()


def test_options_of_other_packages_of_the_reference(options: tritonserver.Options) -> None:
    fields = {**vars(options), "model_load_retry_count": 1, "enable_peer_access": True}
    fields["rate_limiter_resources"] = [tritonserver.RateLimiterResource("R1", 4)]
    fields["rate_limiter_mode"] = tritonserver.RateLimitMode.EXEC_COUNT
    fields["model_load_device_limits"] = [tritonserver.ModelLoadDeviceLimit(tritonserver.InstanceGroupKind.GPU, 0, 0.5)]
    with tritonserver.Server(**fields) as server:
        assert server.model("test").ready()


def test_models_are_found_by_name_and_version(server: tritonserver.Server) -> None:
    models = server.models()
    assert list(models) == [("test", 1)]
    assert [models["test"].version, models["test", -1].version, models["test", 1].version] == [-1, -1, 1]
    assert (models["test"].name, models["test"].state) == ("test", "READY")
    assert "test" in models
    assert ("test", -1) in models
    assert ("test", 2) not in models
    assert 3 not in models
    assert models.get("other") is None
    for key in ("other", ("other", -1), ("test", 2)):
        with pytest.raises(KeyError):
            _ = models[key]
    request = models["test"].create_request(inputs={"fp16_input": FP16})
    (response,) = models["test"].infer(request)
    np.testing.assert_array_equal(np.from_dlpack(response.outputs["fp16_output"]), FP16)


def test_a_wrong_call_is_a_type_error(server: tritonserver.Server) -> None:
    with pytest.raises(TypeError, match=r"^infer\(\) got an unexpected keyword argument 'colour'"):
        server.model("test").infer(colour=1)
    with pytest.raises(TypeError, match=r"^Server\(\) got an unexpected keyword argument 'colour'"):
        tritonserver.Server(colour=1)
    with pytest.raises(TypeError, match=r"^pass Options, or their fields by name, not str"):
        tritonserver.Server("models")  # type: ignore[arg-type]


# Inference


@pytest.mark.parametrize(
    ("name", "given", "datatype", "got"),
    [
        ("bool", [[True, False, False, True]], "BOOL", [[True, False, False, True]]),
        ("int64", [[1, -2]], "INT64", [[1, -2]]),
        ("int64", ((True, 2),), "INT64", [[1, 2]]),
        ("fp64", [[1, 2.5]], "FP64", [[1.0, 2.5]]),
        ("fp16", [[np.float16(1.5)]], "FP16", [[1.5]]),
        ("fp16", [np.array([1.5], np.float16)], "FP16", [[1.5]]),
    ],
)
def test_lists_of_bools_and_numbers_are_inputs(
    server: tritonserver.Server, name: str, given: Any, datatype: str, got: list[Any]
) -> None:
    output = server.model("test").infer(inputs={f"{name}_input": given}).outputs[f"{name}_output"]
    assert output.data_type == datatype
    assert np.from_dlpack(output).tolist() == got


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([["a", 1]], "is a list with int objects: lists hold strings, or bools and numbers"),
        ([[None]], "is a list with NoneType objects"),
        ([[2**70]], "is a list with a number that no datatype can hold"),
        ([[1], [2, 3]], "the lists in it have different lengths"),
    ],
)
def test_other_lists_are_refused(server: tritonserver.Server, given: Any, message: str) -> None:
    with pytest.raises(tritonserver.InvalidArgumentError, match=message):
        server.model("test").infer(inputs={"int64_input": given})


def test_strings_and_parameters(server: tritonserver.Server) -> None:
    test = server.load("test")
    assert test.ready()
    for given in ([["hello"]], np.array([["hello"]]), tritonserver.Tensor.from_string_array([["hello"]])):
        (response,) = test.infer(inputs={"string_input": given})
        assert response.outputs["string_output"].to_string_array().tolist() == [["hello"]]
    for wrong in ({"test": 1}, None):
        with pytest.raises(tritonserver.InvalidArgumentError):
            test.infer(inputs={"fp16_input": FP16}, parameters={"invalid": wrong})
    parameters = {"int_parameter": 0, "bool_parameter": False, "string_parameter": "test"}
    (response,) = test.infer(inputs={"fp16_input": FP16}, parameters=parameters)
    assert json.loads(response.outputs["output_parameters"].to_string_array()[0]) == parameters


# Memory


@pytest.mark.parametrize(
    "wanted",
    [
        "cpu", "cpu:0", "CPU_PINNED", tritonserver.MemoryType.CPU, (tritonserver.MemoryType.CPU, 0), ("cpu", 0),
        (tritonserver.DLDeviceType.kDLCPU, 0),
    ],
)  # fmt: skip
def test_outputs_lie_in_the_hosts_memory_however_it_is_called(server: tritonserver.Server, wanted: Any) -> None:
    output = server.model("test").infer(inputs={"fp16_input": FP16}, output_memory_type=wanted).outputs["fp16_output"]
    assert (output.memory_type, output.memory_type_id) == (tritonserver.MemoryType.CPU, 0)
    assert output.to_device(wanted) is output


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("gpu", "output_memory_type can be GPU only with an output_memory_allocator"),
        (("gpu", 1), "output_memory_type can be GPU only"),
        ((tritonserver.DLDeviceType.kDLCUDA, 0), "output_memory_type can be GPU only"),
        ("attic", "'attic' is no kind of memory: write 'cpu'"),
        ("cpu:x", "'cpu:x' is no kind of memory"),
        ((7, 0), r"\(7, 0\) is no kind of memory"),
        (3, "3 is no kind of memory"),
    ],
)
def test_other_memory_is_refused(server: tritonserver.Server, wanted: Any, message: str) -> None:
    with pytest.raises(tritonserver.InvalidArgumentError, match=message):
        server.model("test").infer(inputs={"fp16_input": FP16}, output_memory_type=wanted)


def test_a_callers_allocator_brings_the_memory_of_outputs(server: tritonserver.Server) -> None:
    test, allocator = server.model("test"), _Counting()
    responses = test.infer(
        inputs={"fp16_input": FP16}, output_memory_type=("gpu", 1), output_memory_allocator=allocator
    )
    output = responses.outputs["fp16_output"]
    assert allocator.asked[0] == (200, "GPU", 1, "fp16_output")
    assert output.data_ptr == allocator.given[0].data_ptr
    np.testing.assert_array_equal(np.asarray(output), FP16)

    async def asked() -> tritonserver.InferenceResponse:
        return await test.async_infer(inputs={"fp16_input": FP16}, output_memory_allocator=_Counting())

    np.testing.assert_array_equal(np.asarray(asyncio.run(asked()).outputs["fp16_output"]), FP16)
    with pytest.raises(tritonserver.InvalidArgumentError, match="cannot go to a response_queue"):
        test.infer(inputs={}, output_memory_allocator=allocator, response_queue=queue.SimpleQueue())


@pytest.mark.parametrize(
    ("allocator", "reason"),
    [(_Broken(), "no memory here"), (_Counting(-1), "output 'fp16_output' needs 200 bytes, and got 199")],
)
def test_an_allocator_that_fails_is_an_error_of_its_response(
    server: tritonserver.Server, allocator: tritonserver.MemoryAllocator, reason: str
) -> None:
    fields = {"inputs": {"fp16_input": FP16}, "output_memory_type": "gpu", "output_memory_allocator": allocator}
    with pytest.raises(tritonserver.InternalError, match=f"^the allocator of memory for outputs has failed: {reason}"):
        for _ in server.model("test").infer(**fields):
            pass
    (response,) = server.model("test").infer(raise_on_error=False, **fields)
    assert (response.outputs, str(response.error)[-len(reason) :]) == ({}, reason)


def test_allocators_for_other_memory_may_be_added(server: tritonserver.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = _Counting()
    monkeypatch.setitem(tritonserver.default_memory_allocators, tritonserver.MemoryType.GPU, allocator)
    _ = server.model("test").infer(inputs={"fp16_input": FP16}, output_memory_type="gpu").outputs
    assert allocator.asked[0] == (200, "GPU", 0, "fp16_output")


def test_a_tensor_over_memory_that_an_allocator_brought() -> None:
    allocator = tritonserver.default_memory_allocators[tritonserver.MemoryType.CPU]
    buffer = allocator.allocate(
        memory_type=tritonserver.MemoryType.CPU, memory_type_id=0, size=200, tensor_name="array"
    )
    tensor = tritonserver.Tensor(tritonserver.DataType.FP32, shape=np.array([10, 1, 5]), memory_buffer=buffer)
    array = np.from_dlpack(tensor)
    assert (array.dtype, array.nbytes, array.shape) == (np.float32, 200, (10, 1, 5))
    assert array.ctypes.data == tensor.data_ptr == buffer.owner.ctypes.data
    assert (tensor.memory_buffer.size, tensor.memory_buffer.owner) == (200, tensor)
    kept = np.asarray(tensor)
    del buffer, tensor
    gc.collect()
    kept[:] = 1  # the memory is still there
    assert array.sum() == 50
    other = tritonserver.MemoryBuffer(0, tritonserver.MemoryType.GPU, 0, 4, None)
    with pytest.raises(tritonserver.UnsupportedError, match=r"^memory of type GPU cannot be read"):
        tritonserver.Tensor("FP32", [1], other)


def test_tensors_over_other_libraries_arrays_are_no_copies() -> None:
    array = np.random.default_rng(1).random((3, 4)).astype(np.float32)
    assert tritonserver.Tensor.from_dlpack(array).data_ptr == array.ctypes.data
    buffer = tritonserver.MemoryBuffer.from_dlpack(array)
    assert (buffer.data_ptr, buffer.size) == (array.ctypes.data, 48)
    with pytest.raises(tritonserver.UnsupportedError, match="stored in C-Order"):
        tritonserver.MemoryBuffer.from_dlpack(array.T)
    tensor = tritonserver.Tensor("FP32", (3, 4), buffer)
    assert tensor.to_host() is tensor
    with pytest.raises(tritonserver.UnsupportedError, match="in the host's memory"):
        tensor.to_device("gpu:0")
    assert (
        tritonserver.Tensor("FP32", (0,), tritonserver.MemoryBuffer(0, tritonserver.MemoryType.CPU, 0, 0, None)).size
        == 0
    )


# Metrics


def test_metrics_of_the_program_are_on_the_page(server: tritonserver.Server, tmp_path: Path) -> None:
    family = tritonserver.MetricFamily(tritonserver.MetricKind.COUNTER, "own_total", "what the program counts")
    counter = tritonserver.Metric(family, {"kind": "a"})
    counter.increment(2)
    counter.increment(0.5)
    gauge = tritonserver.Metric(tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "own_level", "a level"))
    gauge.set_value(3)
    gauge.increment(-1)
    assert (counter.value, counter.kind, gauge.value) == (2.5, tritonserver.MetricKind.COUNTER, 2)
    page = server.metrics(tritonserver.MetricFormat.PROMETHEUS)
    assert 'own_total{kind="a"} 2.5' in page
    assert "\nown_level 2.0" in page
    for change, value in ((counter.increment, -1), (counter.set_value, 1)):
        with pytest.raises(tritonserver.InvalidArgumentError, match=r"^a counter only grows"):
            change(value)
    del change
    with pytest.raises(tritonserver.AlreadyExistsError):
        tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "own_total", "another kind")
    with pytest.raises(tritonserver.InvalidArgumentError, match="is no name"):
        tritonserver.MetricFamily(tritonserver.MetricKind.GAUGE, "own level", "")
    del counter
    assert 'own_total{kind="a"}' not in server.metrics()
