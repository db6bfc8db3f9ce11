"""The package ``openai``, unmodified, with language models: a tiny one of transformers, vLLM's stand-in, and a
``model.py``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backends.vllm.stand_in_environment import make_environment, write_model
from tests.support.gates import wait_until
from tests.support.repositories import copy_model
from tests.support.server import ServerProcess, serving

openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.spec("srv-P11"), pytest.mark.timeout(600)]

START_S = 300
DEADLINE_S = 120.0
KEY = "0123456789abcdef"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool['function']['name'] }} {% endfor %}"
    "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}this is{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("openai")
    models = root / "models"
    copy_model(models, "script")
    write_model(models, "vllm", {"model": "any"})
    environment = make_environment(root / "venv")
    _write_tiny_models(models)
    (root / "keys").write_text(KEY)
    flags = (
        "--allow-openai",
        f"--api-key-file={root / 'keys'}",
        "--api-key-exempt=health",
        f"--backend-config=vllm,environment={environment}",
    )
    with serving(models, flags=flags, ready=False) as server:
        server.wait_for(r"models? (is|are) ready in", START_S)
        yield server


def _write_tiny_models(models: Path) -> None:
    """Models of transformers, where it is installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return
    assert torch
    assert transformers
    from tests.backends.transformers import tiny_models

    tiny_models.make_gpt(models / "story" / "1")
    tiny_models.make_bert(models / "vectors" / "1", "BertModel", spread=0.5)
    tiny_models.make_gpt(models / "templated" / "1")
    (models / "templated" / "1" / "chat.jinja").write_text(TEMPLATE)
    (models / "templated" / "config.pbtxt").write_text(
        'backend: "transformers" parameters { key: "CHAT_TEMPLATE" value { string_value: "chat.jinja" } }'
    )


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.url}/v1", api_key=KEY, max_retries=0, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def needs_transformers(client: openai.OpenAI) -> None:
    if "story" not in {model.id for model in client.models.list()}:
        pytest.skip("transformers is not installed")


def script(*parts: object) -> str:
    return json.dumps(parts)


# transformers


@pytest.mark.usefixtures("needs_transformers")
def test_a_tiny_model_completes_whole_and_as_a_stream(client):
    asked = {
        "model": "story",
        "prompt": "hello world",
        "max_tokens": 6,
        "temperature": 0,
        "extra_body": {"min_tokens": 6},
    }
    whole = client.completions.create(**asked)
    assert (whole.choices[0].finish_reason, whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
        "length",
        2,
        6,
    )
    pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].text for piece in pieces[:-1]) == whole.choices[0].text
    assert pieces[-1].usage == whole.usage
    word = whole.choices[0].text.split()[2]
    for streams in (False, True):
        stopped = client.completions.create(**asked, stop=[word], stream=streams)
        texts = [piece.choices[0] for piece in stopped] if streams else stopped.choices
        assert "".join(each.text for each in texts) == whole.choices[0].text.partition(word)[0]
        assert texts[-1].finish_reason == "stop"


@pytest.mark.usefixtures("needs_transformers")
def test_a_chat_uses_the_template_in_the_models_process(client):
    asked = {"max_tokens": 3, "temperature": 0, "extra_body": {"min_tokens": 3}}
    chat = client.chat.completions.create(model="templated", messages=HELLO, **asked)
    plain = client.completions.create(model="story", prompt="hello this is", **asked)
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.usage.prompt_tokens == 3
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    tools = [{"type": "function", "function": {"name": "food", "parameters": {}}}]
    with_tools = client.chat.completions.create(model="templated", messages=parts, tools=tools, **asked)
    assert with_tools.usage.prompt_tokens == 4
    seeded = {"model": "templated", "messages": HELLO, "max_tokens": 9, "temperature": 5, "seed": 1, "n": 2}
    first, second = (client.chat.completions.create(**seeded) for _ in range(2))
    assert [each.message.content for each in first.choices] == [each.message.content for each in second.choices]
    assert first.choices[0].message.content != first.choices[1].message.content


@pytest.mark.usefixtures("needs_transformers")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"model": "story", "messages": HELLO}, "the model has no chat template"),
        ({"model": "templated", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "of type 'image_url'"),
        ({"model": "templated", "messages": HELLO, "response_format": {"type": "json_object"}}, "'response_format'; there are"),
        ({"model": "templated", "messages": HELLO, "max_tokens": 100}, "do not fit into the model's 64 positions"),
        ({"model": "templated", "messages": HELLO, "logprobs": True}, "tells no log probabilities"),
        ({"model": "templated", "messages": HELLO, "extra_body": {"chat_template_kwargs": {"tokenize": 1}}}, "chat_template_kwargs"),
        ({"model": "templated", "messages": HELLO, "extra_body": {"chat_template": "{{ 1 }}"}}, "'chat_template'"),
    ],
)  # fmt: skip
def test_a_model_refuses_what_it_does_not_take(client, body, text):
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**body)
    assert text in raised.value.message


@pytest.mark.usefixtures("needs_transformers")
def test_embeddings_are_those_of_the_model(client, server):
    texts = ["hello world", "good", "this food is not bad .", "a", "b", "c"]
    packed = client.embeddings.create(model="vectors", input=texts)  # the client asks for Base64, and decodes it
    plain = client.embeddings.create(model="vectors", input=texts, encoding_format="float")
    assert [each.index for each in plain.data] == list(range(6))
    np.testing.assert_allclose(
        [each.embedding for each in packed.data], [each.embedding for each in plain.data], rtol=1e-6
    )
    alone = client.embeddings.create(model="vectors", input="good").data[0].embedding
    np.testing.assert_allclose(alone, plain.data[1].embedding, atol=1e-5)


