"""Models that run other models and wait for them: results, errors, what of a request reaches the other model, nesting."""

import threading

import numpy as np
import pytest

from pybackend_wire.messages import INLINE_BYTES
from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.inference import infer
from tests.support.repositories import alone, write_model
from tests.support.server import serving

CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]
STATUS = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNSUPPORTED": 501}
LARGE = INLINE_BYTES // 4 + 1
"""As many floats as do not fit into a frame."""

SIMPLE = f"""
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} ]
{ONE}
"""
WRONG = f"""
CODES = {CODES}


class TritonPythonModel:
    # IN[0]: 0..7 answers with an error of that code, 8 raises, 9 returns nonsense, 10 dies.
    def execute(self, requests):
        number = int(requests[0].inputs()[0].as_numpy()[0])
        if number < 8:
            error = pb_utils.TritonError("failure %d" % number, getattr(pb_utils.TritonError, CODES[number]))
            return [pb_utils.InferenceResponse([], error)]
        if number == 8:
            raise ValueError("deep inside")
        if number == 10:
            import os
            os._exit(7)
        return ()
"""
TYPES = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT16": np.array([-(2**15), 5], np.int16),
    "INT64": np.array([-(2**63), 5], np.int64),
    "FP16": np.array([65504, -0.0], np.float16),
    "FP32": np.array([np.inf, 1e-45], np.float32),
    "FP64": np.array([5e-324, 1.7e308]),
}
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
ECHO_TENSORS = ", ".join(
    f'{{ name: "{name}" data_type: TYPE_{name} dims: -1 OPTIONAL }}' for name in [*TYPES, "STRING", "BF16"]
)
ECHO_CONFIG = f"""
input [ {ECHO_TENSORS.replace("OPTIONAL", "optional: true")} ]
output [ {ECHO_TENSORS.replace("OPTIONAL", "")} ]
{ONE}
"""
VERSION = """
class TritonPythonModel:
    def initialize(self, args):
        self.version = float(args["model_version"])

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.version], np.float32))]) for _ in requests]
"""
COUNTDOWN = (
    HELPERS
    + """
class TritonPythonModel:
    # Calls itself as often as its parameter says; the answer lists the process of every level.
    def execute(self, requests):
        return [self.run(json.loads(request.parameters()).get("depth", 0)) for request in requests]

    def run(self, depth):
        pids = [float(os.getpid())]
        if depth:
            below = call("countdown", parameters={"depth": depth - 1}).exec()
            if below.has_error():
                return pb_utils.InferenceResponse(error=below.error())
            pids += value(below)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(pids, np.float64))])
"""
)
LAYER = (
    HELPERS
    + """
class TritonPythonModel:
    # Adds one to what the model below makes of the input.
    def initialize(self, args):
        self.below = json.loads(args["model_config"])["parameters"]["below"]["string_value"]

    def execute(self, requests):
        return [self.run(request) for request in requests]

    def run(self, request):
        below = call(self.below, inputs=request.inputs()).exec()
        if below.has_error():
            return pb_utils.InferenceResponse(error=below.error())
        return [pb_utils.InferenceResponse([tensor("OUT", pb_utils.get_output_tensor_by_name(below, "OUT").as_numpy() + 1)])][0]
"""
)
UNREADY = (
    ECHO
    + """
    def is_ready(self):
        return False
"""
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bls")
    write_caller(repository)
    write_targets(repository, "double", "repeat", "describe")

    def write(name, code, config=SIMPLE, **options):
        write_model(repository, name, code, f'backend: "python"\n{config}', **options)

    write("wrong", WRONG)
    write("echo", ECHO, ECHO_CONFIG)
    write("batched", ECHO, SIMPLE.replace('"OUT"', '"IN"') + "max_batch_size: 4")
    for version in (1, 3):
        write("versions", VERSION, SIMPLE + "version_policy { all {} }", version=version)
    write("unready", UNREADY)
    several = SIMPLE.replace(ONE, "instance_group { count: 4 kind: KIND_CPU }").replace(
        "dims: -1 }", "dims: -1 optional: true }", 1
    )
    write("countdown", COUNTDOWN, several.replace("FP32 dims: -1 } ]\ninstance", "FP64 dims: -1 } ]\ninstance"))
    for name, below in (("top", "middle"), ("middle", "bottom"), ("bottom", "double"), ("shaky", "wrong")):
        write(name, LAYER, f'{SIMPLE} parameters {{ key: "below" value {{ string_value: "{below}" }} }}')
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--strict-readiness=false",)) as server:
        yield server
        assert "broke the protocol" not in server.output


@pytest.fixture(scope="module")
def lab(server):
    return caller(server)


# --- Results ---


@pytest.mark.spec("pb-B01")
@pytest.mark.parametrize("size", [3, LARGE, 1_000_000], ids=["in_frame", "in_memory", "off_the_loop"])
def test_a_call_and_its_result(lab, size):
    code = """
    response = call("double", IN=IN).exec()
    assert type(response) is pb_utils.InferenceResponse and not response.has_error() and response.error() is None
    (output,) = response.output_tensors()
    array = output.as_numpy()
    assert output.name() == "OUT" and array.dtype == np.float32 and output.is_cpu()
    assert np.array_equal(array, IN * 2)
    array += 1  # it is the model's own
    return [output.shape(), float(array.sum())]
    """
    array = np.arange(size, dtype=np.float32) % 1000
    shape, total = lab(code, IN=array)
    assert shape == [size]
    assert total == pytest.approx(float((array.astype(float) * 2 + 1).sum()))


@pytest.mark.spec("pb-B01")
@pytest.mark.parametrize("size", [2, LARGE], ids=["in_frame", "in_memory"])
def test_inputs_and_outputs_pass_through(server, size):
    """The client's input goes on to another model, its output back to the client; neither is looked at."""
    code = """
    response = call("double", inputs=[IN_tensor]).exec()
    return pb_utils.InferenceResponse(response.output_tensors())
    """
    array = np.arange(size, dtype=np.float32)
    assert np.array_equal(sender(server)(code, IN=array)["OUT"], array * 2)


def test_every_datatype(lab):
    code = """
    arrays = ARRAYS
    response = call("echo", **arrays).exec()
    for output in response.output_tensors():
        array = output.as_numpy()
        assert array.dtype == arrays[output.name()].dtype, output.name()
        assert array.tobytes() == arrays[output.name()].tobytes(), output.name()
    return [output.name() for output in response.output_tensors()]
    """
    arrays = ", ".join(
        f"'{name}': np.frombuffer({array.tobytes()!r}, '{array.dtype.str}').copy()" for name, array in TYPES.items()
    )
    assert lab(code.replace("ARRAYS", f"{{{arrays}}}")) == list(TYPES)


def test_text(lab):
    code = """
    texts = np.array([b"", "gr\\u00fc\\u00df", b"\\x00\\xff\\x00", None, 5, "x" * 20_000], object)
    found = call("echo", STRING=texts).exec().output_tensors()[0].as_numpy()
    assert found.dtype == object and found.shape == (6,)
    return [repr(item) for item in found[:5]] + [len(found[5])]
    """
    expected = [b"", "gr\u00fc\u00df".encode(), b"\x00\xff\x00", b"None", b"5"]
    assert lab(code) == [*map(repr, expected), 20_000]


@pytest.mark.parametrize("name", ["FP32", "STRING"])
def test_empty_tensors(lab, name):
    dtype = "object" if name == "STRING" else "np.float32"
    code = f"""
    (output,) = call("echo", {name}=np.zeros(0, {dtype})).exec().output_tensors()
    return [output.name(), output.shape(), output.as_numpy().size]
    """
    assert lab(code) == [name, [0], 0]


def test_no_tensors_at_all(lab):
    code = """
    response = call("echo").exec()
    return [response.has_error(), response.output_tensors(), response.parameters()]
    """
    assert lab(code) == [False, [], "{}"]


@pytest.mark.parametrize("size", [3, INLINE_BYTES], ids=["in_frame", "in_memory"])
def test_bf16_from_a_client_to_a_model_and_back(server, size):
    """No library is needed as long as nobody looks at the numbers."""
    code = """
    assert BF16_tensor.shape() == call("echo", inputs=[BF16_tensor]).exec().output_tensors()[0].shape()
    return call("echo", inputs=[pb_utils.Tensor.from_dlpack("BF16", BF16_tensor)]).exec()
    """
    bits = np.arange(size, dtype=np.uint16)
    assert np.array_equal(sender(server)(code, BF16=("BF16", bits))["BF16"], bits)


@pytest.mark.torch
def test_bf16_by_torch(lab):
    code = """
    import torch
    numbers = torch.tensor([1.5, -2, float("inf")], dtype=torch.bfloat16)
    (output,) = call("echo", inputs=[pb_utils.Tensor.from_dlpack("BF16", numbers)]).exec().output_tensors()
    return torch.from_dlpack(output).tolist() == numbers.tolist()
    """
    assert lab(code) is True


def test_strided_arrays(lab):
    code = """
    block = np.arange(20, dtype=np.float32).reshape(4, 5)
    return [value(call("double", IN=block[:, 2]).exec()), value(call("double", IN=block[1, ::-2]).exec())]
    """
    assert lab(code) == [[4, 14, 24, 34], [18, 14, 10]]


def test_preferred_memory_is_taken_note_of(lab):
    """Outputs are on the CPU, whatever was asked for, as on every machine without a GPU."""
    code = """
    found = []
    for kind in (pb_utils.TRITONSERVER_MEMORY_CPU, pb_utils.TRITONSERVER_MEMORY_GPU):
        memory = pb_utils.PreferredMemory(kind, 0)
        (output,) = call("double", IN=[1, 2], preferred_memory=memory).exec().output_tensors()
        found += [output.is_cpu(), output.as_numpy().tolist()]
    return found
    """
    assert lab(code) == [True, [2, 4], True, [2, 4]]


def test_trace_is_passed_on(lab):
    code = """
    trace = request.trace()
    return [trace.get_context(), value(call("double", IN=[1], trace=trace).exec())]
    """
    assert lab(code) == [None, [2]]


@pytest.mark.spec("pb-B01")
@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        pytest.param([], ["OUT0", "OUT1", "OUT2"], id="none_named"),
        pytest.param(["OUT1"], ["OUT1"], id="one"),
        pytest.param(["OUT2", "OUT0"], ["OUT0", "OUT2"], id="two"),
        pytest.param(["OUT2", "OUT2"], ["OUT2"], id="one_twice"),
    ],
)
def test_outputs_that_are_asked_for(lab, requested, expected):
    code = f"""
    request = call("describe", {requested}, IN=[1])
    response = request.exec()
    names = [output.name() for output in response.output_tensors()]
    return [names, json.loads(value(response, names[0])[0])["requested"], sorted(request.requested_output_names())]
    """
    assert lab(code) == [expected, expected, sorted(set(requested))]


