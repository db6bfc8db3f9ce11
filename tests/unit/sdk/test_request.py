"""InferenceRequest: what its constructor takes, what its accessors give, and what it asks the runtime for."""

import inspect
import json

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    get_input_tensor_by_name,
)
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor


def _tensor(name="X"):
    return Tensor(name, np.zeros(1, np.float32))


def _request(**changes):
    return InferenceRequest(**{"inputs": [_tensor()], "requested_output_names": ["Y"], "model_name": "m", **changes})


def _received(**changes):
    values = {
        "request_id": "id",
        "correlation_id": 7,
        "inputs": [_tensor("A"), _tensor("B")],
        "requested_output_names": ("Y", "Z"),
        "flags": 3,
        "timeout": 1000,
        "parameters": None,
        "key": 42,
    }
    values.update(changes)
    return InferenceRequest._from_wire(**values)


@pytest.mark.spec("pb-Q01")
def test_parameters_have_their_order_and_defaults():
    parameters = inspect.signature(InferenceRequest).parameters
    assert list(parameters) == [
        "request_id",
        "correlation_id",
        "inputs",
        "requested_output_names",
        "model_name",
        "model_version",
        "flags",
        "timeout",
        "preferred_memory",
        "trace",
        "parameters",
    ]
    positional = InferenceRequest("id", 5, [_tensor()], ["Y"], "m", 2, 1, 9, PreferredMemory(TRITONSERVER_MEMORY_CPU))
    assert (positional.request_id(), positional.correlation_id(), positional.flags(), positional.timeout()) == (
        "id",
        5,
        1,
        9,
    )
    request = _request()
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request.parameters() == "{}"
    assert request._target[:2] == ("m", -1)


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_three_are_required(missing):
    arguments = {"inputs": [], "requested_output_names": [], "model_name": "m"}
    del arguments[missing]
    with pytest.raises(TypeError, match=f"'{missing}' is required"):
        InferenceRequest(**arguments)


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(
    "name",
    [
        "request_id",
        "correlation_id",
        "inputs",
        "requested_output_names",
        "model_name",
        "model_version",
        "flags",
        "timeout",
        "preferred_memory",
        "trace",
    ],
)
def test_none_is_refused(name):
    with pytest.raises(TypeError, match=f"'{name}'"):
        _request(**{name: None})


@pytest.mark.spec("pb-Q01")
def test_none_is_taken_for_parameters():
    assert _request(parameters=None).parameters() == "{}"


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_id", 1),
        ("inputs", _tensor()),
        ("inputs", {"X": _tensor()}),
        ("inputs", {_tensor()}),
        ("inputs", iter([_tensor()])),
        ("inputs", "X"),
        ("inputs", [np.zeros(1)]),
        ("requested_output_names", "Y"),
        ("requested_output_names", {"Y"}),
        ("requested_output_names", [None]),
        ("requested_output_names", [1]),
        ("model_name", 5),
        ("model_version", "1"),
        ("model_version", 1.0),
        ("model_version", 2**63),
        ("flags", "1"),
        ("flags", -1),
        ("flags", 2**32),
        ("timeout", -1),
        ("timeout", 1.5),
        ("timeout", 2**64),
        ("preferred_memory", TRITONSERVER_MEMORY_CPU),
        ("trace", "trace"),
    ],
)
def test_other_types_are_type_errors(name, value):
    with pytest.raises(TypeError, match=f"'{name}'"):
        _request(**{name: value})


@pytest.mark.spec("pb-Q01")
def test_inputs_may_be_any_sequence_and_none():
    tensors = [_tensor("A"), _tensor("B")]
    assert _request(inputs=tuple(tensors)).inputs() == tensors
    assert _request(inputs=[]).inputs() == []
    array = np.empty(2, np.object_)
    array[:] = tensors
    assert _request(inputs=array).inputs() == tensors


@pytest.mark.spec("pb-Q01")
def test_an_input_that_is_none_is_named():
    text = r"^Input tensor for request with id 'r' and model name 'm' should not be empty\."
    with pytest.raises(TritonModelException, match=text):
        _request(inputs=[_tensor(), None], request_id="r")


@pytest.mark.spec("pb-Q01")
def test_an_empty_output_name_is_named():
    text = r"^Requested output name for request with id 'r' and model name 'm' should not be empty\."
    with pytest.raises(TritonModelException, match=text):
        _request(requested_output_names=["Y", ""], request_id="r")


