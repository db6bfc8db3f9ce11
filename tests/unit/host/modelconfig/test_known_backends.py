"""Which backend a file belongs to, which framework it needs, and what is said instead of backends that cannot run."""

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig import backends
from pybackend.modelconfig.backends import BackendPlaces, backend_file, default_environment, require_framework
from pybackend.modelconfig.known_backends import KNOWN_BACKENDS, KnownBackend
from pybackend.modelconfig.loader import load_config
from pybackend_wire.installation import install_command

MakeModel = Callable[..., Path]


@pytest.fixture
def places(tmp_path: Path) -> BackendPlaces:
    """A server that comes with all known backends."""
    shipped = tmp_path / "shipped"
    for row in KNOWN_BACKENDS:
        (shipped / row.name).mkdir(parents=True)
        (shipped / row.name / "model.py").write_text("")
    return BackendPlaces(tmp_path / "own", shipped)


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        (["model.savedmodel/saved_model.pb"], "tensorflow"),
        (["model.plan"], "tensorrt"),
        (["model.onnx"], "onnxruntime"),
        (["model.onnx/model.onnx", "model.py"], "onnxruntime"),
        (["model.xml", "model.bin"], "openvino"),
        (["model.pt"], "pytorch"),
        (["model.pt2"], "pytorch"),
        (["xgboost.json"], "fil"),
        (["xgboost.ubj"], "fil"),
        (["model.txt"], "fil"),
        (["checkpoint.tl"], "fil"),
        (["model.tflite"], "litert"),
        (["model.skops"], "sklearn"),
        (["model.joblib"], "sklearn"),
        (["model.py", "model.joblib", "model.txt"], "python"),
    ],
)
@pytest.mark.parametrize("auto_complete", [True, False])
def test_the_file_decides(
    make_model: MakeModel, places: BackendPlaces, files: list[str], backend: str, auto_complete: bool
) -> None:
    directory = make_model("", files=tuple(f"1/{file}" for file in files))
    assert load_config(directory, auto_complete=auto_complete, backends=places).backend == backend


@pytest.mark.parametrize(
    ("description", "backend"),
    [
        ({"architectures": ["BertModel"]}, "transformers"),
        ({"model_type": "bert"}, "transformers"),
        ({"other": 1}, None),
        ([1], None),
        ("not JSON", None),
    ],
)
def test_a_directory_of_hugging_face(
    make_model: MakeModel, places: BackendPlaces, description: object, backend: str | None
) -> None:
    """Weights, and a file that describes the model."""
    directory = make_model("", files=("1/model.safetensors",))
    text = description if isinstance(description, str) else json.dumps(description)
    (directory / "1" / "config.json").write_text(text)
    if backend is None:
        with pytest.raises(ModelConfigError, match="Could not determine backend for model 'm'"):
            load_config(directory, auto_complete=True, backends=places)
        return
    assert load_config(directory, auto_complete=True, backends=places).backend == backend
    (directory / "1" / "model.safetensors").unlink()
    with pytest.raises(ModelConfigError):
        load_config(directory, auto_complete=True, backends=places)


def test_the_configured_file_decides(make_model: MakeModel, places: BackendPlaces) -> None:
    directory = make_model('default_model_filename: "xgboost.json"', files=("1/model.onnx", "1/xgboost.json"))
    assert load_config(directory, auto_complete=True, backends=places).backend == "fil"


@pytest.mark.parametrize(
    ("name", "backend"), [("other.py", "python"), ("resnet.onnx", "onnxruntime"), ("net.pt2", "pytorch")]
)
def test_the_ending_of_the_configured_file_decides(
    make_model: MakeModel, places: BackendPlaces, name: str, backend: str
) -> None:
    directory = make_model(f'default_model_filename: "{name}"', files=(f"1/{name}",))
    config = load_config(directory, auto_complete=True, backends=places)
    assert (config.backend, config.default_model_filename) == (backend, name)


@pytest.mark.parametrize(
    "file",
    [
        "model.onnx",
        "iris.onnx",
        "1/iris.onnx",
        "1/other.py",
        "1/readme.txt",
        "1/config.pbtxt",
    ],
)
def test_a_file_in_the_wrong_place_or_of_another_name_is_named(
    make_model: MakeModel, places: BackendPlaces, file: str, snapshot
) -> None:
    directory = make_model(None, files=(file,))
    if file.endswith(".py"):
        (directory / file).write_text("class TritonPythonModel:\n    pass\n")
    with pytest.raises(ModelConfigError) as refused:
        load_config(directory, auto_complete=True, backends=places)
    assert str(refused.value) == snapshot