@pytest.mark.spec("pb-B01")
def test_one_request_many_times(lab):
    code = """
    request = call("double", IN=[1, 2])
    one_by_one = [value(request.exec()) for _ in range(3)]
    at_once = in_threads(lambda _: value(request.exec()), *range(4))
    return one_by_one + at_once
    """
    assert lab(code) == [[2, 4]] * 7


def test_edits_of_an_input_between_two_calls(lab):
    """An array is read when the request is sent."""
    code = """
    array = np.array([1, 2], np.float32)
    request = call("double", IN=array)
    first = request.exec()
    array[:] = 10
    return [value(first), value(request.exec()), array.tolist()]
    """
    assert lab(code) == [[2, 4], [20, 20], [10, 10]]


@pytest.mark.parametrize(("version", "expected"), [(-1, 3), (1, 1), (3, 3)])
def test_versions(lab, version, expected):
    assert lab(f"return value(call('versions', IN=[0], model_version={version}).exec())") == [expected]


def test_many_calls_one_after_another(lab):
    code = """
    total = 0
    for number in range(500):
        total += value(call("double", IN=[number]).exec())[0]
    return total
    """
    assert lab(code) == 2 * sum(range(500))


# --- Errors ---


@pytest.mark.spec("pb-B01")
@pytest.mark.parametrize("number", range(len(CODES)), ids=CODES)
def test_an_error_of_the_other_model_keeps_code_and_text(server, lab, number):
    code = f"""
    response = call("wrong", IN=[{number}]).exec()
    error = response.error()
    assert type(error) is pb_utils.TritonError and error.code() == {number} == int(error.code())
    return failure(response)
    """
    assert lab(code) == [CODES[number], f"failure {number}"]
    answer = sender(server)(f"return pb_utils.InferenceResponse(error=call('wrong', IN=[{number}]).exec().error())")
    assert (answer.status, answer.error) == (STATUS.get(CODES[number], 400), f"failure {number}")


