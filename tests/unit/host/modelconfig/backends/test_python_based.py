"""Which file of the backend directory serves a model, and the words for everything that can be wrong with it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.backends import BackendPlaces, backend_file, default_environment
from pybackend.modelconfig.loader import finish_config, load_config
from pybackend.modelconfig.schema import ModelConfig

MakeModel = Callable[..., Path]

FOO = 'backend: "foo" '
TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }\noutput { name: "OUT" data_type: TYPE_FP32 dims: 4 }\n'


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """A backend directory with one backend, ``foo``, of two files."""
    directory = tmp_path / "backends"
    for file in ("foo/model.py", "foo/other.py", "empty/README.md"):
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).write_text("")
    return directory


def load(directory: Path, backends: Path, *, auto_complete: bool = True) -> ModelConfig:
    return load_config(directory, auto_complete=auto_complete, backends=places(backends))


def places(backends: Path) -> BackendPlaces:
    """Without shipped backends, unless they lie beside the operator's."""
    return BackendPlaces(backends, backends.parent / "shipped")


def refusal(directory: Path, backends: Path) -> ModelConfigError:
    with pytest.raises(ModelConfigError) as caught:
        load(directory, backends)
    assert caught.value.message.endswith(f"({directory}/config.pbtxt)")
    return caught.value


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize(
    ("text", "file"),
    [
        (FOO, "model.py"),
        (FOO + 'runtime: "model.py"', "model.py"),
        (FOO + 'runtime: "other.py"', "other.py"),
        (FOO + 'default_model_filename: "weights.bin"', "model.py"),
    ],
)
def test_the_file_that_serves_is_found_and_shown(
    make_model: MakeModel, backends: Path, text: str, file: str, auto_complete: bool
) -> None:
    """Whatever lies in the model's own version directory, even a model.py."""
    config = load(make_model(text, files=("1/model.py",)), backends, auto_complete=auto_complete)
    assert (config.backend, config.runtime) == ("foo", file)
    assert config.document["runtime"] == file
    assert backend_file(config, places(backends)) == backends / "foo" / file


def test_a_model_needs_only_a_version_directory(make_model: MakeModel, backends: Path) -> None:
    config = load(make_model(FOO + TENSORS, files=("1/weights.json",)), backends)
    assert config.default_model_filename == ""
    assert finish_config(config, None, 0).runtime == "model.py"


def test_the_name_can_say_the_backend(make_model: MakeModel, backends: Path) -> None:
    config = load(make_model(None, name="m.foo", files=()), backends)
    assert (config.backend, config.runtime) == ("foo", "model.py")


def test_the_platform_can_say_the_backend(make_model: MakeModel, backends: Path) -> None:
    (backends / "foo").rename(backends / "pytorch")
    config = load(make_model('platform: "pytorch_libtorch"'), backends, auto_complete=False)
    assert (config.backend, config.runtime) == ("pytorch", "model.py")


def test_a_python_model_has_no_file_of_a_backend(make_model: MakeModel, backends: Path) -> None:
    (backends / "python").mkdir()
    (backends / "python" / "model.py").write_text("")
    config = load(make_model('backend: "python"'), backends)
    assert backend_file(config, places(backends)) is None
    assert config.runtime == ""


@pytest.mark.parametrize("backend", ["bar", "empty", "x" * 300])
def test_there_is_no_such_backend(make_model: MakeModel, backends: Path, backend: str) -> None:
    error = refusal(make_model(f'backend: "{backend}"'), backends)
    assert error.message.startswith(
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration. "
        "This server runs models in Python. A file of another framework is served by a model.py of ten lines that loads it "
        'with a Python package, and backend: "python" in config.pbtxt: docs/authors/models-without-code.md shows it. '
    )
    assert f" {backends / backend}/model.py (--backend-directory), which does not exist. (" in error.message
    assert error.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    ("text", "backend", "package"),
    [
        ('backend: "onnxruntime"', "onnxruntime", "onnxruntime"),
        ('platform: "onnxruntime_onnx"', "onnxruntime", "onnxruntime"),
        ('platform: "pytorch_libtorch"', "pytorch", "torch"),
    ],
)
def test_the_package_that_serves_the_files_of_a_native_backend_is_named(
    make_model: MakeModel, backends: Path, text: str, backend: str, package: str
) -> None:
    message = refusal(make_model(text), backends).message
    assert message.startswith(f"unable to find backend library for backend '{backend}', try specifying runtime on the ")
    assert f"loads it with the Python package {package}, and backend: " in message
    assert (Path(__file__).resolve().parents[5] / "docs" / "authors" / "models-without-code.md").is_file()


