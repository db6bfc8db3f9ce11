"""The same model in a server and in a harness gives the same answers, the same errors and the same texts."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pybackend_testing import InputError, LoadError, ModelHarness
from tests.support.inference import infer, strings
from tests.support.laboratory import write_laboratory
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

pytestmark = pytest.mark.filterwarnings("ignore::pybackend_testing.OutputWarning")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STATUS = {"INTERNAL": 500, "NOT_FOUND": 404, "UNAVAILABLE": 503, "UNSUPPORTED": 501}

REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("no weights")
"""
ONE_TENSOR = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
"""
CALL = """
def call(name, *names, decoupled=False, outputs=("OUT",), **arrays):
    inputs = [pb_utils.Tensor(key, value) for key, value in arrays.items()]
    request = pb_utils.InferenceRequest(model_name=name, inputs=inputs, requested_output_names=list(outputs))
    return request.exec(decoupled=decoupled)

ones = np.ones(4, np.float32)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("agreement")
    for example in ("add_sub", "string_upper"):
        shutil.copytree(EXAMPLES / example / "model_repository" / example, directory / example)
    write_laboratory(directory)
    write_model(directory, "repeat", REPEAT, ONE_TENSOR + "model_transaction_policy { decoupled: true }")
    write_model(directory, "broken", BROKEN, ONE_TENSOR)
    return directory


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        for model in ("add_sub", "string_upper", "laboratory", "repeat"):
            server.wait_until(f"/v2/models/{model}/ready", 200)
        yield server


@pytest.fixture(scope="module")
def harnesses(repository):
    """Every model that serves, each knowing the others."""
    others = {name: repository / name for name in ("add_sub", "string_upper", "repeat")}
    with ModelHarness(repository / "laboratory", models=others, strict=False) as harness:
        yield {"laboratory": harness, **{name: harness.models[name] for name in others}}


def _both(server, harnesses, model, inputs, **members):
    """What a server's client sees, and what a harness shows: status, error, outputs, parameters."""
    answer = infer(server, model, inputs, **members)
    arguments = {
        "request_id": members.pop("id", ""),
        "outputs": [o["name"] for o in members.pop("outputs", ())] or None,
    }
    result = harnesses[model].infer(inputs, **arguments, **members)
    error = result.error
    shown = {
        "status": 200 if error is None else STATUS.get(error.code().name, 400),
        "error": None if error is None else error.message(),
        "outputs": {} if error else {name: array.tolist() for name, array in result.outputs.items()},
        "parameters": result.parameters,
    }
    seen = {
        "status": answer.status,
        "error": None if answer.status == 200 else answer.error,
        "outputs": {name: array.tolist() for name, array in answer.outputs.items()},
        "parameters": {k: v for k, v in answer.document.get("parameters", {}).items() if k != "binary_data_output"},
    }
    return seen, shown


def _agree(server, harnesses, model, inputs, **members):
    seen, shown = _both(server, harnesses, model, inputs, **members)
    assert shown == seen
    return seen


FOUR = np.arange(4, dtype=np.float32)


def test_add_sub(server, harnesses):
    seen = _agree(server, harnesses, "add_sub", {"INPUT0": FOUR, "INPUT1": FOUR * 2})
    assert seen["outputs"]["OUTPUT0"] == [0, 3, 6, 9]
    seen = _agree(server, harnesses, "add_sub", {"INPUT0": FOUR, "INPUT1": FOUR}, outputs=[{"name": "OUTPUT1"}])
    assert list(seen["outputs"]) == ["OUTPUT1"]


