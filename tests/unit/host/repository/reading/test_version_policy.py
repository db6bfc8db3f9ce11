"""Which versions a policy chooses."""

import pytest

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import ModelConfig, from_document
from pybackend.repository.reading import choose_versions


def config(policy: str) -> ModelConfig:
    text = 'name: "m" backend: "python"' + (f" version_policy {{ {policy} }}" if policy else "")
    return from_document(parse_config_text(text, "x"), "x")


def missing(version: int) -> str:
    return f"version {version} is specified for model 'm', but the version directory is not present"


@pytest.mark.parametrize(
    ("policy", "available", "chosen", "warnings"),
    [
        ("", [1, 3, 2], (3,), ()),
        ("", [0], (0,), ()),
        ("latest { }", [2, 10, 9], (10,), ()),
        ("latest { num_versions: 2 }", [2, 10, 9], (9, 10), ()),
        ("latest { num_versions: 5 }", [2, 1], (1, 2), ()),
        ("latest { num_versions: 4294967295 }", [2, 1], (1, 2), ()),
        ("all { }", [3, 1, 2], (1, 2, 3), ()),
        ("specific { versions: [ 3, 1 ] }", [1, 2, 3], (1, 3), ()),
        ("specific { versions: [ 3, 3, 1, 7 ] }", [1, 2], (1,), (missing(3), missing(7))),
    ],
)
def test_chosen(policy: str, available: list[int], chosen: tuple[int, ...], warnings: tuple[str, ...]) -> None:
    served = choose_versions(config(policy), available)
    assert (served.versions, served.warnings) == (chosen, warnings)


@pytest.mark.parametrize(
    ("policy", "available", "there"),
    [
        ("", [], "no version directory, such as '1',"),
        ("all { }", [], "no version directory, such as '1',"),
        ("specific { versions: 3 }", [2, 1], "only 1, 2"),
        ("specific { }", [1], "only 1"),
    ],
)
def test_nothing_left(policy: str, available: list[int], there: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        choose_versions(config(policy), available)
    assert caught.value.message == (
        "at least one version must be available under the version policy of model 'm': "
        f"there is {there} in the model's directory: "
        + ("change version_policy, or add a version" if available else "put the code into m/1/")
    )
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ('backend: "onnxruntime"', "model.onnx"),
        ('backend: "onnxruntime" default_model_filename: "yolo.onnx"', "yolo.onnx"),
        ('backend: "vllm"', "its files"),
    ],
)
def test_what_a_version_of_another_backend_holds(fields: str, what: str) -> None:
    document = parse_config_text(f'name: "m" {fields}', "x")
    with pytest.raises(ModelLoadError, match=f": put {what} into m/1/$"):
        choose_versions(from_document(document, "x"), [])