@pytest.mark.spec("pb-B01")
@pytest.mark.parametrize(
    ("number", "text"),
    [
        pytest.param(8, "message: ValueError: deep inside\n\nAt:\n", id="raises"),
        pytest.param(
            9, "message: Expected a list in the execute return, found type '<class 'tuple'>'.", id="returns_nonsense"
        ),
    ],
)
def test_an_exception_in_the_other_model(lab, number, text):
    code, message = lab(f"return failure(call('wrong', IN=[{number}]).exec())")
    assert code == "INTERNAL"
    assert message.startswith("Failed to process the request(s) for model 'wrong_0_0', ")
    assert text in message


@alone
def test_a_model_that_dies(server, lab):
    answer = lab("return failure(call('wrong', IN=[10]).exec())")
    assert answer == ["INTERNAL", "Stub process 'wrong_0_0' is not healthy. The process exited with status 7."]
    # A call waits for the restart as any request does, or is refused while there is no process.
    server.wait_until("/v2/models/wrong/ready", 200)
    assert lab("return failure(call('wrong', IN=[2]).exec())") == ["NOT_FOUND", "failure 2"]


@pytest.mark.spec("pb-B02")
@pytest.mark.parametrize(
    ("expression", "text"),
    [
        pytest.param(
            "call('nobody', IN=[1])",
            "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not "
            "ready. Request for unknown model: 'nobody' is not found",
            id="unknown_model",
        ),
        pytest.param(
            "call('double')",
            "Model double - Error when running inference: [request id: <id_unknown>] expected 1 inputs but got 0 inputs "
            "for model 'double'.",
            id="no_input",
        ),
        pytest.param(
            "call('double', IN=[1], TEXT=['x'], request_id='mine')",
            "Model double - Error when running inference: [request id: mine] expected 1 inputs but got 2 inputs for model "
            "'double'.",
            id="too_many_inputs",
        ),
        pytest.param(
            "call('double', TEXT=['x'])",
            "Model double - Error when running inference: unexpected inference input 'TEXT' for model 'double'",
            id="unknown_input",
        ),
        pytest.param(
            "call('double', ['OUT', 'X'], IN=[1])",
            "Model double - Error when running inference: unexpected inference output 'X' for model 'double'",
            id="unknown_output",
        ),
        pytest.param(
            "call('double', IN=np.zeros(1, np.int8))",
            "Model double - Error when running inference: [request id: <id_unknown>] inference input 'IN' data-type is "
            "'INT8', but model 'double' expects 'FP32'",
            id="datatype",
        ),
        pytest.param(
            "call('double', IN=np.zeros((1, 2), np.float32))",
            "Model double - Error when running inference: [request id: <id_unknown>] unexpected shape for input 'IN' for "
            "model 'double'. Expected [-1], got [1,2].",
            id="shape",
        ),
        pytest.param(
            "call('batched', IN=np.zeros((5, 2), np.float32))",
            "Model batched - Error when running inference: [request id: <id_unknown>] inference request batch-size must "
            "be <= 4 for 'batched'",
            id="batch_size",
        ),
        pytest.param(
            "call('double', inputs=[tensor('IN', [1]), tensor('IN', [1])])",
            "Model double - Error when running inference: an input is given twice for model 'double'",
            id="input_twice",
        ),
        pytest.param(
            "call('double', inputs=[tensor('IN', np.ones(3000, np.float32))] * 2)",
            "Model double - Error when running inference: an input is given twice for model 'double'",
            id="large_input_twice",
        ),
        pytest.param(
            "call('versions', IN=[1], model_version=2)",
            "Model versions - Error when running inference: Failed for execute the inference request. Model 'versions' is "
            "not ready. Request for unknown model: 'versions' version 2 is not found",
            id="unknown_version",
        ),
        pytest.param(
            "call('double', IN=[1], model_version=-7)",
            "",
            id="negative_version",
        ),
        pytest.param(
            "call('unready', IN=[1])",
            "Model unready - Error when running inference: Failed for execute the inference request. Model 'unready' is "
            "not ready.",
            id="not_ready",
        ),
        pytest.param(
            "call('repeat', IN=[1])",
            "Model repeat is using the decoupled. The current BLS request call doesn't support models using the decoupled "
            "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
            "models.'",
            id="decoupled",
        ),
    ],
)
def test_a_call_that_does_not_reach_the_other_model(lab, expression, text, snapshot):
    if not text:
        assert lab(f"return value({expression}.exec())") == [2]  # any negative number lets the server choose
        return
    _, message = lab(f"return failure({expression}.exec())")
    assert message.startswith(text)
    assert message == snapshot


