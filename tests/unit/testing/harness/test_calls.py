"""Models that run models: functions, other models' directories and harnesses answer."""

import asyncio
import json
import os
import threading
import warnings

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pybackend_testing import HarnessError, InferenceFailed, LoadError, ModelHarness, NoResponse, OutputError
from tests.unit.testing.conftest import DECOUPLED, configuration, wait_until

CALL = """
def call(name, *arrays, outputs=("OUT",), decoupled=False, **options):
    tensors = [pb_utils.Tensor("IN" + str(i or ""), np.asarray(a, np.float32)) for i, a in enumerate(arrays)]
    request = pb_utils.InferenceRequest(
        inputs=tensors, requested_output_names=list(outputs), model_name=name, **options
    )
    return request.exec(decoupled=decoupled)

def passed_on(response):
    if response.has_error():
        error = pb_utils.TritonError(response.error().message(), response.error().code())
        return [pb_utils.InferenceResponse(error=error)]
    return [pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(response, "OUT")])]
"""
FRONT = "return passed_on(call('other', request.inputs()[0].as_numpy()))"
DOUBLE = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        pb_utils.Logger.log_info(f"{self.name} executes")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() * 2)]) for r in requests
        ]
"""


@pytest.fixture
def front(execute):
    """A model that runs model ``other`` on its input."""
    return lambda body=FRONT, config=None, **models: execute(body, config, CALL, models=models)


def _error(harness):
    return harness.infer(IN=[1]).error


# --- Functions ---


def _by_name(IN):  # noqa: N803  the input's name
    return {"OUT": IN * 2}


class _Callable:
    def __call__(self, IN):  # noqa: N803  the input's name
        return IN * 2


async def _coroutine(IN):  # noqa: N803  the input's name
    await asyncio.sleep(0)
    return {"OUT": IN * 2}


@pytest.mark.parametrize(
    "function",
    [
        _by_name,
        lambda x: x * 2,
        lambda *inputs: inputs[0] * 2,
        lambda **inputs: {"OUT": inputs["IN"] * 2, "MORE": np.zeros(1)},
        lambda request: request.inputs()[0].as_numpy() * 2,
        lambda IN, request: {"OUT": IN * 2},  # noqa: N803  the input's name
        lambda x: [x[0] * np.float32(2)],
        lambda x: pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]),
        lambda x: {"OUT": pb_utils.Tensor("OUT", x * 2)},
        lambda x: np.add(x, x),
        _Callable(),
        _coroutine,
    ],
)
def test_functions(front, function):
    harness = front(other=function)
    result = harness.infer(IN=[1.5])
    assert result["OUT"].astype(np.float32).tolist() == [3.0]


def test_a_function_of_numpy(front):
    assert front(other=np.square).infer(IN=[3])["OUT"].tolist() == [9.0]


def test_arrays_of_a_function_are_its_own(front):
    seen = []

    def other(x):
        x += 1
        seen.append(x)
        return x

    harness = front("array = request.inputs()[0].as_numpy()\nresponse = call('other', array)\nassert array[0] == 1\n"
                    "return passed_on(response)", other=other)  # fmt: skip
    result = harness.infer(IN=[1])
    seen[0][0] = 9
    assert result["OUT"].tolist() == [2.0]


def test_strings_of_a_function(execute):
    harness = execute(
        """
        text = pb_utils.Tensor("T", np.array(["a", b"b"], object))
        request = pb_utils.InferenceRequest(inputs=[text], requested_output_names=["OUT"], model_name="other")
        return [pb_utils.InferenceResponse(request.exec().output_tensors())]
        """,
        configuration(outputs="STRING -1"),
        models={"other": lambda T: [element.decode() + "!" for element in T]},  # noqa: N803  the input's name
    )
    assert harness.infer(IN=[1])["OUT"].tolist() == [b"a!", b"b!"]


def test_a_function_sees_the_request(front):
    seen = {}

    def other(request):
        seen.update(id=request.request_id(), parameters=request.parameters(), correlation=request.correlation_id())
        return np.zeros(1, np.float32)

    body = "return passed_on(call('other', [1], request_id='r', parameters={'k': 1}, correlation_id=7))"
    front(body, other=other).infer(IN=[1])
    assert seen == {"id": "r", "parameters": '{"k": 1}', "correlation": 7}


def test_parameters_of_a_response_arrive(front):
    body = "response = call('other', [1])\nassert response.parameters() == '{\"k\": 1}'\nreturn passed_on(response)"
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))], parameters={"k": 1})
    front(body, other=lambda x: response).infer(IN=[1]).raise_for_error()


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("function", "text", "code"),
    [
        (lambda x: pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND), "no", "NOT_FOUND"),
        (lambda x: _raise(pb_utils.TritonModelException("no")), "no", "INTERNAL"),
        (
            lambda x: pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.UNAVAILABLE)),
            "no",
            "UNAVAILABLE",
        ),
        (
            lambda x: _raise(ValueError("no")),
            "Failed to process the request(s) for model 'other_0', message: ValueError: no\n\nAt:\n",
            "INTERNAL",
        ),
    ],
)
def test_failures_of_functions_are_responses(front, function, text, code):
    error = _error(front(other=function))
    assert error.message().startswith(text)
    assert error.code().name == code


def test_assertions_of_functions_reach_the_test(front):
    def other(x):
        assert x[0] == 2, "the model sends something else"

    harness = front(other=other)
    with pytest.raises(AssertionError, match="the model sends something else"):
        harness.infer(IN=[1])
    harness = front("call('other', [1])\nreturn [pb_utils.InferenceResponse()]", other=other)
    with pytest.raises(AssertionError, match="the model sends something else"):
        harness.infer(IN=[1])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a, b: a, r"the function takes \(a, b\), but the model calls it with inputs \['IN'\]"),
        (lambda x: None, r"the function returned NoneType, but the model requests outputs \['OUT'\]: return a dict"),
    ],
)
def test_functions_that_do_not_fit(front, function, text):
    with pytest.raises(HarnessError, match=text):
        front(other=function).infer(IN=[1])


def test_a_single_array_needs_one_output_asked_for(front):
    harness = front("call('other', [1], outputs=[])\nreturn None", other=lambda x: x)
    with pytest.raises(HarnessError, match="the function returned ndarray, but the model requests all outputs"):
        harness.infer(IN=[1])


@pytest.mark.parametrize("target", [5, None, ["x"]])
def test_targets_that_are_none(write, target):
    with pytest.raises(
        HarnessError, match=r"models={'other': \.\.\.} must be a function, a model's directory or a Model"
    ):
        ModelHarness(write(DOUBLE), config=configuration(), models={"other": target}).open()


# --- Other models ---


def test_a_directory_is_a_model(front, write):
    write(DOUBLE, "other")
    directory = write(DOUBLE, "other")
    (directory / "config.json").write_text("")
    harness = front(other=ModelHarness(directory, config=configuration()))
    assert harness.infer(IN=[1.5])["OUT"].tolist() == [3.0]
    assert [line.message for line in harness.models["other"].logs] == ["other executes"]
    assert harness.logs == []
    assert list(harness.models) == ["m", "other"]


def test_a_directory_alone(front, write):
    completes = (
        DOUBLE
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        return config
    """
    )
    directory = write(completes, "elsewhere")
    for target in (directory, str(directory)):
        harness = front(other=target)
        assert harness.infer(IN=[2])["OUT"].tolist() == [4.0]
        assert harness.models["other"].model.name == "other", "a model is called what models= calls it"
        harness.close()


