"""Memory of models that call models: what a call takes comes back with it, and what a model keeps stays as it was."""

from pathlib import Path

import numpy as np
import pytest

from pybackend_wire.messages import INLINE_BYTES
from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.inference import infer
from tests.support.repositories import write_model
from tests.support.served import served

MB = 1_000_000

BYTES = f"""
backend: "python"
input [ {{ name: "DATA" data_type: TYPE_UINT8 dims: -1 }} ]
output [ {{ name: "DATA" data_type: TYPE_UINT8 dims: -1 }} ]
{ONE}
"""
LAYER = (
    HELPERS
    + """
class TritonPythonModel:
    # Passes its input on to the model below, and the answer back.
    def initialize(self, args):
        self.below = json.loads(args["model_config"])["parameters"]["below"]["string_value"]

    def execute(self, requests):
        return [call(self.below, inputs=request.inputs()).exec() for request in requests]
"""
)
MANY_OUTPUTS = """
class TritonPythonModel:
    # As many outputs as the input says, each as large as a frame carries.
    def execute(self, requests):
        (count,) = requests[0].inputs()[0].as_numpy().astype(int).tolist()
        array = np.arange(INLINE_BYTES, dtype=np.uint8)
        outputs = [pb_utils.Tensor(f"OUT{number}", array + np.uint8(number % 256)) for number in range(count)]
        return [pb_utils.InferenceResponse(outputs)]
""".replace("INLINE_BYTES", str(INLINE_BYTES))
MANY_INPUTS = """
class TritonPythonModel:
    # The sum of each input's first two bytes, in order; half of them reach beyond what a frame carries.
    def execute(self, requests):
        sums = [int(tensor.as_numpy()[:2].sum()) for tensor in requests[0].inputs()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SUMS", np.array(sums, np.int64))])]
"""
OUTPUTS, INPUTS = 400, 4500
"""3.3 MB in small outputs, and with its 37 MB more in small inputs than go into one frame."""


@served(all_survive=True)
def server(repository):
    write_caller(repository)
    write_targets(repository, "double", "bytes", "repeat")
    for name, below in (("outer", "middle"), ("middle", "inner"), ("inner", "bytes")):
        write_model(
            repository, name, LAYER, f'{BYTES} parameters {{ key: "below" value {{ string_value: "{below}" }} }}'
        )
    outputs = ", ".join(f'{{ name: "OUT{number}" data_type: TYPE_UINT8 dims: -1 }}' for number in range(OUTPUTS))
    count = 'input [ { name: "IN" data_type: TYPE_FP32 dims: -1 } ]'
    write_model(repository, "many_outputs", MANY_OUTPUTS, f'backend: "python"\n{count} output [ {outputs} ] {ONE}')
    inputs = ", ".join(f'{{ name: "I{number}" data_type: TYPE_UINT8 dims: -1 }}' for number in range(INPUTS))
    sums = 'output [ { name: "SUMS" data_type: TYPE_INT64 dims: -1 } ]'
    write_model(repository, "many_inputs", MANY_INPUTS, f'backend: "python"\ninput [ {inputs} ] {sums} {ONE}')


@pytest.fixture(scope="module")
def lab(server):
    return caller(server)


def memory_bytes(server):
    """What the server and its models hold together, memory that several of them map counted once."""
    total = 0
    for pid in (server.process.pid, *server.stub_pids()):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):  # not the libraries, which other processes may share
                total += int(line.split()[1]) * 1024
    return total


@pytest.fixture
def growth(server):
    """By how many bytes a function's second call makes the server grow; the first one takes what is kept for reuse."""

    def measure(function, *first):
        function(*first)
        before = memory_bytes(server)
        function()
        return memory_bytes(server) - before

    return measure


# --- Nothing grows ---


@pytest.mark.thorough
@pytest.mark.spec("pb-B10")
def test_fifty_calls_of_40_mb(lab, growth):
    code = """
    array = np.zeros(40_000_000, np.uint8)
    for number in range(COUNT):
        array[::4096] = number
        output = call("bytes", DATA=array).exec().output_tensors()[0].as_numpy()
        assert output.size == array.size and (output[::1_000_000] == array[::1_000_000]).all()
    return 0
    """
    assert growth(lambda count=46: lab(code.replace("COUNT", str(count))), 4) < 20 * MB


@pytest.mark.spec("pb-B10")
def test_16_mb_through_three_models(server, growth):
    array = np.arange(16 * MB, dtype=np.uint8)

    def ask(count=10):
        for _ in range(count):
            assert np.array_equal(infer(server, "outer", {"DATA": array})["DATA"], array)

    assert growth(ask, 3) < 30 * MB


def test_an_output_of_a_call_as_own_output(server, growth):
    array = np.arange(10 * MB, dtype=np.uint8)
    code = "return call('bytes', inputs=[DATA_tensor]).exec().output_tensors()"

    def ask(count=15):
        for _ in range(count):
            assert np.array_equal(sender(server)(code, DATA=array)["DATA"], array)

    assert growth(ask, 3) < 20 * MB


