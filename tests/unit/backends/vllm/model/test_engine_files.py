"""What ``model.json`` and ``multi_lora.json`` may say, and the sentences for the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from pybackend_backends.vllm.model import make_engine_arguments, read_adapters, read_engine_arguments
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import Runtime, bind_runtime

CONFIG = {"name": "m"}


@dataclass
class Arguments:
    model: str
    max_model_len: int = 0
    enable_log_requests: bool = False

    def __post_init__(self) -> None:
        if self.max_model_len < 0:
            raise ValueError("max_model_len is negative.")


@pytest.fixture
def version(tmp_path):
    runtime = Runtime()
    runtime.model_directory = str(tmp_path)
    before = bind_runtime(runtime)
    yield tmp_path
    bind_runtime(before)


def engine(version, contents):
    (version / "model.json").write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return read_engine_arguments(CONFIG)


def test_directories_may_lie_beside_the_file(version):
    (version / "weights").mkdir()
    read = engine(version, {"model": "weights", "tokenizer": "someone/tokens", "enable_lora": True})
    assert read == {"model": str(version / "weights"), "tokenizer": "someone/tokens", "enable_lora": True}
    (version / "verse").mkdir()
    (version / "multi_lora.json").write_text('{"poems": "verse", "prose": "/elsewhere"}')
    assert read_adapters(CONFIG, read) == {"poems": str(version / "verse"), "prose": "/elsewhere"}
    assert read_adapters(CONFIG, {}) == {}, "the engine does not enable them"
    (version / "multi_lora.json").write_text('{"poems": 5}')
    with pytest.raises(TritonModelException, match=r"must have the directory of an adapter for each name, such as"):
        read_adapters(CONFIG, read)


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ("{", "model.json cannot be read as JSON: Expecting"),
        ([], "model.json must be a JSON object"),
        ({"dtype": "auto"}, "model.json has no 'model': write the directory of the weights, or the id of a model"),
    ],
)
def test_files_that_name_no_model_are_refused(version, contents, text):
    with pytest.raises(TritonModelException) as refused:
        engine(version, contents)
    assert text in str(refused.value)


def test_the_old_switch_of_the_log_is_translated():
    assert make_engine_arguments(CONFIG, {"model": "x", "disable_log_requests": True}, Arguments) == Arguments("x")
    given = {"model": "x", "disable_log_requests": False}
    assert make_engine_arguments(CONFIG, given, Arguments).enable_log_requests is True


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"max_model_length": 5},
            "has 'max_model_length', which is no engine argument of the installed vLLM: did you mean max_model_len?",
        ),
        ({"max_model_len": -1}, "vLLM refuses model.json: max_model_len is negative."),
    ],
)
def test_arguments_that_vllm_does_not_take_are_refused(given, text):
    with pytest.raises(TritonModelException) as refused:
        make_engine_arguments(CONFIG, {"model": "x", **given}, Arguments)
    assert text in str(refused.value)