@pytest.mark.parametrize("file", ["convert.py", "1/convert.py"])
def test_a_script_is_not_taken_for_a_model(make_model: MakeModel, places: BackendPlaces, file: str) -> None:
    directory = make_model(None, files=(file,))
    (directory / file).write_text("import sys\n")
    with pytest.raises(ModelConfigError) as refused:
        load_config(directory, auto_complete=True, backends=places)
    text = str(refused.value)
    assert "convert.py" not in text
    assert (f"If {directory} is no model, move it out of the repository." in text) == (file == "convert.py")


def test_the_operators_backend_wins_over_the_shipped_one(make_model: MakeModel, places: BackendPlaces) -> None:
    directory = make_model('backend: "onnxruntime"')
    config = load_config(directory, auto_complete=True, backends=places)
    assert backend_file(config, places) == places.shipped / "onnxruntime" / "model.py"
    assert places.is_shipped("onnxruntime")
    own = places.directory / "onnxruntime" / "model.py"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert backend_file(load_config(directory, auto_complete=True, backends=places), places) == own
    assert not places.is_shipped("onnxruntime")


@pytest.mark.parametrize(
    "text", ['backend: "onnxruntime"', 'backend: "onnxruntime" runtime: "libtriton_onnxruntime.so"']
)
def test_the_references_library_is_replaced(make_model: MakeModel, places: BackendPlaces, text: str) -> None:
    """In its containers, and in configurations that it has completed."""
    library = places.directory / "onnxruntime" / "libtriton_onnxruntime.so"
    library.parent.mkdir(parents=True)
    library.write_text("")
    assert load_config(make_model(text), auto_complete=True, backends=places).runtime == "model.py"


def test_a_library_in_the_models_directory_is_not_replaced(make_model: MakeModel, places: BackendPlaces) -> None:
    directory = make_model('backend: "onnxruntime"', files=("1/libtriton_onnxruntime.so",))
    with pytest.raises(ModelConfigError, match="this server runs no native code for model 'm'"):
        load_config(directory, auto_complete=True, backends=places)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            'platform: "tensorrt_plan"',
            "A TensorRT plan runs in native code on the GPU that it was built for: put the ONNX",
        ),
        ('backend: "dali"', "DALI pipelines run in native code on a GPU: a model.py with Pillow"),
    ],
)
def test_backends_of_native_code_are_refused_with_a_way_out(make_model: MakeModel, text: str, advice: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        load_config(make_model(text), auto_complete=True)
    assert "unable to find backend library for backend '" in caught.value.message
    assert f" {advice}" in caught.value.message


def test_the_environment_of_a_backend(make_model: MakeModel, places: BackendPlaces) -> None:
    """The operator's choice, then the archive beside the operator's code."""
    config = load_config(make_model('backend: "onnxruntime"'), auto_complete=True, backends=places)
    assert default_environment(config, places) is None
    archive = places.directory / "onnxruntime" / "pb_exec_env_model.py.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"")
    assert default_environment(config, places) == archive
    chosen = BackendPlaces(places.directory, places.shipped, {"onnxruntime": {"environment": "/env.tar.gz"}})
    assert default_environment(config, chosen) == Path("/env.tar.gz")


def test_a_missing_framework_is_refused_with_the_commands_that_mend_it(
    make_model: MakeModel, places: BackendPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(make_model('backend: "onnxruntime"'), auto_complete=True, backends=places)
    module = "pybackend.modelconfig.backends.known_backend"
    monkeypatch.setattr(module, lambda name: KnownBackend(name, modules=("no_such_module", "json")))
    require_framework(config, places)
    monkeypatch.setattr(module, lambda name: KnownBackend(name, modules=("no_such_module",), extra="onnx"))
    with pytest.raises(ModelConfigError) as caught:
        require_framework(config, places)
    assert caught.value.message.startswith(
        f"backend 'onnxruntime' of model 'm' needs the Python package no_such_module, which the server's own Python "
        f"({sys.executable}) does not have. Make an environment with `pybackend pack --backend onnxruntime -o "
        "onnxruntime.tar.gz` and serve with --backend-config=onnxruntime,environment=onnxruntime.tar.gz; or install it beside "
        f"the server with {install_command('onnx')} ("
    )
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_every_shipped_backend_is_known_and_has_a_recipe_and_an_extra() -> None:
    homes = [path for path in backends.shipped_backends().iterdir() if (path / "model.py").is_file()]
    rows = {row.name: row for row in KNOWN_BACKENDS}
    for home in homes:
        assert rows[home.name].extra, home
        assert rows[home.name].modules, home
        assert home.name in backends.backends_with_recipes()
    assert "onnxruntime" in {home.name for home in homes}


def test_the_extra_frameworks_is_what_all_backends_but_vllm_need() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[4] / "pyproject.toml").read_text())["project"]
    extras = {row.extra for row in KNOWN_BACKENDS} - {""}
    assert extras <= project["optional-dependencies"].keys()
    named = Requirement(project["optional-dependencies"]["frameworks"][0])
    assert named.extras == extras - {"vllm"}
