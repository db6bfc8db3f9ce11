"""Implicit state: tensors that the server keeps for a model from one request of a sequence to the next."""

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

LARGE = 5000
"""Elements of a state that does not travel inside a frame."""

ADDING = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if value.ravel()[0] == -1:
                raise ValueError("no")
            total = pb_utils.get_input_tensor_by_name(request, "TOTAL").as_numpy() + value.ravel()[0]
            if value.ravel()[0] == -2:
                total = total.astype(np.float64)
            out = pb_utils.Tensor("OUT", total.ravel()[:1].reshape(value.shape).astype(np.float32))
            outputs = [out] if value.ravel()[0] == -3 else [out, pb_utils.Tensor("NEXT", total)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
"""Keeps its total in a state; some numbers are wrong in some way."""

JOINING = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "WORDS").as_numpy()
            new = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().astype(int).astype(str).astype(object)
            words = np.concatenate([words.ravel(), new.ravel()]).reshape(1, -1)
            out = np.full((1, 1), len(b"".join(w if isinstance(w, bytes) else w.encode() for w in words.ravel())), np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out), pb_utils.Tensor("NEXT", words)]))
        return responses
"""

TENSORS = f"input [ {tensors(IN=('TYPE_FP32', [1]))} ] output [ {tensors(OUT=('TYPE_FP32', [1]))} ]"


def state(input_name, datatype, dims, initial=""):
    return f"""state [ {{ input_name: "{input_name}" output_name: "NEXT" data_type: {datatype} dims: {dims}
        {f"initial_state [ {{ name: 'zero' data_type: {datatype} {initial} }} ]" if initial else ""} }} ]"""


TOTAL = state("TOTAL", "TYPE_FP32", "[ 1 ]", "dims: [ 1 ] zero_data: true")
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 %s }"
MODELS = {
    "direct": f"max_batch_size: 4 {SEQUENCES % TOTAL}",
    "oldest": f"max_batch_size: 4 {SEQUENCES % ('oldest { max_candidate_sequences: 4 }' + TOTAL)}",
    "unbatched": SEQUENCES % state("TOTAL", "TYPE_FP32", "[ 1 ]"),
    "filed": SEQUENCES % state("TOTAL", "TYPE_FP32", "[ 1 ]", 'dims: [ 1 ] data_file: "seven"'),
    "large": f"max_batch_size: 2 {SEQUENCES % state('TOTAL', 'TYPE_FP32', f'[ {LARGE} ]')}",
    "checked": f'{SEQUENCES % TOTAL} parameters {{ key: "VALIDATE_OUTPUTS" value {{ string_value: "yes" }} }}',
}


@served()
def server(repository):
    for name, text in MODELS.items():
        directory = write_model(repository, name, ADDING, f'backend: "python" {TENSORS} {text}')
        if name == "filed":
            (directory / "initial_state").mkdir()
            (directory / "initial_state" / "seven").write_bytes(np.array([7], np.float32).tobytes())
    words = f"max_batch_size: 1 {SEQUENCES % state('WORDS', 'TYPE_STRING', '[ -1 ]')}"
    write_model(repository, "words", JOINING, f'backend: "python" {TENSORS} {words}')
    visible = TENSORS.replace("output [", f"output [ {tensors(NEXT=('TYPE_FP32', [1]))},")
    write_model(repository, "visible", ADDING, f'backend: "python" {visible} {SEQUENCES % TOTAL}')


def step(server, model, value, sequence_id=1, outputs=None, **flags):
    shape = (1, 1) if model in {"direct", "oldest", "large", "words"} else (1,)
    parameters = {"sequence_id": sequence_id, **{f"sequence_{name}": flag for name, flag in flags.items()}}
    members = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return infer(server, model, {"IN": np.full(shape, value, np.float32)}, parameters=parameters, **members)


def total(answer):
    assert set(answer.outputs) <= {"OUT"}, "the state is not for clients"
    return float(answer["OUT"].ravel()[0])


@pytest.mark.spec("srv-S17")
@pytest.mark.parametrize("model", ["direct", "oldest", "unbatched", "large", "checked"])
def test_a_state_goes_from_request_to_request(server, model):
    assert total(step(server, model, 5, start=True)) == 5
    assert (
        total(step(server, model, 2, sequence_id=2, start=True)) == 2 if model not in {"unbatched", "checked"} else True
    )
    assert total(step(server, model, 3)) == 8
    assert total(step(server, model, 1, outputs=["OUT"])) == 9
    assert total(step(server, model, 4, start=True)) == 4, "a sequence that begins again has a new state"
    assert total(step(server, model, 1, end=True)) == 5


@pytest.mark.spec("srv-S17")
def test_a_state_from_a_file(server):
    assert total(step(server, "filed", 1, start=True)) == 8
    assert total(step(server, "filed", 1, start=True, end=True)) == 8


def test_a_state_of_strings_that_grows(server):
    assert [total(step(server, "words", value, start=value == 5)) for value in (5, 66, 7)] == [1, 3, 4]


def test_a_state_that_is_an_output_too(server):
    answer = step(server, "visible", 5, start=True)
    assert float(answer["NEXT"][0]) == 5
    answer = step(server, "visible", 5, outputs=["OUT"], end=True)
    assert list(answer.outputs) == ["OUT"]


def test_what_fails_leaves_the_state_as_it_is(server):
    assert total(step(server, "direct", 5, start=True)) == 5
    assert step(server, "direct", -1).status == 500
    wrong = step(server, "direct", -2)
    assert (wrong.status, wrong.error) == (
        500,
        "model 'direct' returned state 'NEXT' as FP64 [1, 1], but its configuration says FP32 [1, 1]",
    )
    assert total(step(server, "direct", -3)) == 2, "a state that is not returned stays"
    assert total(step(server, "direct", 1, end=True)) == 6


@pytest.mark.parametrize(
    ("initial", "file", "text"),
    [
        ('data_file: "missing" dims: [ 1 ]', b"", "missing: No such file or directory"),
        ('data_file: "short" dims: [ 1 ]', b"12", "short has 2 bytes, the tensor 4"),
        ('data_file: "../config.pbtxt" dims: [ 1 ]', b"", "leaves "),
    ],
)
def test_initial_states_that_cannot_be_had(tmp_path, initial, file, text):
    config = SEQUENCES % state("TOTAL", "TYPE_FP32", "[ 1 ]", initial)
    directory = write_model(tmp_path, "m", ADDING, f'backend: "python" {TENSORS} {config}')
    (directory / "initial_state").mkdir()
    (directory / "initial_state" / "short").write_bytes(file)
    with serving(tmp_path, ready=False) as server:
        line = server.wait_for(r"cannot read the initial state of 'TOTAL' for m: .*")[0]
        assert text in line
