"""Ensembles in the harness: their steps, maps, batches, streams and errors are those of a server."""

import shutil

import numpy as np
import pytest

from pybackend_testing import ConfigError, EnsembleHarness, InputError, LoadError, ModelHarness, OutputError
from tests.support.ensembles import step, write_ensemble
from tests.support.inference import infer
from tests.support.repositories import copy_model, tensors, write_model
from tests.support.server import serving

FP32 = ("TYPE_FP32", [-1])

BATCHED = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.sums(request))]) for request in requests]

    def sums(self, request):
        array = request.inputs()[0].as_numpy()
        assert array.ndim == 2, array.shape
        return array.sum(axis=1, keepdims=True)
"""

# Negative numbers are an error, and of few numbers there are no outputs.
PICKY = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        found = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if (found["IN"] < 0).any():
            raise ValueError("negative")
        if (found["IN"] > 100).any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("too much", pb_utils.TritonError.UNAVAILABLE))
        outputs = [pb_utils.Tensor("OUT", found["IN"] + found.get("MORE", 0))]
        if len(found["IN"]) > 2:
            outputs.append(pb_utils.Tensor("REST", found["IN"][2:]))
        about = {"id": request.request_id(), "priority": request.priority(), **__import__("json").loads(request.parameters())}
        outputs.append(pb_utils.Tensor("ABOUT", np.array([str(sorted(about.items()))], np.object_)))
        return pb_utils.InferenceResponse(outputs)
"""

MORE = '{ name: "IN" data_type: TYPE_FP32 dims: -1 }, { name: "MORE" data_type: TYPE_FP32 dims: -1 optional: true }'
ABOUT = tensors(OUT=FP32, REST=FP32, ABOUT=("TYPE_STRING", [1]))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ensembles")
    copy_model(directory, "double")
    copy_model(directory, "repeat")
    one = f'backend: "python" input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=("TYPE_FP32", [1]))} ]'
    write_model(directory, "batched", BATCHED, f"{one} max_batch_size: 4")
    write_model(directory, "picky", PICKY, f'backend: "python" input [ {MORE} ] output [ {ABOUT} ]')
    twice = [step("double", {"IN": "x"}, {"OUT": "OUT"}), step("double", {"IN": "IN"}, {"OUT": "x"})]
    write_ensemble(directory, "quadruple", twice)
    write_ensemble(
        directory,
        "nested",
        [step("quadruple", {"IN": "IN"}, {"OUT": "x"}), step("double", {"IN": "x"}, {"OUT": "OUT"})],
    )
    write_ensemble(
        directory,
        "summed",
        [step("double", {"IN": "IN"}, {"OUT": "x"}), step("batched", {"IN": "x"}, {"OUT": "OUT"})],
        outputs=tensors(OUT=("TYPE_FP32", [1])),
    )
    write_ensemble(
        directory,
        "choosy",
        [
            step("picky", {"IN": "IN", "MORE": "MORE"}, {"OUT": "OUT", "REST": "rest", "ABOUT": "ABOUT"}),
            step("picky", {"IN": "OUT", "MORE": "rest"}, {"OUT": "END"}),
            step("double", {"IN": "rest"}, {"OUT": "TAIL"}),
        ],
        MORE,
        tensors(OUT=FP32, END=FP32, TAIL=FP32, ABOUT=("TYPE_STRING", [1])),
    )
    write_ensemble(
        directory,
        "stream",
        [step("repeat", {"IN": "IN"}, {"OUT": "x"}), step("double", {"IN": "x"}, {"OUT": "OUT"})],
    )
    return directory


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        yield server


@pytest.mark.filterwarnings("ignore:model 'picky' returned no output 'REST'")
@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("quadruple", {"IN": [1, 2, 3]}, None),
        ("nested", {"IN": [1, 2, 3]}, None),
        ("summed", {"IN": [1, 2, 3]}, None),
        ("summed", {"IN": [[1, 2, 3], [4, 5, 6]]}, None),
        ("choosy", {"IN": [1, 2, 3]}, None),
        ("choosy", {"IN": [1, 2, 3, 4], "MORE": [1, 1, 1, 1]}, None),
        ("choosy", {"IN": [1, 2]}, None),
        ("choosy", {"IN": [1, 2]}, ["OUT", "END"]),
        ("choosy", {"IN": [1, 2]}, ["ABOUT"]),
        ("choosy", {"IN": [-1, 2]}, None),
        ("choosy", {"IN": [101]}, ["OUT"]),
        ("choosy", {"IN": [60]}, ["OUT"]),
        ("choosy", {"IN": [60, 60, 60], "MORE": [1, 50, 1]}, ["END"]),
    ],
)
def test_it_answers_as_a_server(server, repository, name, inputs, outputs):
    arrays = {key: np.array(value, np.float32) for key, value in inputs.items()}
    members = {"id": "r1", "parameters": {"priority": 3, "mine": "yes"}}
    wanted = {} if outputs is None else {"outputs": [{"name": each} for each in outputs]}
    answer = infer(server, name, arrays, **members, **wanted)
    with EnsembleHarness(repository / name, strict=False) as harness:
        if answer.status == 400 and "in ensemble" not in answer.document["error"]:
            with pytest.raises(InputError, match="unexpected shape"):
                harness.infer(arrays)
            return
        result = harness.infer(arrays, outputs=outputs, request_id="r1", parameters={"mine": "yes"}, priority=3)
    if answer.status != 200:
        assert result.error.message() == answer.error
        assert answer.status == {"INTERNAL": 500, "UNAVAILABLE": 503, "INVALID_ARG": 400}[result.error.code().name]
        return
    assert result.error is None
    assert {key: value.tolist() for key, value in result.outputs.items()} == {
        key: answer[key].tolist() for key in (each["name"] for each in answer.document["outputs"])
    }