@pytest.mark.spec("pb-B10")
def test_many_small_calls(lab, growth):
    code = """
    for number in range(600):
        assert value(call("double", IN=[number]).exec()) == [2 * number]
        assert call("nobody").exec().has_error()
    return 0
    """
    assert growth(lambda: lab(code)) < 2 * MB


def test_many_streams(lab, growth):
    code = """
    for number in range(150):
        iterator = call("repeat", IN=[20]).exec(decoupled=True)
        if number % 3:
            list(iterator)
    return 0
    """
    assert growth(lambda: lab(code)) < 2 * MB


def test_calls_that_are_refused(lab, growth):
    """Their inputs lie in shared memory already."""
    code = """
    array = np.zeros(8_000_000, np.uint8)
    for _ in range(10):
        for refused in (call("nobody", DATA=array), call("bytes", X=array), call("bytes", inputs=[tensor("DATA", array)] * 2)):
            assert refused.exec().has_error()
    return 0
    """
    assert growth(lambda: lab(code)) < 10 * MB


# --- What is kept ---


@pytest.mark.spec("pb-B10")
@pytest.mark.parametrize("size", [100, 30_000, 5 * MB], ids=["in_frame", "in_memory", "off_the_loop"])
def test_outputs_that_are_kept_beyond_the_request(lab, size):
    keep = f"""
    state["kept"] = []
    for number in range(5):
        response = call("bytes", DATA=np.full({size}, number, np.uint8)).exec()
        state["kept"].append((response, response.output_tensors()[0].as_numpy()))
    return 0
    """
    disturb = f"""
    for number in range(20):
        call("bytes", DATA=np.full({size}, 255, np.uint8)).exec().output_tensors()[0].as_numpy()
    return 0
    """
    look = """
    def look(response, array):
        (tensor,) = response.output_tensors()
        return [bool((array == array[0]).all()), int(array[0]), bool((tensor.as_numpy() == array).all())]
    return [look(*kept) for kept in state.pop("kept")]
    """
    assert [lab(keep), lab(disturb), lab(disturb)] == [0, 0, 0]
    assert lab(look) == [[True, number, True] for number in range(5)]


def test_what_was_kept_comes_back(server, lab):
    keep = """
    state["kept"] = [call("bytes", DATA=np.ones(20_000_000, np.uint8)).exec() for _ in range(6)]
    return 0
    """
    lab(keep)
    held = memory_bytes(server)
    for _ in range(3):  # into the memory that the ones before have left
        lab("state.clear()\nreturn 0")
        lab(keep)
    assert memory_bytes(server) < held + 25 * MB
    lab("state.clear()\nreturn 0")


def test_an_input_that_is_kept_and_sent_later(lab):
    keep = "state['kept'] = [DATA_tensor, DATA]\nreturn 0"
    array = np.arange(100_000, dtype=np.uint8)
    lab(keep, DATA=array)
    for number in range(10):
        lab("return 0", DATA=np.full(100_000, number, np.uint8))
    code = """
    tensor, data = state.pop("kept")
    (output,) = call("bytes", inputs=[tensor]).exec().output_tensors()
    return [bool(np.array_equal(output.as_numpy(), data)), int(data[100]), int(data.sum())]
    """
    assert lab(code) == [True, 100, int(array.sum())]


# --- Many small tensors in one message ---


def test_many_small_outputs(lab):
    code = f"""
    response = call("many_outputs", IN=[{OUTPUTS}]).exec()
    assert not response.has_error(), response.error().message()
    outputs = response.output_tensors()
    expected = np.arange({INLINE_BYTES}, dtype=np.uint8)
    return [bool((output.as_numpy() == expected + np.uint8(number % 256)).all()) for number, output in enumerate(outputs)]
    """
    assert lab(code) == [True] * OUTPUTS


def test_more_small_inputs_than_a_frame_carries(lab):
    code = f"""
    arrays = {{f"I{{number}}": np.full({INLINE_BYTES} + number % 2, number % 100, np.uint8) for number in range({INPUTS})}}
    return value(call("many_inputs", **arrays).exec(), "SUMS")
    """
    assert lab(code) == [2 * (number % 100) for number in range(INPUTS)]


def test_one_small_output_does_not_hold_the_others(lab, growth):
    """All of them came in one piece."""
    code = f"""
    state["kept"] = []
    for _ in range(30):
        state["kept"].append(call("many_outputs", IN=[{OUTPUTS}]).exec().output_tensors()[7].as_numpy())
    assert all((array == np.arange(7, {INLINE_BYTES} + 7).astype(np.uint8)).all() for array in state["kept"])
    return 0
    """
    lab("call('many_outputs', IN=[400]).exec()\nreturn 0")
    assert growth(lambda code=code: lab(code), "return 0") < 30 * INLINE_BYTES + 10 * MB
    lab("state.clear()\nreturn 0")