@pytest.mark.parametrize("elements", [["hello", "größe", ""], [b"\xff"], []])
def test_string_upper(server, harnesses, elements):
    _agree(server, harnesses, "string_upper", {"TEXT": strings(*elements)})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return out(OUT=np.ones(3, np.float32))", [1, 1, 1]),
        ("return out(OUT=text('a', 5, None))", [b"a", b"5", b"None"]),
        ("return out(OUT0=np.zeros((2, 0)), OUT1=np.array(7, np.int8), MORE=np.ones(1))", None),
        ("array('FP32')[0] = 9\nreturn out(OUT=array('FP32'))", [9, 1, 2, 3]),
        ("return out(OUT=text(request.request_id(), request.parameters(), sorted(request.requested_output_names())))", None),
        ("return out(OUT=text(request.correlation_id(), request.flags(), request.timeout(), request.is_cancelled()))", None),
        ("return out(OUT=text(*map(type, (request.inputs(), tensor('FP32').shape(), array('FP32').flags.writeable))))", None),
        ("return [pb_utils.InferenceResponse(parameters={'k': 1, 'on': True, 's': 'x'})]", None),
        ("sender = request.get_response_sender()\nsender.send(out(OUT=np.ones(1))[0], flags=1)\nreturn None", [1]),
        ("request.get_response_sender().send(out(OUT=np.ones(1))[0])\nreturn out(OUT=np.zeros(1))", [1]),
    ],
)  # fmt: skip
def test_answers(server, harnesses, code, expected):
    inputs = {"CODE": strings(code), "FP32": FOUR}
    seen = _agree(server, harnesses, "laboratory", inputs, id="r1", parameters={"p": "x", "n": 1})
    assert seen["status"] == 200, seen
    if expected is not None:
        assert seen["outputs"]["OUT"] == expected


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('xyz')",
        "raise SystemExit(3)",
        "raise pb_utils.TritonModelException('no')",
        "return None",
        "return [None]",
        "return ()",
        "return []",
        "return ['text']",
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND))]",
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.UNSUPPORTED))]",
        "pb_utils.Tensor('', np.ones(1))",
        "pb_utils.Tensor('OUT', [1])",
        "request.set_release_flags(2)\nreturn [None]",
        "request.set_release_flags(2)\nreturn out()",
        "request.get_response_sender()\nreturn None",
        "request.get_response_sender().send(flags=1)",
        "request.get_response_sender().send(flags=4)",
        "request.exec()",
        "pb_utils.MetricFamily('0', '', pb_utils.MetricFamily.COUNTER)",
        "pb_utils.MetricFamily('c', '', pb_utils.MetricFamily.COUNTER).Metric().increment(-1)",
        "pb_utils.MetricFamily('g', '', pb_utils.MetricFamily.GAUGE).Metric(buckets=[1])",
        "return [pb_utils.InferenceResponse(parameters={'k': 1.5})]",
        "pb_utils.get_input_tensor_by_name(request, 'CODDE').as_numpy()",
        "raise pb_utils.TritonError('no')",
    ],
)
def test_errors(server, harnesses, code):
    seen = _agree(server, harnesses, "laboratory", {"CODE": strings(code)})
    assert seen["status"] != 200, seen


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("add_sub", {"INPUT0": FOUR}),
        ("add_sub", {"INPUT0": FOUR, "WRONG": FOUR}),
        ("add_sub", {"INPUT0": FOUR, "INPUT1": FOUR.astype(np.float64)}),
        ("add_sub", {"INPUT0": FOUR, "INPUT1": FOUR[:3]}),
        ("add_sub", {"INPUT0": FOUR, "INPUT1": FOUR[np.newaxis]}),
        ("string_upper", {"TEXT": FOUR}),
    ],
)
def test_requests_that_do_not_fit(server, harnesses, model, inputs):
    """The harness says what the server says, and then what to do."""
    answer = infer(server, model, inputs)
    assert answer.status == 400
    said = (
        answer.error.removeprefix("[request id: <id_unknown>] ")
        .partition(" NOTE: ")[0]
        .partition(" Its inputs are ")[0]
        .partition(": `.astype(")[0]
    )
    with pytest.raises(InputError) as caught:
        harnesses[model].infer(inputs)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("r = call('add_sub', outputs=['OUTPUT0'], INPUT0=ones, INPUT1=ones)", [2, 2, 2, 2]),
        ("r = call('string_upper', outputs=['UPPER'], TEXT=np.array(['a', b'b'], object))", [b"A", b"B"]),
        ("r = list(call('add_sub', outputs=['OUTPUT1'], decoupled=True, INPUT0=ones, INPUT1=ones))[0]", [0, 0, 0, 0]),
        (
            "rs = list(call('repeat', decoupled=True, IN=np.array([3], np.float32)))\n"
            "r = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([len(x.output_tensors()) for x in rs]))])",
            [1, 1, 1, 0],
        ),
        (
            "r = call('nobody')",
            "Model nobody - Error when running inference: Failed for execute the inference request. Model 'nobody' is not "
            "ready. Request for unknown model: 'nobody' is not fou",
        ),
        (
            "r = call('repeat', IN=ones)",
            "Model repeat is using the decoupled. The current BLS request call doesn't support",
        ),
        ("r = call('add_sub', INPUT0=ones)", "Model add_sub - Error when running inference: "),
        (
            "r = call('add_sub', outputs=['X'], INPUT0=ones, INPUT1=ones)",
            "Model add_sub - Error when running inference: un",
        ),
        ("r = call('string_upper', outputs=['UPPER'], TEXT=np.array([b'\\xff'], object))", "TEXT must be UTF-8: "),
        (
            "r = call('laboratory', CODE=text('return out()'))",
            "Model laboratory - Error when running inference: the call can",
        ),
    ],
)
def test_calls(server, harnesses, code, expected):
    ending = """
if r.has_error():
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(r.error().message(), r.error().code()))]
return out(OUT=r.output_tensors()[0].as_numpy())
"""
    inputs = {"CODE": strings(CALL + code + ending)}
    seen, shown = _both(server, harnesses, "laboratory", inputs)
    if isinstance(expected, str):
        assert seen["error"].startswith(expected)
        assert shown["error"].startswith(expected)
        assert shown["status"] == seen["status"]
    else:
        assert shown == seen
        assert seen["outputs"]["OUT"] == expected


def test_a_model_that_does_not_load(server, repository):
    with pytest.raises(LoadError) as caught:
        ModelHarness(repository / "broken").open()
    assert f"failed to load 'broken' version 1: Internal: {str(caught.value).splitlines()[0]}" in server.output
    assert str(caught.value).splitlines()[3] in server.output


def test_what_initialize_gets(server, harnesses, repository):
    """All but the optimization section, which says how a server is to move tensors, comes from the same code."""
    served = server.get("/v2/models/add_sub/config").json
    config = harnesses["add_sub"].config
    assert {key: config[key] for key in served if key in config} == {
        key: served[key] for key in served if key in config
    }
