"""The tensors that OpenAI's routes find in a configuration, and configurations that name them wrongly."""

from __future__ import annotations

import pytest

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.normalisation import with_scheduling
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend_addons.openai.tensors import OpenAiTensors, openai_tensors_of


def tensors(inputs: str, outputs: str, **parameters: str) -> OpenAiTensors | None:
    """Those of a model with inputs and outputs, each written as ``name:TYPE`` and perhaps ``?`` for an optional one."""

    def listed(kind: str, text: str) -> str:
        found = ""
        for each in text.split():
            name, _, datatype = each.rstrip("?").partition(":")
            optional = "optional: true" if each.endswith("?") else ""
            found += f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: 1 {optional} }}\n'
        return found

    text = 'name: "m"\n' + listed("input", inputs) + listed("output", outputs)
    for name, value in parameters.items():
        text += f'parameters {{ key: "OPENAI_{name}" value {{ string_value: "{value}" }} }}\n'
    return openai_tensors_of(from_document(with_scheduling(parse_config_text(text, "x"), 0), "x"))


def test_tensors_with_usual_names_need_no_parameter() -> None:
    found = tensors("text_input:STRING stream:BOOL? chat:FP32?", "text_output:STRING num_output_tokens:UINT32")
    assert found is not None
    assert (found.prompt, found.stream, found.text, found.completion_tokens) == (
        "text_input",
        "stream",
        "text_output",
        "num_output_tokens",
    )
    assert (found.chat, found.logprobs, found.embedding) == ("", "", ""), "an input of another type is none"
    embeds = tensors("text:STRING", "embedding:FP32")
    assert embeds is not None
    assert (embeds.generates, embeds.embeds) == (False, True)
    by_tokens = tensors("input_ids:INT64", "embedding:FP32")
    assert by_tokens is None, "an input of one element holds no list of tokens"


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("IN:FP32", "OUT:FP32"),
        ("text_input:STRING", "OUT:STRING"),
        ("text_input:STRING image:STRING", "text_output:STRING"),
        ("text:STRING other:FP32", "embedding:FP32"),
    ],
)
def test_other_models_are_none_of_openais(inputs: str, outputs: str) -> None:
    assert tensors(inputs, outputs) is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"PROMPT": "q"},
        {"PROMPT_INPUT": "p"},
        {"TEXT_OUTPUT": "answr"},
        {"PROMPT_INPUT": "n"},
        {"PROMPT_INPUT": "q"},
        {"PROMPT_INPUT": "q", "TEXT_OUTPUT": "answer"},
        {"EMBEDDING_TOKENS_INPUT": "q", "EMBEDDING_OUTPUT": "answer"},
        {"PROMPT_INPUT": "q", "TEXT_OUTPUT": "answer", "CHAT_PARTS": "file"},
        {"EMBEDDING_INPUT": "q", "EMBEDDING_OUTPUT": "answer"},
    ],
    ids=str,
)
def test_wrong_names_are_refused_with_the_way_out(parameters: dict[str, str], snapshot) -> None:
    with pytest.raises(ModelConfigError) as raised:
        tensors("q:STRING n:FP32", "answer:STRING", **parameters)
    assert str(raised.value) == snapshot
    assert str(raised.value).startswith("model 'm': ")


def test_an_input_for_many_elements_is_no_text() -> None:
    with pytest.raises(ModelConfigError, match=r"must take one element, its dims are \[3\]"):
        openai_tensors_of(
            from_document(
                with_scheduling(
                    parse_config_text(
                        'name: "m" input { name: "q" data_type: TYPE_STRING dims: 3 } output { name: "a" data_type: TYPE_STRING '
                        'dims: 1 } parameters { key: "OPENAI_PROMPT_INPUT" value { string_value: "q" } }',
                        "x",
                    ),
                    0,
                ),
                "x",
            )
        )