# vLLM's stand-in


def test_vllm_gets_tokens_of_a_chat_and_openais_words(client):
    asked = {"model": "vllm", "max_tokens": 1}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "repeat"}], **asked)
    assert chat.choices[0].message.content == "user: repeat\nadd_generation_prompt=True"
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "repeat"}], tools=tools, **asked)
    assert chat.choices[0].message.content.startswith("tool f\nuser: repeat")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string"}}}
    chat = client.chat.completions.create(messages=HELLO, response_format=form, **asked)
    assert chat.choices[0].message.content == " {'type': 'string'}"
    with pytest.raises(openai.BadRequestError, match="the chat template refuses the messages: nobody has no role"):
        client.chat.completions.create(messages=[{"role": "nobody", "content": "x"}], **asked)
    with pytest.raises(openai.BadRequestError, match="'response_format' must be"):
        client.chat.completions.create(messages=HELLO, response_format={"type": "odd"}, **asked)
    with pytest.raises(openai.BadRequestError, match="unknown sampling parameter 'top_q': did you mean top_p"):
        client.chat.completions.create(messages=HELLO, extra_body={"top_q": 1}, **asked)


def test_vllm_tells_log_probabilities_and_streams(client):
    chat = client.chat.completions.create(model="vllm", messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=1)
    tokens = chat.choices[0].logprobs.content
    assert [(each.token, each.logprob, each.top_logprobs[0].token) for each in tokens] == [
        (" one", -0.5, " one"),
        (" two", -0.5, " two"),
    ]
    plain = client.completions.create(model="vllm", prompt="x", max_tokens=2, logprobs=1)
    assert plain.choices[0].logprobs.text_offset == [0, 4]
    streamed = list(client.completions.create(model="vllm", prompt="x", max_tokens=3, stream=True, n=2))
    texts = ["", ""]
    for piece in streamed:
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == [" one two three"] * 2
    assert len(streamed) >= 6


def test_leaving_a_stream_of_vllm_aborts_it(client, server):
    stream = client.completions.create(model="vllm", prompt="slowly", max_tokens=10**6, stream=True)
    next(iter(stream))
    before = server.output.count("[stand-in] aborted")
    stream.close()
    wait_until(lambda: server.output.count("[stand-in] aborted") > before, "the engine has ended the text", DEADLINE_S)


# A model.py


def test_tool_calls_of_a_model_are_objects_of_the_package(client):
    calls = [{"name": "weather", "arguments": {"city": "Bonn"}}, {"name": "time", "arguments": "{}"}]
    messages = [{"role": "user", "content": script({"tool_calls": calls})}]
    message = client.chat.completions.create(model="script", messages=messages).choices[0]
    assert message.finish_reason == "tool_calls"
    assert [call.function.name for call in message.message.tool_calls] == ["weather", "time"]
    assert json.loads(message.message.tool_calls[0].function.arguments) == {"city": "Bonn"}
    with client.chat.completions.stream(model="script", messages=messages) as stream:
        final = stream.get_final_completion().choices[0].message
    assert [call.function.arguments for call in final.tool_calls] == ['{"city":"Bonn"}', "{}"]


def test_errors_are_the_packages_exceptions(server, client):
    with pytest.raises(openai.NotFoundError) as raised:
        client.completions.create(model="nix", prompt="x")
    assert (raised.value.code, raised.value.param, raised.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    with pytest.raises(openai.InternalServerError, match="gone"):
        client.completions.create(model="script", prompt=script({"error": "gone", "code": "UNAVAILABLE"}))
    with pytest.raises(openai.APIError, match="later"):
        list(
            client.completions.create(
                model="script", prompt=script({"text_output": "a"}, {"error": "later"}), stream=True
            )
        )
    stranger = openai.OpenAI(base_url=f"http://{server.url}/openai/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError) as refused:
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_many_streams_of_asyncio_at_once_are_all_complete(server):
    words = [f"{number} " for number in range(20)]
    prompt = script(*({"text_output": word} for word in words))

    async def one(client):
        stream = await client.completions.create(model="script", prompt=prompt, stream=True)
        return "".join([piece.choices[0].text async for piece in stream])

    async def many():
        async with openai.AsyncOpenAI(
            base_url=f"http://{server.url}/v1", api_key=KEY, max_retries=0, timeout=DEADLINE_S
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(200)))

    assert asyncio.run(many()) == ["".join(words)] * 200


def test_a_huge_prompt_and_a_slow_reader_hold_nobody_up(client):
    huge = script({"text_output": "x"}) + " " * 8_000_000
    assert client.completions.create(model="script", prompt=huge).choices[0].text == "x"
    with pytest.raises(openai.BadRequestError, match="exceeds 16777216 bytes"):
        client.completions.create(model="script", prompt="x" * 17_000_000)
    slow = client.completions.create(model="vllm", prompt="x", max_tokens=100_000, stream=True)
    try:
        next(iter(slow))
        done = threading.Event()

        def others():
            for _ in range(5):
                client.completions.create(model="vllm", prompt="x", max_tokens=1)
            done.set()

        threading.Thread(target=others, daemon=True).start()
        assert done.wait(DEADLINE_S)
    finally:
        slow.close()
