"""OpenAI's routes in plain HTTP: the documents, the streams and the errors, with a model that says what a test tells
it."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from tests.support.connection import connected, post
from tests.support.gates import wait_until
from tests.support.repositories import copy_model, tensors, write_model
from tests.support.server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P11")]

LENGTHS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "words").as_numpy()[:, 0]
            numbers = np.array([[len(text), -1.5] for text in texts], np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("vector", numbers)]))
        return answers
"""
LENGTHS_CONFIG = f"""
backend: "python"
max_batch_size: 2
input [ {tensors(words=("TYPE_STRING", [1]))} ]
output [ {tensors(vector=("TYPE_FP32", [2]))} ]
parameters {{ key: "OPENAI_EMBEDDING_INPUT" value {{ string_value: "words" }} }}
parameters {{ key: "OPENAI_EMBEDDING_OUTPUT" value {{ string_value: "vector" }} }}
"""
UPPER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            said = f"{text.upper()} {request.parameters()}"
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([said.encode()], object))]))
        return answers
"""
UPPER_CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_STRING", [1]))} ]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
parameters {{ key: "OPENAI_PROMPT_INPUT" value {{ string_value: "IN" }} }}
parameters {{ key: "OPENAI_TEXT_OUTPUT" value {{ string_value: "OUT" }} }}
"""
LIAR = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            liar = request.inputs()[0].as_numpy()[0].decode()
            said = {
                "text_output": np.array([b"a"], object),
                "num_output_tokens": np.ones(1, np.uint32),
                "embedding": np.ones(2, np.float32),
            }
            said[liar] = np.ones(1, np.int8)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, said[name]) for name in said]))
        return answers