def test_a_harness_that_is_open_stays_open(front, opened):
    other = opened(DOUBLE, name="other")
    harness = front(other=other)
    assert harness.infer(IN=[1])["OUT"].tolist() == [2.0]
    harness.close()
    assert other.infer(IN=[1])["OUT"].tolist() == [2.0]


def test_a_model_that_does_not_load(write):
    write("raise ValueError('broken')", "other")
    harness = ModelHarness(
        write(DOUBLE), config=configuration(), models={"other": ModelHarness(write("1/0", "other"), config={})}
    )
    with pytest.raises(LoadError, match=r"^models={'other': \.\.\.}: ZeroDivisionError"):
        harness.open()
    assert not harness.is_open


def test_errors_of_models_keep_text_and_code(front, write):
    code = DOUBLE.replace("return [", "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('x', "
                          "pb_utils.TritonError.ALREADY_EXISTS))]\n        return [")  # fmt: skip
    error = _error(front(other=ModelHarness(write(code, "other"), config=configuration())))
    assert (error.message(), error.code().name) == ("x", "ALREADY_EXISTS")
    raises = DOUBLE.replace("return [", "raise ValueError('deep')\n        return [")
    error = _error(front(other=ModelHarness(write(raises, "other2"), config=configuration())))
    assert error.message().startswith("Failed to process the request(s) for model 'other_0', message: ValueError: deep")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return passed_on(call('nobody', [1]))", "Model nobody - Error when running inference"),
        ("return passed_on(call('other'))", "Model other - Error when running inference"),
        ("return passed_on(call('other', [1], outputs=['X']))", "Model other - Error when running inference"),
        ("return passed_on(call('other', [1], model_version=7))", "Model other - Error when running inference"),
        (
            "tensor = pb_utils.Tensor('IN', np.zeros(1, np.float32))\n"
            "return passed_on(pb_utils.InferenceRequest(inputs=[tensor, tensor], requested_output_names=[], "
            "model_name='other').exec())",
            "Model other - Error when running inference",
        ),
    ],
)
def test_calls_that_do_not_reach_a_model(front, write, body, text, snapshot):
    harness = front(body, other=ModelHarness(write(DOUBLE, "other"), config=configuration()))
    assert _error(harness).message().startswith(text)
    assert _error(harness).message() == snapshot


