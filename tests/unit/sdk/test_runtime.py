"""Who serves model code: nobody, a runtime that does some of it, or one that does all."""

import pytest

from pybackend_sdk import runtime as runtime_module
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.metrics import MetricFamily
from pybackend_sdk.model_control import is_model_ready, load_model, unload_model
from pybackend_sdk.request import InferenceRequest, shared_memory
from pybackend_sdk.runtime import Runtime, bind_runtime, current_runtime, get_model_dir


def _received():
    return InferenceRequest._from_wire("", 0, [], (), 0, 0, None, 1)


def _own():
    return InferenceRequest(inputs=[], requested_output_names=[], model_name="m")


REFUSALS = [
    (lambda: _own().exec(), "BLS is only supported during the 'execute' function."),
    (lambda: _own().async_exec(), "BLS is only supported during the 'execute' function."),
    (lambda: _received().get_response_sender(), "Response senders are not available"),
    (lambda: _received().is_cancelled(), "Whether the request was cancelled is not known."),
    (lambda: MetricFamily("n", "d", MetricFamily.COUNTER), "Error when creating MetricFamily: "),
    (lambda: current_runtime().create_metric("family", {}, None), "Error when creating Metric: "),
    (lambda: current_runtime().increment_metric("metric", 1.0), "Failed to increment metric value: "),
    (lambda: current_runtime().set_metric("metric", 1.0), "Failed to set metric value: "),
    (lambda: current_runtime().observe_metric("metric", 1.0), "Failed to observe metric value: "),
    (lambda: current_runtime().metric_value("metric"), "Failed to get metric value: "),
    (lambda: load_model("m"), "Failed to load model: "),
    (lambda: unload_model("m"), "Failed to unload model: "),
    (lambda: is_model_ready("m"), "Failed to check model readiness: "),
]


@pytest.mark.parametrize(("call", "text"), REFUSALS, ids=[text for _, text in REFUSALS])
def test_what_cannot_be_done_says_so_in_a_sentence(call, text):
    with pytest.raises(TritonModelException) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(text)
    assert message.endswith(Runtime.reason)


def test_a_runtime_says_why_it_cannot():
    class Partial(Runtime):
        reason = "This server does not do that yet."

        def is_cancelled(self, request):
            return True

    previous = bind_runtime(Partial())
    try:
        assert _received().is_cancelled()
        with pytest.raises(TritonModelException, match=r"This server does not do that yet\.$"):
            load_model("m")
    finally:
        bind_runtime(previous)


def test_binding_gives_back_what_was_bound(runtime):
    other = Runtime()
    assert bind_runtime(other) is runtime
    assert current_runtime() is other
    assert bind_runtime(runtime) is other


def test_model_directory(runtime):
    assert get_model_dir() == "/models/m/1"
    runtime.model_directory = ""
    with pytest.raises(TritonModelException, match="no model is loaded"):
        get_model_dir()


def test_free_memory_is_the_runtimes_to_know(runtime):
    assert shared_memory.free_memory() == 4096
    bind_runtime(Runtime())
    assert shared_memory.free_memory() == 0


# --- Model control ---


def test_model_control_reaches_the_runtime(runtime):
    load_model("m")
    load_model(model_name="m", config="{}", files={"file:1/model.py": b"code"})
    unload_model("m")
    unload_model("m", unload_dependents=True)
    assert is_model_ready("m") is True
    assert is_model_ready(model_name=b"m", model_version="3") is True
    assert runtime.calls == [
        ("load_model", "m", "", None),
        ("load_model", "m", "{}", {"file:1/model.py": b"code"}),
        ("unload_model", "m", False),
        ("unload_model", "m", True),
        ("is_model_ready", "m", ""),
        ("is_model_ready", "m", "3"),
    ]


@pytest.mark.parametrize("files", [["a"], "a", {"a": "text"}, {1: b"x"}])
def test_files_that_are_none(runtime, files):
    text = "^failed to load model 'm', files should be a dictionary of file paths and file contents"
    with pytest.raises(TritonModelException, match=text):
        load_model("m", "", files)
    assert runtime.calls == []


@pytest.mark.parametrize(
    "call",
    [lambda: load_model(None), lambda: load_model("m", None), lambda: unload_model(1), lambda: is_model_ready("m", 1)],
)
def test_names_of_other_types(runtime, call):
    with pytest.raises(TypeError):
        call()
    assert runtime.calls == []


def test_the_default_is_nobody():
    assert type(runtime_module._bound) is Runtime