"""
LIAR_CONFIG = """
backend: "python"
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "text" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
  { name: "embedding" data_type: TYPE_FP32 dims: [ 2 ] }
]
"""
TOKENS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().sum()
            size = json.loads(request.parameters()).get("dimensions", 3)
            vector = np.full(min(size, 4), total, np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vector)]))
        return answers
"""
TOKENS_CONFIG = f"""
backend: "python"
input [ {tensors(input_ids=("TYPE_INT64", [-1]))} ]
output [ {tensors(embedding=("TYPE_FP32", [-1]))} ]
"""
SEER_CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_STRING", [1]))} ]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
parameters {{ key: "OPENAI_CHAT_INPUT" value {{ string_value: "IN" }} }}
parameters {{ key: "OPENAI_TEXT_OUTPUT" value {{ string_value: "OUT" }} }}
parameters {{ key: "OPENAI_CHAT_PARTS" value {{ string_value: "image_url, file" }} }}
"""
KEY = "0123456789abcdef"
BEGUN, CANCELLED = "the script goes on for ever", "the script was cancelled"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("openai") / "models"
    copy_model(repository, "script")
    copy_model(repository, "double")
    write_model(repository, "lengths", LENGTHS, LENGTHS_CONFIG)
    write_model(repository, "upper", UPPER, UPPER_CONFIG)
    write_model(repository, "liar", LIAR, LIAR_CONFIG)
    write_model(repository, "tokens", TOKENS, TOKENS_CONFIG)
    write_model(repository, "seer", UPPER, SEER_CONFIG)
    keys = repository.parent / "keys"
    keys.write_text(KEY)
    with serving(repository, flags=("--allow-openai", f"--api-key-file={keys}", "--api-key-exempt=health")) as server:
        yield server


def ask(server, path, *, status=200, key=KEY, **body):
    reply = server.request("POST", f"/v1/{path}", body, {"authorization": f"Bearer {key}"})
    assert reply.status == status, reply
    return reply


def complete(server, *script, status=200, **body):
    body = {"model": "script", "prompt": json.dumps(script), **body}
    return ask(server, "completions", status=status, **body).json


def events(server, path, **body):
    reply = ask(server, path, stream=True, **body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = reply.body.decode().split("\n\n")
    assert lines[-1] == ""
    return [line.removeprefix("data: ") for line in lines[:-1]]


def pieces(server, *script, **body):
    *parts, done = events(server, "completions", model="script", prompt=json.dumps(script), **body)
    assert done == "[DONE]"
    return [json.loads(part) for part in parts]


def test_texts_are_completed_with_what_the_model_tells_of_them(server):
    answer = complete(server, {"text_output": "a"}, {"text_output": "b", "finish_reason": "length"}, n=2)
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 0
    choice = {"finish_reason": "length", "logprobs": None, "text": "ab"}
    assert answer == {
        "object": "text_completion",
        "model": "script",
        "choices": [{"index": 0, **choice}, {"index": 1, **choice}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11},
    }
    several = complete(server, prompt=['[{"text_output": "x"}]', '[{"text_output": "y"}]'], echo=True)
    assert [each["text"] for each in several["choices"]] == ['[{"text_output": "x"}]x', '[{"text_output": "y"}]y']


def test_a_chat_and_the_settings_reach_the_model_as_json(server):
    messages = [{"role": "user", "content": json.dumps([{"tell": True}])}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    more = {"tools": tools, "max_completion_tokens": 5, "seed": 3, "top_k": 4, "user": "me", "presence_penalty": 0}
    answer = ask(server, "chat/completions", model="script", messages=messages, stop="\x00", **more).json
    assert answer["object"] == "chat.completion"
    message = answer["choices"][0]["message"]
    assert (message["role"], message["refusal"]) == ("assistant", None)
    told = json.loads(message["content"])
    assert json.loads(told["chat"]) == {"messages": messages, "tools": tools}
    assert json.loads(told["sampling_parameters"]) == {"seed": 3, "top_k": 4, "max_tokens": 5, "stop": ["\x00"]}
    assert (told["text_input"], told["stream"], "return_logprobs" in told) == ("", False, False)
    said = ask(server, "completions", model="upper", prompt="abc", temperature=0.5, user="me").json
    assert said["choices"][0]["text"] == 'ABC {"temperature": 0.5}'
    assert said["usage"] is None


def test_a_stream_has_whole_characters_ends_before_a_stop_and_tells_usage(server):
    euro = "\u20ac".encode().decode("latin-1")
    streamed = pieces(
        server,
        {"text_output": f"1 {euro[:1]}"},
        {"text_output": euro[1:] + " en"},
        {"text_output": "d or E"},
        {"text_output": "ND and more"},
        {"forever": "x"},
        stop=["END", "never"],
        stream_options={"include_usage": True},
    )
    said = [(each["choices"][0]["text"], each["choices"][0]["finish_reason"]) for each in streamed[:-1]]
    assert said == [("1 ", None), ("\u20ac e", None), ("nd or ", None), ("", "stop")]
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    assert {each["id"] for each in streamed} == {streamed[0]["id"]}
    server.wait_for(CANCELLED)


def test_pieces_of_a_chat_are_deltas_and_tool_calls_have_openais_form(server):
    script = [{"text_output": "hm"}, {"text_output": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}]
    asked = {"model": "script", "messages": [{"role": "user", "content": json.dumps(script)}]}
    streamed = [json.loads(each)["choices"][0] for each in events(server, "chat/completions", **asked)[:-1]]
    deltas = [each["delta"] for each in streamed]
    assert deltas[0] == {"role": "assistant", "content": "hm"}
    call = deltas[1]["tool_calls"][0]
    assert (call.pop("id")[:5], call) == (
        "call_",
        {"index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
    )
    assert [each["finish_reason"] for each in streamed] == [None, None, "tool_calls"]
    whole = ask(server, "chat/completions", **asked).json["choices"][0]
    assert (whole["finish_reason"], whole["message"]["tool_calls"][0]["function"]["name"]) == ("tool_calls", "f")


def test_log_probabilities_of_the_chosen_tokens_and_of_likely_ones(server):
    likely = [{"5": {"logprob": -0.5, "decoded_token": "a"}, "6": {"logprob": -0.25, "decoded_token": "\u20ac"}}]
    said = complete(server, {"text_output": "a", "logprobs": likely}, logprobs=1)["choices"][0]["logprobs"]
    assert said == {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"\u20ac": -0.25}], "text_offset": [0]}
    messages = [{"role": "user", "content": json.dumps([{"text_output": "a", "logprobs": likely}])}]
    chat = ask(server, "chat/completions", model="script", messages=messages, logprobs=True, top_logprobs=1).json
    assert chat["choices"][0]["logprobs"]["content"] == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "\u20ac", "logprob": -0.25, "bytes": [226, 130, 172]}],
        }
    ]


def test_embeddings_as_numbers_and_as_base64(server):
    texts = ["a", "bcd", "ef", "g", "hi"]
    answer = ask(server, "embeddings", model="lengths", input=texts).json
    assert [each["embedding"] for each in answer["data"]] == [[len(text), -1.5] for text in texts]
    assert [each["index"] for each in answer["data"]] == [0, 1, 2, 3, 4]
    encoded = ask(server, "embeddings", model="lengths", input="abc", encoding_format="base64").json["data"]
    assert np.frombuffer(base64.b64decode(encoded[0]["embedding"]), "<f4").tolist() == [3, -1.5]


def test_a_model_embeds_numbers_of_tokens_where_it_has_an_input_for_them(server):
    for given, totals in (([1, 2, 3], [6]), ([[5], [7, 8]], [5, 15])):
        data = ask(server, "embeddings", model="tokens", input=given).json["data"]
        assert [each["embedding"] for each in data] == [[total] * 3 for total in totals]


def test_embeddings_of_a_wanted_size(server):
    asked = {"model": "tokens", "input": [1]}
    assert ask(server, "embeddings", dimensions=2, **asked).json["data"][0]["embedding"] == [1, 1]
    assert ask(server, "embeddings", dimensions=2, model="lengths", input="a").json["data"][0]["embedding"] == [1, -1.5]
    for size, body in ((4, {"dimensions": 5, **asked}), (2, {"dimensions": 3, "model": "lengths", "input": "a"})):
        error = ask(server, "embeddings", status=400, **body).json["error"]
        message = f"model '{body['model']}' has embeddings of {size} numbers: leave 'dimensions' out"
        assert (error["message"], error["param"]) == (message, "dimensions")


def test_a_model_that_says_so_gets_images_in_messages(server):
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    asked = {"messages": [{"role": "user", "content": parts}]}
    said = ask(server, "chat/completions", model="seer", **asked).json["choices"][0]["message"]["content"]
    assert '"TYPE": "IMAGE_URL"' in said
    for model, kind in (("script", "image_url"), ("seer", "input_audio")):
        parts[1]["type"] = kind
        error = ask(server, "chat/completions", status=400, model=model, **asked).json["error"]
        assert error["param"] == "messages"
        assert error["message"].startswith(f"model '{model}' takes no parts of type '{kind}' in messages: ")


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("completions", {"temperature": "hot"}),
        ("completions", {"temperature": -1}),
        ("completions", {"top_p": 7}),
        ("completions", {"max_tokens": -1}),
        ("completions", {"max_tokens": "x"}),
        ("completions", {"presence_penalty": -3}),
        ("completions", {"frequency_penalty": [1]}),
        ("completions", {"seed": 0.5}),
        ("completions", {"logit_bias": {"50256": "x"}}),
        ("chat/completions", {"max_completion_tokens": 0}),
        ("chat/completions", {"response_format": "json"}),
        ("chat/completions", {"tools": {}}),
        ("chat/completions", {"tool_choice": 1}),
        ("chat/completions", {"messages": [{"role": "user", "content": {}}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("chat/completions", {"messages": ["Hello"]}),
        ("embeddings", {"dimensions": 0}),
    ],
)
def test_standard_settings_of_another_kind_are_refused_by_name(server, path, settings):
    texts = {"prompt": json.dumps(OK), "messages": [{"role": "user", "content": json.dumps(OK)}], "input": "a"}
    if path != "embeddings":
        body = {name: texts[name] for name in ("messages" if path.startswith("chat") else "prompt",)}
        ask(server, path, model="script", **dict.fromkeys(settings) | body)
    error = ask(server, path, status=400, model="script", **texts | settings).json["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", next(iter(settings)))


def test_models_that_the_routes_serve_are_listed(server):
    headers = {"x-api-key": KEY}
    for prefix in ("/v1", "/openai/v1"):
        listed = server.request("GET", f"{prefix}/models", None, headers).json
        names = [each["id"] for each in listed["data"]]
        assert (listed["object"], names) == ("list", ["lengths", "liar", "script", "seer", "tokens", "upper"])
    one = server.request("GET", "/v1/models/script", None, headers).json
    assert (one["id"], one["object"], one["owned_by"]) == ("script", "model", "pybackend")


OK = [{"text_output": "x"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "code", "text"),
    [
        ("completions", {"prompt": "[]"}, 400, "invalid_request_error", "model", None, "'model' is missing"),
        ("completions", {"model": "nix", "prompt": "a"}, 404, "invalid_request_error", "model", "model_not_found", "unknown model: 'nix'"),
        ("completions", {"model": "double", "prompt": "a"}, 400, "invalid_request_error", "model", None, "parameters, an output OPENAI_TEXT_OUTPUT with an input OPENAI_PROMPT_INPUT or OPENAI_CHAT_INPUT, or ask"),
        ("embeddings", {"model": "double", "input": "a"}, 400, "invalid_request_error", "model", None, "parameters, an output OPENAI_EMBEDDING_OUTPUT with an input OPENAI_EMBEDDING_INPUT or OPENAI_EMBEDDING_TOKENS_INPUT, or ask"),
        ("completions", {"model": "lengths", "prompt": "a"}, 400, "invalid_request_error", "model", None, "generates no text"),
        ("embeddings", {"model": "script", "input": "a"}, 400, "invalid_request_error", "model", None, "has no embeddings"),
        ("completions", {"model": "script", "prompt": [1, 2]}, 400, "invalid_request_error", "prompt", None, "must be a text"),
        ("embeddings", {"model": "lengths", "input": [1, 2]}, 400, "invalid_request_error", "input", None, "check_embedding_ctx_length=False"),
        ("embeddings", {"model": "lengths", "input": [1, -2]}, 400, "invalid_request_error", "input", None, "or numbers of tokens"),
        ("embeddings", {"model": "tokens", "input": "a"}, 400, "invalid_request_error", "input", None, "and no texts"),
        ("embeddings", {"model": "tokens", "input": [1] * 300_001}, 400, "invalid_request_error", "input", None, "300000 are the most"),
        ("completions", {"model": "script", "prompt": "a", "n": 129}, 400, "invalid_request_error", "n", None, "up to 128 texts"),
        ("completions", {"model": "script", "prompt": "a", "suffix": "b"}, 400, "invalid_request_error", "suffix", None, "do not fill"),
        ("completions", {"model": "script", "prompt": "a", "stop": [""]}, 400, "invalid_request_error", "stop", None, "not empty"),
        ("completions", {"model": "upper", "prompt": "a", "logprobs": 1}, 400, "invalid_request_error", "logprobs", None, "no log prob"),
        ("completions", {"model": "upper", "prompt": "a", "response_format": {}}, 400, "invalid_request_error", "response_format", None, "OPENAI_SETTINGS_INPUT"),
        ("chat/completions", {"model": "upper", "messages": [{}]}, 400, "invalid_request_error", "model", None, "takes no messages"),
        ("chat/completions", {"model": "script", "messages": []}, 400, "invalid_request_error", "messages", None, "list of messages"),
        ("completions", {"model": "script", "prompt": json.dumps([{"error": "no", "code": "INVALID_ARG"}])}, 400, "invalid_request_error", None, None, "no"),
        ("completions", {"model": "script", "prompt": json.dumps([{"error": "gone", "code": "UNAVAILABLE"}])}, 503, "server_error", None, None, "gone"),
        ("completions", {"model": "script", "prompt": json.dumps([{"error": "bad"}]), "stream": True}, 500, "server_error", None, None, "bad"),
        ("completions", {"model": "script", "prompt": json.dumps([{"text_output": "x", "tool_calls": {}}])}, 500, "server_error", None, None, "no JSON list"),
        ("nothing", {}, 404, "invalid_request_error", None, None, "Not Found: there are chat/completions"),
    ],
)  # fmt: skip
def test_errors_have_openais_form(server, path, body, status, kind, param, code, text):
    error = ask(server, path, status=status, **body).json["error"]
    assert text in error.pop("message")
    assert error == {"type": kind, "param": param, "code": code}


def test_bodies_that_are_no_objects_are_refused(server):
    for body in (b"", b"[]", b"{", b'{"model": "\xff"}', b"[" * 100_000, b'{"model": "script", "prompt": "\\ud800"}'):
        reply = server.request("POST", "/v1/completions", body, {"x-api-key": KEY})
        assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error"), (body[:30], reply)


@pytest.mark.parametrize(
    "members",
    [
        b",".join(b'"%d":1' % number for number in range(70_000)),
        b'"prompt":[%b""]' % (b'"",' * 300_000),
        b'"prompt":[%b1]' % (b"[]," * 1_100_000),
    ],
)
def test_a_body_with_much_beside_its_texts_is_refused_before_it_is_parsed(server, members):
    body = b'{"model":"script",%b}' % members
    reply = server.request("POST", "/v1/completions", body, {"x-api-key": KEY})
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json["error"]["message"].startswith("the body has too much beside its texts: ")


def test_a_long_prompt_cannot_be_multiplied(server):
    for large in ({"prompt": "x" * 1_000_000}, {"prompt": "x", "other": "x" * 1_000_000}):
        error = ask(server, "completions", status=400, model="script", n=100, **large).json["error"]
        assert (error["param"], error["message"]) == (
            "n",
            "the prompts, each with all settings, have more than 67108864 bytes, counted 'n' times",
        )


def test_long_stops_are_refused(server):
    error = ask(server, "completions", status=400, model="script", prompt="x", stop="x" * 1001).json["error"]
    assert (error["param"], error["message"]) == ("stop", "a text of 'stop' can have up to 1000 characters")


def test_a_missing_key_is_an_error_of_openais_form(server):
    error = ask(server, "completions", status=401, key="wrong", model="script").json["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


def test_an_error_after_the_first_piece_is_an_event(server):
    first, error = events(server, "completions", model="script", prompt=json.dumps([*OK, {"error": "broken"}]))
    assert json.loads(first)["choices"][0]["text"] == "x"
    assert json.loads(error)["error"]["message"] == "broken"


@pytest.mark.parametrize(
    ("path", "member", "output"),
    [
        ("completions", "prompt", "text_output"),
        ("completions", "prompt", "num_output_tokens"),
        ("embeddings", "input", "embedding"),
    ],
)
def test_an_output_of_another_datatype_than_its_configuration_is_the_models_error(server, path, member, output):
    reply = ask(server, path, status=500, **{"model": "liar", member: output})
    message = f"the model has answered with INT8 in its output '{output}', whose configuration says otherwise"
    assert reply.json["error"]["message"] == message
    assert reply.json["error"]["type"] == "server_error"


# A front end that has heard that a client is gone does not pass on what it had asked.
@pytest.mark.parametrize("streams", [True, pytest.param(False, marks=pytest.mark.one_process)])
def test_a_client_that_leaves_cancels_the_generation(server, streams):
    begun, before = server.output.count(BEGUN), server.output.count(CANCELLED)
    body = {"model": "script", "prompt": json.dumps([{"forever": "words "}]), "stream": streams}
    with connected(server.port) as connection:
        connection.send(post("/v1/completions", json.dumps(body).encode(), {"x-api-key": KEY}))
        wait_until(lambda: server.output.count(BEGUN) > begun, "the model runs")
        if streams:
            connection.wait_for_bytes(100_000)
    wait_until(lambda: server.output.count(CANCELLED) > before, "the model has seen that nobody waits")
    assert complete(server, *OK)["choices"][0]["text"] == "x"


def test_a_server_without_the_flag_says_how_to_get_them(tmp_path):
    copy_model(tmp_path / "models", "script")
    with serving(tmp_path / "models") as server:
        error = server.request("POST", "/v1/completions", {"model": "script", "prompt": "[]"}).json["error"]
        assert error["message"] == "Not Found: OpenAI's routes are off, `pybackend serve --allow-openai` has them"