def test_an_unknown_model_says_how_to_make_it_known(front):
    message = _error(front(another=lambda x: x)).message()
    assert message.endswith(". Known: another, m; ModelHarness(models={...}) adds others")


def test_a_model_that_says_it_is_not_ready(front, write):
    code = DOUBLE + "\n    def is_ready(self):\n        return False\n"
    error = _error(front(other=ModelHarness(write(code, "other"), config=configuration())))
    assert error.message().endswith("Failed for execute the inference request. Model 'other' is not ready.")
    assert error.code().name == "UNAVAILABLE"


def test_outputs_of_other_models_are_checked_too(front, write):
    code = DOUBLE.replace("* 2", "* np.float64(2)").replace("r.inputs()[0].as_numpy()", "np.zeros(1)")
    harness = front(other=ModelHarness(write(code, "other"), config=configuration()))
    with pytest.raises(OutputError, match="model 'other' returned output 'OUT' as FP64"):
        harness.infer(IN=[1])


def test_several_levels(front, write):
    middle = (
        CALL
        + """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("in the middle")
        return passed_on(call("double", requests[0].inputs()[0].as_numpy() + 1))
"""
    )
    harness = front(
        other=ModelHarness(write(middle, "middle"), config=configuration()),
        double=ModelHarness(write(DOUBLE, "double"), config=configuration()),
    )
    assert harness.infer(IN=[1])["OUT"].tolist() == [4.0]
    assert [line.message for line in harness.models["other"].logs] == ["in the middle"]
    assert [line.message for line in harness.models["double"].logs] == ["double executes"]


def test_a_model_that_calls_itself(front):
    error = _error(front("return passed_on(call('m', [1]))"))
    assert error.message() == (
        "Model m - Error when running inference: the call can never be served, as models wait for each other and no "
        "instance is free: m -> m. Give one of them more instances (instance_group { count: ... }), or do without the call"
    )
    assert error.code().name == "UNAVAILABLE"


def test_models_that_call_each_other(front, write):
    back = (
        CALL
        + """
class TritonPythonModel:
    def execute(self, requests):
        return passed_on(call("m", [1]))
"""
    )
    error = _error(front(other=ModelHarness(write(back, "other"), config=configuration())))
    assert "no instance is free: m -> other -> m." in error.message()


def test_a_request_that_execute_got_cannot_be_executed(front):
    error = _error(front("request.exec()"))
    assert "A request that was passed to 'execute' cannot be executed again" in error.message()


# --- Decoupled ---


def _count(IN):  # noqa: N803  the input's name
    for number in range(int(IN[0])):
        yield {"OUT": np.array([number], np.float32)}


REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUM = """
values, empty = [], 0
replies = call("other", request.inputs()[0].as_numpy(), decoupled=True)
for _ in range(2):  # again and again
    values.clear()
    for response in replies:
        if response.has_error():
            return passed_on(response)
        if response.output_tensors():
            values.append(pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0])
        else:
            empty += 1
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([sum(values), len(values), empty], np.float32))])]
"""


