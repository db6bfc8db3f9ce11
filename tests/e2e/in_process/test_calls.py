"""Calls to a server in the caller's process: tensors in and out, responses, errors."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pybackend
from tests.support.gates import Gate, wait_until
from tests.support.repositories import copy_model, identity_config, tensors, write_model
from tests.support.streams import function, write_streams

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P14")]

_TYPES = ("BOOL", "INT64", "FP16", "FP32", "BF16", "STRING")

_ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        outputs = [
            pb_utils.Tensor.from_dlpack("OUT_" + tensor.name()[3:], tensor.to_dlpack())
            if tensor.name() != "IN_STRING" else pb_utils.Tensor("OUT_STRING", tensor.as_numpy())
            for tensor in request.inputs()
        ]
        about = {"id": request.request_id(), "flags": request.flags(), "correlation": str(request.correlation_id()),
                 "timeout": request.timeout(), "own": request.parameters()}
        return pb_utils.InferenceResponse(outputs, parameters=about)
"""


_REPEATS = """
class TritonPythonModel:
    def execute(self, requests):
        size = int(requests[0].inputs()[0].as_numpy()[0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, n, np.int32)) for n in (1, 2)])]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    inputs = ", ".join(f'{{ name: "IN_{name}" data_type: TYPE_{name} dims: [-1] optional: true }}' for name in _TYPES)
    outputs = tensors(**{f"OUT_{name}": (f"TYPE_{name}", [-1]) for name in _TYPES})
    config = f'backend: "python"\ninput [ {inputs} ]\noutput [ {outputs} ]\ninstance_group {{ kind: KIND_CPU }}'
    write_model(repository, "echo", _ECHO, config)
    write_streams(repository, "streams")
    write_model(repository, "repeats", _REPEATS, identity_config("TYPE_INT32"))
    copy_model(repository, "countdown_to")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[pybackend.Server]:
    with pybackend.Server(model_repository=repository, exit_timeout=5) as server:
        yield server


def values(response: Any) -> list[int]:
    return np.asarray(response.outputs["OUT"]).tolist()


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.array([1.5, -2], np.float32), id="FP32"),
        pytest.param(np.array([1.5, -2], np.float16), id="FP16"),
        pytest.param(np.array([-1, 2**40]), id="INT64"),
        pytest.param(np.array([True, False]), id="BOOL"),
        pytest.param(np.array([], np.float32), id="empty"),
        pytest.param(np.arange(6, dtype=np.float32)[::2], id="strided"),
        pytest.param(np.arange(3, dtype=">f4"), id="other byte order"),
        pytest.param(np.arange(5000, dtype=np.float32), id="shared memory"),
        pytest.param(np.arange(1_000_000, dtype=np.float32), id="copied in threads"),
    ],
)
def test_an_array_goes_in_and_comes_out(server: pybackend.Server, array: np.ndarray) -> None:
    name = {"f": f"FP{array.dtype.itemsize * 8}", "i": "INT64", "b": "BOOL"}[array.dtype.kind]
    responses = server.model("echo").infer(inputs={f"IN_{name}": array})
    output = responses.outputs[f"OUT_{name}"]
    assert output.data_type == name
    assert output.shape == array.shape
    assert output.size == array.nbytes
    np.testing.assert_array_equal(np.asarray(output), array)
    np.testing.assert_array_equal(np.from_dlpack(output), array)
    assert output.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="lies in host memory, and a library wants it on device"):
        output.__dlpack__(dl_device=(2, 0))
    np.asarray(output)[:1] = 0  # the caller's own memory


def test_strings_go_in_and_come_out(server: pybackend.Server) -> None:
    model = server.model("echo")
    for given in (["grün", b"\xff"], ("grün", b"\xff"), np.array(["grün".encode(), b"\xff"], object)):
        output = model.infer(inputs={"IN_STRING": given}).outputs["OUT_STRING"]
        assert output.to_bytes_array().tolist() == ["grün".encode(), b"\xff"]
        assert np.asarray(output).tolist() == ["grün".encode(), b"\xff"]
        with pytest.raises(pybackend.InvalidArgumentError, match=r"not UTF-8 .*: use to_bytes_array\(\)"):
            output.to_string_array()
    output = model.infer(inputs={"IN_STRING": np.array(["a", "ü"])}).outputs["OUT_STRING"]
    assert output.to_string_array().tolist() == ["a", "ü"]
    with pytest.raises(pybackend.UnsupportedError, match=r"^DLPack has no strings"):
        np.from_dlpack(output)


def test_an_output_is_an_input_and_bf16_travels_without_numpy(server: pybackend.Server) -> None:
    model = server.model("echo")
    first = pybackend.Tensor("BF16", [2], b"\x80\x3f\x00\x40")
    output = model.infer(inputs={"IN_BF16": first}).outputs["OUT_BF16"]
    again = model.infer(inputs={"IN_BF16": pybackend.Tensor.from_dlpack(output)}).outputs["OUT_BF16"]
    assert again.data_type == "BF16"
    with pytest.raises(pybackend.UnsupportedError, match=r"^NumPy has no BF16"):
        np.asarray(again)


def test_a_request_has_what_requests_have(server: pybackend.Server) -> None:
    model = server.model("echo", 1)
    request = model.create_request(
        request_id="r1", flags=3, correlation_id="s", timeout=5_000_000, inputs={"IN_INT64": np.array([1])}
    )
    request.parameters = {"text": "t", "number": -3, "share": 0.5, "switch": True}
    (response,) = model.infer(request)
    assert (response.model, response.request_id, response.final, response.error) == (model, "r1", True, None)
    own = response.parameters.pop("own")
    assert response.parameters == {"id": "r1", "flags": 3, "correlation": "s", "timeout": 5_000_000}
    assert '"number"' in own


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": {"IN_FP32": [1.0]}}, "data-type is 'FP64', but model 'echo' expects 'FP32'"),
        ({"inputs": {"IN_FP32": np.array([1j])}}, "input 'IN_FP32' has the dtype complex128, which is no datatype"),
        ({"inputs": {"IN_FP32": object()}}, "input 'IN_FP32' is of type object: pass a NumPy array"),
        ({"inputs": {"IN_FP32": np.zeros(1)}}, "data-type is 'FP64', but model 'echo' expects 'FP32'"),
        ({"inputs": {"WRONG": np.zeros(1)}}, "unexpected inference input 'WRONG'"),
        ({"inputs": [np.zeros(1)]}, "inputs is of type list: pass a dictionary of arrays by the names"),
        ({"inputs": {"IN_STRING": ["\ud800"]}}, "input 'IN_STRING' has a string with a lone surrogate"),
        ({"inputs": {"IN_STRING": np.array(["\ud800"])}}, "input 'IN_STRING' has a string with a lone surrogate"),
        ({"inference_request": 3}, "pass an InferenceRequest, or its fields by name, not int"),
        ({"parameters": ["key"]}, "parameters is a dictionary, not list"),
        ({"priority": -1}, "priority is a whole number from 0 to 18446744073709551615, not -1"),
        ({"request_id": "\ud800"}, "request_id has a lone surrogate"),
        ({"parameters": {"key": []}}, "parameter 'key' is of type list: use a string, a number or a bool"),
        ({"parameters": {"key": 2**70}}, "parameter 'key' is a whole number from"),
        ({"color": 1}, r"infer\(\) got an unexpected keyword argument 'color'"),
        ({"output_memory_type": "GPU"}, "outputs lie in the host's memory"),
    ],
)
def test_a_wrong_request_is_an_error_with_the_reason(
    server: pybackend.Server, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(pybackend.TritonError, match=message):
        _ = server.model("echo").infer(**fields).outputs


@pytest.mark.parametrize("shape", ["ab", [2.5], [-1, -4], [5]])
def test_a_tensor_has_the_shape_of_its_data(shape: Any) -> None:
    with pytest.raises(pybackend.InvalidArgumentError, match=r"shape of a tensor is|has 20 bytes, not 16"):
        pybackend.Tensor("FP32", shape, bytes(16))


def test_threads_that_read_the_same_responses_all_end(server: pybackend.Server) -> None:
    responses = server.model("countdown_to").infer(inputs={"IN": np.array([500], np.int32)})
    with ThreadPoolExecutor(4) as pool:
        found = [each for part in pool.map(lambda _: list(responses), range(4)) for each in part]
    assert [values(each) for each in found if each.outputs] == [[500]] * 500
    assert [each.final for each in found].count(True) == 1


@pytest.mark.parametrize("size", [1, 300_000], ids=["small", "copied by a thread"])
def test_of_several_outputs_of_one_name_the_first_counts(server: pybackend.Server, size: int) -> None:
    response = server.model("repeats").infer(inputs={"IN": np.array([size], np.int32)}).response
    assert (np.asarray(response.outputs["OUT"]) == 1).all()


@pytest.mark.parametrize(
    ("name", "inputs", "kind", "message"),
    [
        ("nothing", {}, pybackend.NotFoundError, "unknown model: 'nothing' is not found"),
        ("echo", {"WRONG": np.zeros(1)}, pybackend.InvalidArgumentError, "unexpected inference input 'WRONG'"),
        ("echo", {"IN_FP32": ["text"]}, pybackend.InvalidArgumentError, "data-type is 'BYTES'"),
        ("echo", {"IN_FP32": np.zeros(300_000)}, pybackend.InvalidArgumentError, "data-type is 'FP64'"),
    ],
    ids=["model", "input", "strings", "a large input"],
)
def test_infer_itself_raises_what_is_wrong_with_a_request(
    server: pybackend.Server, name: str, inputs: dict[str, Any], kind: type[Exception], message: str
) -> None:
    model = server.model(name)  # which the reference does not look up either
    for _ in range(2):
        with pytest.raises(kind, match=message):
            model.infer(inputs=inputs)


def test_results_show_themselves(server: pybackend.Server) -> None:
    inputs = {"IN_FP32": np.arange(300, dtype=np.float32), "IN_STRING": ["<b>", "ü" * 100]}
    responses = server.model("echo").infer(inputs=inputs)
    assert repr(responses) == (
        "ResponseIterator(not read: a `for` loop reads the responses, `.outputs` waits for the only one)"
    )
    response = responses.response
    response.parameters.clear()
    shown = {name: repr(tensor) for name, tensor in response.outputs.items()}
    assert shown == {
        "OUT_FP32": "Tensor(FP32[300]: [  0.,   1.,   2., ..., 297., 298., 299.])",
        "OUT_STRING": f"Tensor(BYTES[2]: ['<b>', '{'ü' * 80}...'])",
    }
    assert repr(response) == f"InferenceResponse(OUT_FP32: {shown['OUT_FP32']}, OUT_STRING: {shown['OUT_STRING']})"
    assert repr(responses) == f"ResponseIterator({response!r})"
    html = responses._repr_html_()
    assert html == response._repr_html_()
    assert html.startswith(f"<table><tr><th>OUT_FP32</th><td>{shown['OUT_FP32']}</td></tr><tr><th>OUT_STRING</th>")
    assert "&lt;b&gt;" in html
    (failed,) = server.model("nothing").infer(raise_on_error=False)
    assert repr(failed) == (
        "InferenceResponse(error: NotFoundError: Request for unknown model: 'nothing' is not found)"
    )
    assert repr(pybackend.Tensor("BF16", [1], b"  ")) == "Tensor(BF16[1]: ...)"


def test_errors_are_in_responses_on_request(server: pybackend.Server) -> None:
    (response,) = server.model("nothing").infer(raise_on_error=False)
    assert isinstance(response.error, pybackend.NotFoundError)


def test_a_decoupled_model_answers_as_an_iterator(server: pybackend.Server) -> None:
    model = server.model("countdown_to")
    assert model.transaction_properties() is pybackend.ModelTxnPropertyFlag.DECOUPLED
    found = [values(each) for each in model.infer(inputs={"IN": np.array([20], np.int32)}) if each.outputs]
    assert len(found) == 20  # more than may wait for a reader
    with pytest.raises(pybackend.InvalidArgumentError, match="has sent several responses: read them with a for loop"):
        _ = model.infer(inputs={"IN": np.array([3], np.int32)}).outputs

    async def stream() -> list[list[int]]:
        responses = model.async_infer(inputs={"IN": np.array([20], np.int32)})
        return [values(each) async for each in responses if each.outputs]

    assert asyncio.run(stream()) == found


def test_a_slow_reader_pauses_the_model_and_one_that_leaves_does_not(server: pybackend.Server) -> None:
    model = server.model("streams")
    code = """
    def answer():
        for state["sent"] in range(5000):
            sender.send(out(state["sent"]))
        sender.send(flags=FINAL)
    in_thread(answer)
    """

    def sent() -> int:
        return values(model.infer(inputs={"CODE": function("sender.send(out(state['sent']), flags=FINAL)")}))[0]

    responses = model.infer(inputs={"CODE": function(code)})
    assert values(next(responses)) == [0]
    seen = [-1, sent()]
    while seen[-1] != seen[-2]:
        seen.append(sent())
    assert seen[-1] < 4999
    del responses
    wait_until(lambda: sent() == 4999, "the model waits for a reader who has left")


def test_cancelling_reaches_the_model(server: pybackend.Server) -> None:
    code = """
    def answer():
        while not sender.is_cancelled():
            threading.Event().wait(0.01)
        sender.send(out(7), flags=FINAL)
    in_thread(answer)
    """
    responses = server.model("streams").infer(inputs={"CODE": function(code)}, raise_on_error=False)
    responses.cancel()
    assert [response.final for response in responses][-1]

    async def left() -> None:
        task = asyncio.ensure_future(_awaited(server.model("streams"), code))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(left())


async def _awaited(model: pybackend.Model, code: str) -> pybackend.InferenceResponse:
    return await model.async_infer(inputs={"CODE": function(code)})


def test_responses_also_go_to_a_queue_of_the_callers(server: pybackend.Server) -> None:
    model = server.model("countdown_to")
    kept: queue.SimpleQueue[pybackend.InferenceResponse] = queue.SimpleQueue()
    model.infer(inputs={"IN": np.array([3], np.int32)}, response_queue=kept)  # nobody reads the iterator
    taken = []
    while not taken or not taken[-1].final:
        taken.append(kept.get())
    assert [values(each) for each in taken if each.outputs] == [[3], [3], [3]]

    async def into_queue() -> list[list[int]]:
        kept: asyncio.Queue[pybackend.InferenceResponse] = asyncio.Queue()
        model.async_infer(inputs={"IN": np.array([3], np.int32)}, response_queue=kept)
        return [values(await kept.get()) for _ in range(3)]

    assert asyncio.run(into_queue()) == [[3], [3], [3]]

    async def into_full_queue() -> None:
        model.async_infer(inputs={"IN": np.array([3], np.int32)}, response_queue=asyncio.Queue(1))

    with pytest.raises(pybackend.InvalidArgumentError, match="without a maxsize"):
        asyncio.run(into_full_queue())
    for call in (model.infer, model.async_infer):
        with pytest.raises(pybackend.InvalidArgumentError, match=r"^response_queue of .*infer\(\) is a"):
            asyncio.run(_called(call))


async def _called(call: Any) -> None:
    call(inputs={"IN": np.array([1], np.int32)}, response_queue=queue.Queue(1))


def test_threads_and_loops_call_at_once(server: pybackend.Server) -> None:
    model = server.model("echo")
    wrong: list[object] = []

    def call(thread: int) -> None:
        for number in range(50):
            array = np.array([thread, number])
            output = model.infer(inputs={"IN_INT64": array}).outputs["OUT_INT64"]
            if np.asarray(output).tolist() != [thread, number]:
                wrong.append(output)

    async def call_concurrently() -> None:
        arrays = [np.array([number]) for number in range(200)]
        responses = await asyncio.gather(*(_one(model, array) for array in arrays))
        assert [np.asarray(each.outputs["OUT_INT64"]).tolist() for each in responses] == [[n] for n in range(200)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    asyncio.run(call_concurrently())
    for thread in threads:
        thread.join()
    assert wrong == []


async def _one(model: pybackend.Model, array: np.ndarray) -> pybackend.InferenceResponse:
    return await model.async_infer(inputs={"IN_INT64": array})


def test_a_callers_loop_that_ends_before_the_answer_harms_nobody(server: pybackend.Server, repository: Path) -> None:
    gate = Gate(repository / "streams", "late")
    code = """
    import os
    with open(state["directory"] + "/late.reached", "w") as reached:
        reached.write("x")
    def answer():
        while not os.path.exists(state["directory"] + "/late.open"):
            threading.Event().wait(0.01)
        sender.send(out(7), flags=FINAL)
    in_thread(answer)
    """
    inputs = {"CODE": function(code)}

    async def leave() -> object:
        responses = server.model("streams").async_infer(inputs=inputs)
        await asyncio.to_thread(gate.wait_reached)
        return responses

    kept = asyncio.run(leave())
    gate.open()
    (response,) = server.model("echo").infer(inputs={"IN_INT64": np.array([1])})
    assert response.error is None
    del kept


def test_the_facts_about_server_and_models(server: pybackend.Server) -> None:
    assert server.live()
    assert server.ready()
    assert server.metadata()["name"] == "triton"
    assert "statistics" in server.metadata()["extensions"]
    assert {key: model.state for key, model in server.models().items()} == {
        ("countdown_to", 1): "READY",
        ("echo", 1): "READY",
        ("repeats", 1): "READY",
        ("streams", 1): "READY",
    }
    model = server.model("countdown_to")
    assert model.ready()
    assert not server.model("nothing").ready()
    assert model.metadata()["inputs"] == [{"name": "IN", "datatype": "INT32", "shape": [1]}]
    assert model.config()["name"] == "countdown_to"
    assert model.batch_properties() is pybackend.ModelBatchFlag.UNKNOWN
    _ = list(model.infer(inputs={"IN": np.array([1], np.int32)}))
    assert model.statistics()["model_stats"][0]["inference_stats"]["success"]["count"] > 0
    page = server.metrics()
    assert 'pybackend_answers_total{code="OK",protocol="in_process"}' in page
    assert 'nv_inference_request_success{model="countdown_to",version="1"}' in page


def test_traces_are_switched_while_it_runs(tmp_path: Path) -> None:
    copy_model(tmp_path / "models", "countdown_to")
    file = tmp_path / "trace.json"
    with pybackend.Server(model_repository=tmp_path / "models", flags=[f"--trace-config=triton,file={file}"]) as server:
        server.traces.update(trace_level=["TIMESTAMPS"], trace_rate="1")
        assert server.traces.settings("countdown_to")["trace_level"] == ["TIMESTAMPS"]
        _ = list(server.model("countdown_to").infer(inputs={"IN": np.array([1], np.int32)}))
        with pytest.raises(pybackend.TritonError, match="trace_rate"):
            server.traces.update(trace_rate="often")
    assert "REQUEST_START" in file.read_text()
