"""Files that PyTorch's backend reads, and those that it refuses, without a server."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.runtime import Runtime, bind_runtime

torch = pytest.importorskip("torch")

from pybackend_backends.pytorch import archive, settings  # noqa: E402
from pybackend_backends.pytorch.files import CLASS, bind_inputs, complete, find_files, load  # noqa: E402
from tests.backends.pytorch import networks  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.torch]


@pytest.fixture(autouse=True)
def version_directory(tmp_path):
    runtime = Runtime()
    runtime.model_directory = str(tmp_path)
    previous = bind_runtime(runtime)
    yield
    bind_runtime(previous)


def config_of(path: Path, **members: object) -> dict:
    empty = {"name": "m", "backend": "pytorch", "max_batch_size": 0, "input": [], "output": [], "parameters": {}}
    return {**empty, "default_model_filename": str(path), **members}


def completed(path: Path, **members: object) -> dict:
    document = config_of(path, **members)
    files = find_files(document)
    program = load(document, files, "cpu", settings.read_settings(document))
    return complete(ModelConfig(json.dumps(document)), files, program).as_dict()


def refusal(path: Path, **members: object) -> str:
    with pytest.raises(TritonModelException) as raised:
        completed(path, **members)
    return str(raised.value)


def tensor(name: str, data_type: str, *dims: int) -> dict:
    return {"name": name, "data_type": data_type, "dims": list(dims)}


def test_traced_modules_complete_their_configuration(tmp_path):
    networks.save_trace(networks.Scores(), tmp_path / "model.pt", torch.randn(2, 4))
    document = completed(tmp_path / "model.pt")
    assert document["input"] == [tensor("x", "TYPE_FP32", 4)]
    assert document["output"] == [tensor("OUTPUT__0", "TYPE_FP32", 3)]
    assert document["max_batch_size"] == 4
    assert "dynamic_batching" in document


def test_traced_modules_that_mix_rows_do_not_batch(tmp_path):
    class Mixing(torch.nn.Module):
        def forward(self, x):
            return x.softmax(0)

    networks.save_trace(Mixing(), tmp_path / "model.pt", torch.randn(2, 4))
    document = completed(tmp_path / "model.pt")
    assert (document["input"], document["max_batch_size"]) == ([tensor("x", "TYPE_FP32", 2, 4)], 0)


def test_exported_programs_complete_their_configuration(tmp_path):
    networks.save_export(networks.Branches(), tmp_path / "model.pt2", most_rows=3)
    document = completed(tmp_path / "model.pt2")
    assert document["input"] == [tensor("x", "TYPE_FP32", 4), tensor("shift", "TYPE_FP32", 3)]
    scores, best = document["output"]
    assert scores == tensor("scores", "TYPE_FP32", 3)
    assert (best["name"], best["data_type"], best["reshape"]) == ("best", "TYPE_INT64", {"shape": []})
    assert document["max_batch_size"] == 3  # as exported, less than the usual 4


def test_exported_programs_know_the_names_of_triton(tmp_path):
    networks.save_export(networks.Branches(), tmp_path / "model.pt2")
    inputs = [{"name": "KWARGS[shift]"}, {"name": "ARGS[0]"}]
    document = completed(tmp_path / "model.pt2", input=inputs, output=[{"name": "RESULT[best]"}])
    assert [each["dims"] for each in document["input"]] == [[3], [4]]
    assert document["output"][0]["data_type"] == "TYPE_INT64"


def test_config_against_file_names_both_sides(tmp_path):
    path = tmp_path / "model.pt2"
    networks.save_export(networks.Branches(), path)
    shift = tensor("shift", "TYPE_FP32", 3)
    wrong_type = refusal(path, max_batch_size=4, input=[tensor("x", "TYPE_INT64", 4), shift])
    assert "TYPE_INT64" in wrong_type
    assert "TYPE_FP32 (model.pt2)" in wrong_type
    wrong_shape = refusal(path, max_batch_size=4, input=[tensor("x", "TYPE_FP32", 5), shift])
    assert "[-1, 4]" in wrong_shape
    assert "[-1, 5]" in wrong_shape
    missing = refusal(path, max_batch_size=4, input=[tensor("x", "TYPE_FP32", 4)])
    assert missing.startswith("unable to load model 'm', configuration expects 1 inputs, model provides 2")
    unknown = refusal(path, output=[tensor("label", "TYPE_FP32", 3)])
    assert "'label'" in unknown
    assert "'scores', 'best'" in unknown


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        (("right", "left"), ("right", "left")),
        (("INPUT__1", "INPUT__0"), ("right", "left")),
        (("first", "second"), ("left", "right")),
        (("left", "INPUT__1"), ("left", "right")),
    ],
)
def test_inputs_are_found_by_name_by_index_or_in_order(tmp_path, names, arguments):
    networks.save_script(networks.Two(), tmp_path / "model.pt")
    document = config_of(tmp_path / "model.pt", input=[{"name": name} for name in names])
    program = load(document, find_files(document), "cpu", settings.read_settings(document))
    assert bind_inputs(document, program) == dict(zip(names, arguments, strict=True))


def test_inputs_that_do_not_fit_are_refused(tmp_path):
    networks.save_script(networks.Two(), tmp_path / "model.pt")
    for names in (("left",), ("a", "b", "c"), ("IN__0", "IN__0"), ("IN__0", "IN__7")):
        document = config_of(tmp_path / "model.pt", input=[{"name": name} for name in names])
        program = load(document, find_files(document), "cpu", settings.read_settings(document))
        with pytest.raises(TritonModelException, match=r"unable to load model 'm'.*'left', 'right'"):
            bind_inputs(document, program)


def test_scripted_modules_need_a_configuration(tmp_path):
    networks.save_script(networks.Two(), tmp_path / "model.pt")
    assert "arguments of forward (left, right): write its inputs and outputs" in refusal(tmp_path / "model.pt")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    whole = tmp_path / "whole.pt"
    networks.save_script(networks.Scores(), whole)
    path = tmp_path / "model.pt"
    path.write_bytes(whole.read_bytes()[:-200])
    assert "is damaged or of another format" in refusal(path)
    path.write_text("not a model")
    assert "11 bytes" in refusal(path)
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("model/version", "3")
    assert "none that torch writes" in refusal(path)


def test_weights_belong_to_a_class_beside_them(tmp_path):
    torch.save(networks.class_weights(), tmp_path / "model.pt")
    assert "has weights only" in refusal(tmp_path / "model.pt")
    (tmp_path / "model.py").write_text(networks.CLASS)
    assert find_files(config_of(tmp_path / "model.pt")) == (
        CLASS,
        str(tmp_path / "model.py"),
        str(tmp_path / "model.pt"),
    )
    torch.save({"other": torch.zeros(3)}, tmp_path / "model.pt")
    assert "does not fit Network" in refusal(
        tmp_path / "model.py", parameters={"MODEL_CLASS": {"string_value": "Network"}}
    )
    torch.save([1, 2], tmp_path / "model.pt")
    assert "has a list, not a state dict" in refusal(tmp_path / "model.py")


def test_the_class_is_the_one_that_the_weights_fit_or_the_named_one(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(networks.CLASS + "\n\nclass Other(torch.nn.Module):\n    def forward(self, y):\n        return y\n")
    assert re.search("defines several modules: .*MODEL_CLASS", refusal(path))
    named = {"MODEL_CLASS": {"string_value": "Other"}}
    document = config_of(path, parameters=named)
    program = load(document, find_files(document), "cpu", settings.read_settings(document))
    assert [argument.name for argument in program.arguments] == ["y"]
    torch.save(networks.class_weights(), tmp_path / "model.pt")
    document = config_of(path)
    program = load(document, find_files(document), "cpu", settings.read_settings(document))
    assert [argument.name for argument in program.arguments] == ["x", "bias"]
    assert "called 'Third'" in refusal(path, parameters={"MODEL_CLASS": {"string_value": "Third"}})


def test_pickles_run_no_code(tmp_path):
    evidence = tmp_path / "evidence"
    (tmp_path / "model.py").write_text(networks.CLASS)
    torch.save({"head.layer.weight": networks.Attack(evidence)}, tmp_path / "model.pt")
    assert "because a pickle can run code" in refusal(tmp_path / "model.py")
    whole, hidden = tmp_path / "whole.pt2", tmp_path / "hidden.pt"
    networks.save_export(networks.Branches(), whole)
    torch.save((networks.Attack(evidence),), hidden)
    replaced = _with_record(whole, tmp_path / "examples.pt2", "data/sample_inputs/model.pt", hidden.read_bytes())
    assert "cannot be loaded as an archive of torch.export" in refusal(replaced)
    added = _with_record(whole, tmp_path / "opaque.pt2", "data/constants/opaque_obj_0", b"")
    assert "has a pickled object among its constants" in refusal(added)
    assert not evidence.exists()


def _with_record(source: Path, target: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for record in old.namelist():
            if record != f"{root}/{name}":
                new.writestr(record, old.read(record))
        new.writestr(f"{root}/{name}", content)
    return target


def test_large_weights_are_mapped_from_the_file(tmp_path):
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(512, 512)

        def forward(self, x):
            return self.layer(x)

    path = tmp_path / "model.pt"
    reference = networks.save_trace(Large(), path, torch.randn(1, 512))
    document = config_of(path)
    program = load(document, find_files(document), "cpu", settings.read_settings(document))
    assert str(path) in Path("/proc/self/maps").read_text()
    x = torch.randn(3, 512)
    with torch.inference_mode():
        assert torch.equal(program.call({"x": x}), reference(x))
    shutil.rmtree(tmp_path)  # the mapping keeps the bytes


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"INFERENCE_MOD": "true"}, "has no parameter 'INFERENCE_MOD': did you mean INFERENCE_MODE?"),
        ({"INTRA_OP_THREAD_COUNT": "many"}, "INTRA_OP_THREAD_COUNT must be a whole number of at least 1, it is 'many'"),
        ({"TORCH_COMPILE_OPTIONAL_PARAMETERS": "[]"}, "must be a JSON object with arguments of torch.compile"),
        ({"TORCH_COMPILE": "yes"}, "torch.compile takes Python modules and archives of torch.export"),
    ],
)
def test_parameters_are_checked(tmp_path, parameters, text):
    networks.save_trace(networks.Scores(), tmp_path / "model.pt", torch.randn(2, 4))
    given = {name: {"string_value": value} for name, value in parameters.items()}
    assert text in refusal(tmp_path / "model.pt", parameters=given)


def test_a_gpu_that_is_not_there_is_refused():
    count = torch.cuda.device_count()
    with pytest.raises(TritonModelException, match=rf"KIND_GPU, and torch .* sees {count} GPUs: use KIND_CPU"):
        settings.device_of("GPU", str(count))
    assert (settings.device_of("CPU", "0"), settings.device_of("MODEL", "0")) == ("cpu", "")


def test_kinds_are_told_by_contents(tmp_path):
    networks.save_script(networks.Scores(), tmp_path / "a")
    networks.save_export(networks.Branches(), tmp_path / "b.pt2")
    torch.save(networks.class_weights(), tmp_path / "c")
    kinds = [archive.kind_of(str(tmp_path / name)) for name in ("a", "b.pt2", "c")]
    assert kinds == [archive.TORCHSCRIPT, archive.EXPORTED, archive.WEIGHTS]