@pytest.fixture(params=["function", "model"])
def repeater(request, write):
    """Something that answers as often as its input says."""
    if request.param == "function":
        return _count
    return ModelHarness(write(REPEAT, "other"), config=configuration(**DECOUPLED))


def test_responses_can_be_iterated_again_and_end_with_an_empty_one(front, repeater):
    assert front(SUM, other=repeater).infer(IN=[4])["OUT"].tolist() == [6, 4, 2]


def test_a_decoupled_model_must_be_called_as_such(front, repeater, snapshot):
    message = _error(front(other=repeater)).message()
    assert message == snapshot


def test_a_plain_model_may_be_called_as_decoupled(front):
    assert front(SUM, other=lambda x: x).infer(IN=[4])["OUT"].tolist() == [4, 1, 0]


def test_a_generator_that_fails_half_way(front):
    def other(x):
        yield x
        raise pb_utils.TritonModelException("half way")

    assert _error(front(SUM, other=other)).message() == "half way"


def test_an_asynchronous_generator(front):
    async def other(x):
        for number in range(3):
            await asyncio.sleep(0)
            yield x * number

    assert front(SUM, other=other).infer(IN=[1])["OUT"].tolist() == [3, 3, 2]


CANCEL = """
replies = call("other", [1e6], decoupled=True)
first = next(iter(replies))
replies.cancel()
count = sum(len(response.output_tensors()) for response in replies)
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([count], np.float32))])]
"""


def test_a_call_can_be_cancelled(front, repeater):
    assert front(CANCEL, other=repeater).infer(IN=[1])["OUT"][0] < 1e6


def test_a_function_hears_of_the_cancellation(front):
    ended = []

    def other(x):
        try:
            while True:
                yield x
        finally:
            ended.append(True)

    front(CANCEL, other=other).infer(IN=[1])
    assert ended == [True]


def test_a_function_is_asked_for_as_much_as_the_model_reads(front):
    asked = []

    def other(x):
        while True:
            asked.append(x)
            yield x

    harness = front("""
replies = iter(call("other", [1], decoupled=True))
return passed_on([next(replies) for _ in range(3)][-1])
""", other=other)  # fmt: skip
    assert harness.infer(IN=[1])["OUT"].tolist() == [1]
    assert 3 <= len(asked) <= 4
    harness.close()
    wait_until(lambda: not any(thread.name == "pybackend call" for thread in threading.enumerate()))


WAITS = """
import time
class TritonPythonModel:
    def execute(self, requests):
        self.entered = True
        while not requests[0].is_cancelled() and not self.enough:
            time.sleep(0.001)
        code = pb_utils.TritonError.CANCELLED if requests[0].is_cancelled() else pb_utils.TritonError.UNKNOWN
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("so be it", code))]

    entered = enough = False
"""


@pytest.mark.parametrize(("cancels", "code"), [("yes", "CANCELLED"), ("no", "UNKNOWN")])
def test_a_cancelled_request_cancels_its_calls_if_the_model_wants_it(execute, write, cancels, code):
    other = ModelHarness(write(WAITS, "other"), config=configuration())
    harness = execute(FRONT, more=CALL, models={"other": other}, parameters={"CANCEL_CALLS_WITH_REQUEST": cancels})
    stream = harness.stream(IN=[1])
    stream.cancel()
    if cancels == "no":
        other.model.enough = True
    (result,) = stream
    assert result.error.code().name == code


def test_a_function_that_asks_the_model_that_waits_for_it(front):
    harness = front(other=lambda x: harness.infer(IN=x)["OUT"])
    with pytest.raises(HarnessError, match="instance 'm_0' is busy with the request that made this call"):
        harness.infer(IN=[1])


def test_a_model_that_is_busy_for_too_long(execute, write):
    other = ModelHarness(write(WAITS, "other"), config=configuration(), wait_s=0.5)
    harness = execute(FRONT, more=CALL, models={"other": other})
    stream = other.stream(IN=[1])
    wait_until(lambda: other.model.entered)
    with pytest.raises(HarnessError, match="instance 'other_0' is busy: it is at"):
        harness.infer(IN=[1])
    other.model.enough = True
    assert len(stream.collect()) == 1