def test_the_exception_of_a_part_is_the_cause(model_harness, repository):
    harness = model_harness(repository / "choosy")
    result = harness.infer(IN=[-1])
    assert isinstance(result.exception, ValueError)
    assert result.error.message().startswith(
        "in ensemble 'choosy', Failed to process the request(s) for model 'picky_0', message: ValueError: negative\n\nAt:\n"
    )
    assert [line.level for line in harness.models["picky"].logs] == ["ERROR"]


def test_an_ensemble_with_a_decoupled_part_streams(repository):
    with EnsembleHarness(repository / "stream") as harness:
        assert harness.decoupled
        assert [result["OUT"].tolist() for result in harness.stream(IN=[3])] == [[0], [2], [4]]
        assert list(harness.stream(IN=[0])) == []
        responses = harness.stream(IN=[1000])
        assert next(responses)["OUT"].tolist() == [0]
        responses.close()


def test_parts_may_be_functions_and_the_tests_own_harnesses(repository):
    def double(IN):  # noqa: N803  the input's name
        return {"OUT": IN + 1}

    with EnsembleHarness(repository / "quadruple", models={"double": double}) as harness:
        assert harness.infer(IN=[1])["OUT"].tolist() == [3]
    own = ModelHarness(repository / "picky", strict=False)
    with EnsembleHarness(repository / "choosy", models={"picky": own, "double": double}) as harness:
        assert harness.infer(IN=[1, 2, 3], outputs=["TAIL"])["TAIL"].tolist() == [4]
        assert own.is_open


def test_a_model_calls_an_ensemble(repository, tmp_path):
    code = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        call = pb_utils.InferenceRequest(model_name="quadruple", inputs=request.inputs(), requested_output_names=["OUT"])
        answer = call.exec()
        return pb_utils.InferenceResponse(error=answer.error()) if answer.has_error() else answer
"""
    config = f'backend: "python" input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=FP32)} ]'
    model = write_model(tmp_path, "caller", code, config)
    with ModelHarness(model, models={"quadruple": repository / "quadruple"}) as harness:
        assert harness.infer(IN=[1])["OUT"].tolist() == [4]
        assert sorted(harness.models) == ["caller", "double"]


def test_a_part_s_outputs_must_be_as_configured(repository):
    with EnsembleHarness(repository / "choosy") as harness:
        assert harness.infer(IN=[1, 2], outputs=["OUT", "END"]).error is None  # whoever reads REST can do without
        with pytest.raises(OutputError, match="model 'picky' returned no output 'REST'"):
            harness.infer(IN=[1, 2])
    parts = {"double": ModelHarness(repository / "double", overrides={"output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [7]}]})}  # fmt: skip
    wrong = pytest.raises(OutputError, match=r"model 'double' returned output 'OUT' with shape \[1\]")
    with EnsembleHarness(repository / "quadruple", models=parts) as harness, wrong:
        harness.infer(IN=[1])


@pytest.mark.parametrize(
    ("steps", "extra", "text"),
    [
        ([("gone", {"IN": "IN"}, {"OUT": "OUT"})], "", r"ensemble e contains models that are not available or ambiguous: gone"),
        ([("double", {"INN": "IN"}, {"OUT": "OUT"})], "", "in ensemble e, ensemble tensor IN is mapping to non-existing input INN in model double"),
        ([("double", {"IN": "IN"}, {"OUT": "x"})], "", "ensemble output 'OUT' for ensemble e' is not used"),
        (["double:7"], "", "model .*double has no version 7; it has"),
        ([("e", {"IN": "IN"}, {"OUT": "OUT"})], "", "circular dependency between ensembles: e -> e"),
        ([("batched", {"IN": "IN"}, {"OUT": "OUT"})], "max_batch_size: 8", "ensemble e allows maximum batch size 8, but it contains model batched"),
    ],
)  # fmt: skip
def test_a_faulty_configuration_is_refused_as_by_a_server(repository, tmp_path, steps, extra, text):
    for name in ("double", "batched"):
        shutil.copytree(repository / name, tmp_path / name)
    written = [step("double", {"IN": "IN"}, {"OUT": "OUT"}, 7) if each == "double:7" else step(*each) for each in steps]
    ensemble = write_ensemble(tmp_path, "e", written, extra=extra)
    with pytest.raises((ConfigError, LoadError), match=text):
        EnsembleHarness(ensemble).open()


def test_a_model_whose_configuration_cannot_be_read_is_named(repository, tmp_path):
    shutil.copytree(repository / "double", tmp_path / "broken")
    (tmp_path / "broken/config.pbtxt").write_text("backend:")
    with pytest.raises(LoadError, match=r"models=\{'double': \.\.\.\}: "):
        EnsembleHarness(repository / "quadruple", models={"double": tmp_path / "broken"}).open()