@pytest.mark.parametrize(
    ("backend", "advice"),
    [
        ("Python", 'Did you mean backend: "python"? ('),
        ("pyton", 'Did you mean backend: "python"? ('),
        ("ensemble", 'An ensemble has platform: "ensemble" and no backend. ('),
    ],
)
def test_a_backend_that_is_meant_otherwise(make_model: MakeModel, backends: Path, backend: str, advice: str) -> None:
    message = refusal(make_model(f'backend: "{backend}"'), backends).message
    assert message.startswith(
        f"unable to find backend library for backend '{backend}', try specifying runtime on the model configuration. "
        f"{advice}"
    )


def test_there_is_no_such_runtime(make_model: MakeModel, backends: Path) -> None:
    error = refusal(make_model('backend: "empty" runtime: "model.py"'), backends)
    assert error.message.startswith(
        "unable to find Python backend based backend library 'model.py' for model 'm', searched: "
        f"'{backends}/empty/model.py'. "
    )
    assert error.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "text",
    [FOO + 'runtime: "../foo/model.py"', *(f'backend: "{name}"' for name in ("../backends/foo", "/", ".", ".."))],
)
def test_backend_and_runtime_are_names(make_model: MakeModel, backends: Path, text: str) -> None:
    message = refusal(make_model(text), backends).message
    assert message.startswith("unable to find backend library for backend '")
    assert (
        "', try specifying runtime on the model configuration. 'backend' and 'runtime' of model 'm' must be" in message
    )


def test_there_is_no_such_library(make_model: MakeModel, backends: Path) -> None:
    directory = make_model(FOO + 'runtime: "libtriton_foo.so"', files=("1/x", "3/x"))
    error = refusal(directory, backends)
    assert error.message.startswith(
        "unable to find backend library 'libtriton_foo.so' for model 'm', searched: "
        f"'{directory}/1' '{directory}/3' '{directory}' '{backends}/foo'. "
    )
    assert error.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("place", ["m/1", "m", "backends/foo"])
@pytest.mark.parametrize("runtime", ["", 'runtime: "libtriton_foo.so"'])
def test_native_code_is_not_run(
    make_model: MakeModel, backends: Path, tmp_path: Path, place: str, runtime: str
) -> None:
    """It would win where there is a model.py too; what to write to have that one is said."""
    directory = make_model(FOO + runtime)
    library = tmp_path / place / "libtriton_foo.so"
    library.write_text("")
    error = refusal(directory, backends)
    assert error.message.startswith(f"unable to load shared library: {library}: this server runs no native code")
    assert f'runtime: "model.py" chooses {backends}/foo/model.py' in error.message
    assert error.code is ErrorCode.UNSUPPORTED
    (directory / "config.pbtxt").write_text(FOO + 'runtime: "model.py"')
    assert load(directory, backends).runtime == "model.py"


def test_native_code_without_an_alternative(make_model: MakeModel, backends: Path) -> None:
    (backends / "empty" / "libtriton_empty.so").write_text("")
    assert "Backends can be written in Python only." in refusal(make_model('backend: "empty"'), backends).message


def test_a_default_environment_belongs_to_one_file_of_a_backend(make_model: MakeModel, backends: Path) -> None:
    archive = backends / "foo" / "pb_exec_env_model.py.tar.gz"
    directory = make_model(FOO)
    assert default_environment(load(directory, backends), places(backends)) is None
    archive.write_bytes(b"")
    assert default_environment(load(directory, backends), places(backends)) == archive
    (directory / "config.pbtxt").write_text(FOO + 'runtime: "other.py"')
    assert default_environment(load(directory, backends), places(backends)) is None


@pytest.mark.parametrize("parameter", ["FORCE_CPU_ONLY_INPUT_TENSORS", "INPUT_COPY"])
def test_the_parameters_of_the_python_backend_are_checked_too(
    make_model: MakeModel, backends: Path, parameter: str
) -> None:
    text = f'{FOO} parameters {{ key: "{parameter}" value {{ string_value: "maybe" }} }}'
    assert refusal(make_model(text), backends).message.startswith(f"Incorrect value for {parameter}: ")