def test_a_model_that_forgets_the_flag(execute, write):
    code = REPEAT.replace("sender.send(flags", "self.kept = sender  # (flags")
    other = ModelHarness(write(code, "other"), config=configuration(**DECOUPLED), wait_s=0.5)
    harness = execute(SUM, more=CALL, models={"other": other})
    with pytest.raises(NoResponse, match="for a response of 'other_0'; 2 responses came before"):
        harness.infer(IN=[2])


# --- async ---

ASYNC = """
import asyncio

def request_of(name, value):
    tensor = pb_utils.Tensor("IN", np.array([value], np.float32))
    return pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=["OUT"], model_name=name)

class TritonPythonModel:
    async def execute(self, requests):
        count = int(requests[0].inputs()[0].as_numpy()[0])
        responses = await asyncio.gather(*(request_of("other", number).async_exec() for number in range(count)))
        values = [pb_utils.get_output_tensor_by_name(r, "OUT").as_numpy()[0] for r in responses]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.float32))])]
"""


def test_async_calls_overlap(opened):
    barrier = threading.Barrier(100)

    def other(x):
        barrier.wait(60)
        return x

    harness = opened(ASYNC, models={"other": other})
    assert harness.infer(IN=[100])["OUT"].tolist() == list(range(100))


def test_async_calls_of_a_model(opened, write):
    harness = opened(ASYNC, models={"other": ModelHarness(write(DOUBLE, "other"), config=configuration())})
    assert harness.infer(IN=[20])["OUT"].tolist() == [2 * number for number in range(20)]
    assert len(harness.models["other"].logs) == 20


def test_async_calls_of_coroutines(opened):
    harness = opened(ASYNC, models={"other": _coroutine})
    assert harness.infer(IN=[20])["OUT"].tolist() == [2 * number for number in range(20)]


def test_an_async_cycle(opened):
    code = ASYNC.replace('"other"', '"m"').replace(
        "values = [", "return [pb_utils.InferenceResponse(error=responses[0].error())]\n        values = ["
    )
    harness = opened(code)
    assert "no instance is free: m -> m." in _error(harness).message()


def test_async_exec_needs_a_loop(front):
    error = _error(
        front("pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x').async_exec()")
    )
    assert "RuntimeError: no running event loop" in error.message()


def test_async_decoupled_calls(opened, write):
    code = (
        ASYNC.replace("async_exec()", "async_exec(decoupled=True)")
        .replace("get_output_tensor_by_name(r,", "get_output_tensor_by_name(list(r)[-2],")
        .replace('request_of("other", number)', 'request_of("other", number + 1)')
    )
    harness = opened(code, models={"other": _count})
    assert harness.infer(IN=[5])["OUT"].tolist() == [0, 1, 2, 3, 4]


# --- Threads ---


@pytest.mark.parametrize("task", ["made.exec", "lambda: made.exec()"], ids=["method", "function"])
def test_calls_from_threads_belong_to_the_model_that_started_them(front, task):
    """Also where no code of the model's is to be seen in the thread."""
    harness = front(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "tensor = pb_utils.Tensor('IN', np.array([2], np.float32))\n"
        "made = pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=['OUT'], model_name='other')\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        f"    response = pool.submit({task}).result()\n"
        "    pool.submit(pb_utils.Logger.log_info, 'from a pool').result()\n"
        "return passed_on(response)",
        other=lambda x: x * 3,
    )
    assert harness.infer(IN=[1])["OUT"].tolist() == [6.0]
    assert [line.message for line in harness.logs] == ["from a pool"]


def test_two_harnesses_with_threads_are_told_apart(opened):
    code = """
    import threading
    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]

        def execute(self, requests):
            thread = threading.Thread(target=self.say)
            thread.start()
            thread.join()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))])]

        def say(self):
            pb_utils.Logger.log_info(f"{self.name} in {pb_utils.get_model_dir()}")
    """
    first, second = opened(code, name="first"), opened(code, name="second")
    for harness in (first, second, first):
        harness.infer(IN=[1])
    assert [line.message.split()[0] for line in first.logs] == ["first", "first"]
    assert [line.message.split()[0] for line in second.logs] == ["second"]
    assert second.logs[0].message.endswith("/second/1")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_calls_from_forks(opened):
    code = (
        CALL
        + """
import multiprocessing

def in_a_fork(value):
    return pb_utils.get_output_tensor_by_name(call("other", [value]), "OUT").as_numpy()[0]

class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(in_a_fork, [1.0, 2.0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.float32))])]
"""
    )
    harness = opened(code, models={"other": lambda x: x * 3})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in processes with threads
        assert harness.infer(IN=[1])["OUT"].tolist() == [3.0, 6.0]