@pytest.mark.spec("pb-B01", "pb-B02")
def test_the_same_errors_through_an_iterator(lab):
    code = """
    iterators = [call(name, IN=[3]).exec(decoupled=True) for name in ("nobody", "wrong", "double")]
    return [[seen(response) for response in iterator] for iterator in iterators]
    """
    unknown, wrong, double = lab(code)
    assert [len(unknown), len(wrong)] == [1, 1]
    assert unknown[0][0] == "INTERNAL"
    assert unknown[0][1].startswith(
        "Model nobody - Error when running inference: Failed for execute the inference request."
    )
    assert wrong[0] == ["INVALID_ARG", "failure 3"]
    assert double == [{"OUT": [6]}]


@pytest.mark.spec("pb-B06")
def test_decoupled_model_without_the_flag(lab):
    """The error says how to call it, and calling it so works."""
    code = """
    refused = failure(call("repeat", IN=[2]).exec())
    return [refused, [value(response) for response in call("repeat", IN=[2]).exec(decoupled=True)]]
    """
    (code, message), responses = lab(code)
    assert code == "INTERNAL"
    assert "Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled models.'" in message
    assert responses == [[0], [1], None]


def test_a_request_that_execute_was_given(lab):
    code = """
    return raised(request.exec) + raised(request.exec, decoupled=True)
    """
    kind, message, *again = lab(code)
    assert kind == "TritonModelException"
    assert message.startswith(
        "A request that was passed to 'execute' cannot be executed again: build an InferenceRequest"
    )
    assert again == [kind, message]


# --- Nested ---


@pytest.mark.spec("pb-B01")
def test_four_models_in_a_row(server, lab):
    assert lab("return value(call('top', IN=[1, 2]).exec())") == [2 + 3, 4 + 3]
    array = np.ones(LARGE, np.float32)
    assert np.array_equal(infer(server, "top", {"IN": array})["OUT"], array * 2 + 3)


def test_errors_come_through_several_models(server):
    answer = infer(server, "shaky", {"IN": np.array([2], np.float32)})
    assert (answer.status, answer.error) == (404, "failure 2")


@pytest.mark.spec("pb-B12")
@pytest.mark.parametrize("depth", range(4))
def test_a_model_that_calls_itself(server, depth):
    answer = infer(server, "countdown", {}, parameters={"depth": depth})
    assert len(set(answer["OUT"].tolist())) == depth + 1, "each level has a process of its own"


def test_a_model_that_calls_itself_for_many_clients(server):
    found = []

    def ask():
        found.extend([infer(server, "countdown", {}, parameters={"depth": 1}) for _ in range(5)])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(set(answer["OUT"].tolist())) for answer in found] == [2] * 15