@pytest.mark.spec("pb-Q01")
def test_output_names_become_a_set():
    assert _request(requested_output_names=("Y", "Z", "Y")).requested_output_names() == {"Y", "Z"}
    assert _request(requested_output_names=[]).requested_output_names() == set()
    assert type(_request().requested_output_names()) is set


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(("given", "kept"), [(0, 0), (5, 5), (True, 1), (2**64 - 1, 2**64 - 1), ("", ""), ("s", "s")])
def test_correlation_ids(given, kept):
    correlation_id = _request(correlation_id=given).correlation_id()
    assert (correlation_id, type(correlation_id)) == (kept, type(kept))


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize("given", [1.0, [1], b"x", {}])
def test_correlation_ids_of_other_types(given):
    with pytest.raises(TritonModelException, match=r"^Correlation ID must be integer or string"):
        _request(correlation_id=given)


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize("given", [-1, 2**64])
def test_correlation_ids_out_of_range(given):
    with pytest.raises(RuntimeError):
        _request(correlation_id=given)


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize("timeout", [0, 1, 2**63, 2**64 - 1, np.uint64(2**63)])
def test_timeouts_are_unsigned(timeout):
    assert _request(timeout=timeout).timeout() == int(timeout)


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(("version", "kept"), [(-1, -1), (1, 1), (np.int64(3), 3)])
def test_model_versions(version, kept):
    assert _request(model_version=version)._target.model_version == kept


@pytest.mark.spec("pb-Q01")
def test_parameters_come_back_as_json():
    given = {"text": "ä", "number": -3, "flag": True, "big": 2**63 - 1}
    request = _request(parameters=given)
    given["text"] = "changed"
    assert type(request.parameters()) is str
    assert json.loads(request.parameters()) == {"text": "ä", "number": -3, "flag": True, "big": 2**63 - 1}
    assert json.loads(request.parameters())["flag"] is True


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({1: "x"}, r"Expect parameters keys to have type str, found type <class 'int'>"),
        ({None: "x"}, r"Expect parameters keys to have type str, found type <class 'NoneType'>"),
        ({"k": 1.5}, r"Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"k": None}, r"Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
        ({"k": {}}, r"Expect parameters values to have type bool/int/str, found type <class 'dict'>"),
        ([("k", 1)], r"Expect dict, got <class 'list'>"),
        ("{}", r"Expect dict, got <class 'str'>"),
        ({"k": 2**63}, r"Parameter 'k' is 9223372036854775808, which does not fit into 64 bits"),
        ({"k": -(2**63) - 1}, r"Parameter 'k' is -9223372036854775809, which does not fit into 64 bits"),
    ],
)
def test_parameters_that_cannot_be_sent(parameters, text):
    with pytest.raises(TritonModelException, match="^" + text):
        _request(parameters=parameters)


@pytest.mark.parametrize("parameters", [{"\ud800": 1}, {"k": "\ud800"}])
def test_parameters_that_utf8_cannot_express(parameters):
    with pytest.raises(TypeError, match="surrogates"):
        _request(parameters=parameters)


@pytest.mark.spec("pb-Q01")
def test_preferred_memory_and_trace():
    preferred = PreferredMemory(TRITONSERVER_MEMORY_GPU, 1)
    trace = InferenceTrace()
    request = _request(preferred_memory=preferred, trace=trace)
    assert request._target.preferred_memory is preferred
    assert request.trace() is trace
    assert trace.get_context() is None
    assert _request()._target.preferred_memory is None
    assert type(_request().trace()) is InferenceTrace


@pytest.mark.parametrize("arguments", [(None,), (1,), ("CPU",), (TRITONSERVER_MEMORY_CPU, None), ()])
def test_preferred_memory_of_other_types(arguments):
    with pytest.raises(TypeError):
        PreferredMemory(*arguments)


def test_memory_types():
    assert MemoryType.TRITONSERVER_MEMORY_GPU is TRITONSERVER_MEMORY_GPU
    assert MemoryType.TRITONSERVER_MEMORY_CPU is TRITONSERVER_MEMORY_CPU


@pytest.mark.spec("pb-Q01")
def test_names_may_be_bytes_as_they_come_out_of_a_bytes_tensor():
    names = np.array([b"model", b"Y"], np.object_)
    request = _request(model_name=names[0], requested_output_names=names[1:])
    assert request._target.model_name == "model"
    assert request.requested_output_names() == {"Y"}