# --- Model control ---

CONTROL = """
import json
class TritonPythonModel:
    def execute(self, requests):
        name, config, files = json.loads(requests[0].inputs()[0].as_numpy()[0])
        before = ready(name)
        pb_utils.load_model(name, config=config, files={k: v.encode() for k, v in files.items()} if files else None)
        tensor = pb_utils.Tensor("IN", np.ones(1, np.float32))
        request = pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=["OUT"], model_name=name)
        loaded = ready(name)
        response = request.exec()
        pb_utils.unload_model(name)
        refused = request.exec()
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()),
            pb_utils.Tensor("READY", np.array([before, loaded, ready(name)])),
            pb_utils.Tensor("REFUSED", np.array([refused.error().message()], object)),
        ])]

ready = pb_utils.is_model_ready
"""


@pytest.fixture
def control(opened, write):
    config = configuration("STRING 1", {"OUT": "FP32 -1", "READY": "BOOL 3", "REFUSED": "STRING 1"})

    def control(name, *arguments, **models):
        harness = opened(CONTROL, config, models=models)
        config_json, files = (*arguments, None, None)[:2]
        return harness.infer(IN=[json.dumps([name, config_json or "", files])])

    return control


def test_models_are_loaded_at_first_and_can_be_unloaded(control, write):
    for other in (ModelHarness(write(DOUBLE, "other"), config=configuration()), lambda x: x * 2):
        result = control("other", other=other)
        assert result["OUT"].tolist() == [2.0]
        assert result["READY"].tolist() == [True, True, False]
        assert result["REFUSED"][0].endswith(b"Model 'other' is not ready.")


def test_a_model_is_loaded_with_another_configuration(control, write):
    other = ModelHarness(write(DOUBLE, "other"), config=configuration(parameters={}))
    result = control("other", json.dumps(configuration(outputs="FP32 1")), other=other)
    assert result["OUT"].tolist() == [2.0]


def test_a_model_is_loaded_from_files(control):
    source = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + DOUBLE
    result = control("made", json.dumps(configuration()), {"file:1/model.py": source})
    assert result["OUT"].tolist() == [2.0]
    assert result["READY"].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("nobody",),
            "Failed to load model: Failed to process the request for model 'm_0', message: failed to load "
            "'nobody', failed to poll from model repository: there is no such model",
        ),
        (
            ("made", None, {"file:1/model.py": "x"}),
            "Failed to load model: Failed to process the request for model 'm_0'",
        ),
        (("made", "{}", {"file:../../x": "x"}), "Failed to load model: "),
        (
            ("made", "{}", {"file:1/model.py": "1/0"}),
            "Failed to load model: Failed to process the request for model 'm_0'",
        ),
    ],
)
def test_models_that_cannot_be_loaded(control, arguments, text, snapshot):
    with pytest.raises(InferenceFailed) as caught:
        control(*arguments).raise_for_error()
    assert f"TritonModelException: {text}" in str(caught.value)
    assert str(caught.value) == snapshot


def test_whether_a_model_is_ready(front):
    harness = front(
        "ready = pb_utils.is_model_ready\n"
        "assert ready('other') and ready('m', '1') and not ready('m', '2') and ready('nobody') is False\n"
        "try:\n"
        "    ready('other', 'x')\n"
        "except pb_utils.TritonModelException as error:\n"
        "    self.errors.append(str(error))\n"
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.ones(1, np.float32))])]",
        other=lambda x: x,
    )
    harness.model.errors = []
    harness.infer(IN=[1]).raise_for_error()
    (version,) = harness.model.errors
    prefix = "Failed to check model readiness: Failed to process the request for model 'm_0', message: "
    assert version.startswith(prefix + "failed to get model version from specified version string 'x'")