@pytest.mark.parametrize("absent", ["model_name", "model_version", "preferred_memory"])
def test_accessors_that_models_rely_on_being_absent(absent):
    assert not hasattr(_request(), absent)


# --- Requests that arrive ---


def test_received_requests_give_what_arrived():
    inputs = [_tensor("A"), _tensor("B")]
    request = _received(inputs=inputs, parameters={"k": 1.5, "s": "x"}, priority=2)
    assert request.inputs() == inputs
    assert type(request.inputs()) is list
    assert (request.request_id(), request.correlation_id(), request.flags()) == ("id", 7, 3)
    assert (request.timeout(), request.priority()) == (1000, 2)
    names = request.requested_output_names()
    assert (names, type(names)) == ({"Y", "Z"}, set)
    assert json.loads(request.parameters()) == {"k": 1.5, "s": "x"}
    assert request.trace().get_context() is None
    assert _received().parameters() == "{}"
    assert _received().priority() == 0
    assert _received(correlation_id="seq").correlation_id() == "seq"


def test_lists_and_sets_are_the_callers_own():
    request = _received()
    request.inputs().clear()
    request.requested_output_names().clear()
    assert len(request.inputs()) == 2
    assert request.requested_output_names() == {"Y", "Z"}


def test_flags_can_be_set():
    request = _request()
    request.set_flags(2)
    assert request.flags() == 2
    for wrong in (-1, "1", None, 2**32):
        with pytest.raises(TypeError):
            request.set_flags(wrong)
    with pytest.raises(TypeError):
        request.set_flags(flags=1)


def test_release_flags_are_kept():
    request = _received()
    assert request._release_flags == TRITONSERVER_REQUEST_RELEASE_ALL
    request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    assert request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    with pytest.raises(TypeError):
        request.set_release_flags(flags=1)


def test_a_models_own_request_cannot_be_released():
    with pytest.raises(TritonModelException, match="passed to 'execute'"):
        _request().set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


def test_look_up_by_name():
    request = _received()
    assert get_input_tensor_by_name(request, "B") is request.inputs()[1]
    assert get_input_tensor_by_name(request, "C") is None
    twice = _received(inputs=[_tensor("A"), _tensor("A")])
    assert get_input_tensor_by_name(twice, "A") is twice.inputs()[0]


def test_look_up_in_an_authors_own_stand_in():
    class StandIn:
        def inputs(self):
            return [_tensor("A")]

    assert get_input_tensor_by_name(StandIn(), "A").name() == "A"
    assert get_input_tensor_by_name(StandIn(), "B") is None


# --- What needs a runtime ---


def test_cancellation_is_the_runtimes_to_know(runtime):
    request = _received()
    assert request.is_cancelled() is False
    runtime.cancelled = True
    assert request.is_cancelled() is True
    assert runtime.calls == [("is_cancelled", request)] * 2


def test_nobody_cancels_a_models_own_request(runtime):
    runtime.cancelled = True
    assert _request().is_cancelled() is False
    assert runtime.calls == []


def test_exec_asks_the_runtime(runtime):
    request = _request()
    assert request.exec() is runtime.response
    assert request.exec(decoupled=True) is runtime.response
    assert request.async_exec() is runtime.response
    assert runtime.calls == [("infer", request, False), ("infer", request, True), ("infer_async", request, False)]


def test_the_sender_is_the_same_every_time(runtime):
    request = _received()
    sender = request.get_response_sender()
    assert request.get_response_sender() is sender
    response = InferenceResponse()
    sender.send(response)
    sender.send(flags=1)
    assert runtime.calls == [("send", request, response, False), ("send", request, None, True)]
    assert sender.is_cancelled() is False
    assert not hasattr(sender, "close")


def test_the_sender_of_a_models_own_request_reaches_nobody(runtime):
    sender = _request().get_response_sender()
    assert sender.is_cancelled() is False
    with pytest.raises(
        TritonModelException,
        match=r"^Unable to send response\. Response sender has no reference to the decoupled state of the model\.",
    ):
        sender.send(InferenceResponse())
    assert runtime.calls == []


def test_without_a_server_nothing_can_be_run():
    request = _request()
    for call in (request.exec, request.async_exec, lambda: request.exec(decoupled=True)):
        with pytest.raises(TritonModelException, match=r"^BLS is only supported during the 'execute' function\."):
            call()
