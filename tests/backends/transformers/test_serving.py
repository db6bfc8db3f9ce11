"""Hugging Face directories behind a server: no configuration, batches with padding, and text as a stream."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.server import serving

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.backends.transformers import tiny_models  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

START_S = 300
LABELS = ("bad", "good")


REFUSED = {
    "other_type": 'max_batch_size: 4 input { name: "text" data_type: TYPE_FP32 dims: 1 }',
    "other_width": 'max_batch_size: 4 output { name: "scores" data_type: TYPE_FP32 dims: 3 }',
}
EXPECTED = {
    "other_type": "expects datatype TYPE_FP32 for input 'text', model provides TYPE_STRING (config.json)",
    "other_width": "tensor 'scores': the model expects 2 dimensions (shape [-1, 2], in config.json) but the model configuration",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    tiny_models.make_bert(models / "mood" / "1", "BertForSequenceClassification", LABELS, spread=0.5)
    tiny_models.make_gpt(models / "story" / "1")
    for name, config in REFUSED.items():
        tiny_models.make_bert(models / name / "1", "BertForSequenceClassification", LABELS)
        (models / name / "config.pbtxt").write_text(f'backend: "transformers"\n{config}')
    return models


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"models? (is|are) ready in", START_S)
        yield server


def test_a_directory_alone_is_served(server):
    config = server.get("/v2/models/mood/config").json
    assert (config["backend"], config["max_batch_size"]) == ("transformers", 4)
    inputs = [(tensor["name"], tensor["optional"]) for tensor in config["input"]]
    assert inputs == [("text", False), ("text_pair", True)]
    outputs = [(tensor["name"], tensor["data_type"], tensor["dims"]) for tensor in config["output"]]
    assert outputs == [("label", "TYPE_STRING", [1]), ("score", "TYPE_FP32", [1]), ("scores", "TYPE_FP32", [2])]
    assert server.get("/v2/models/story/config").json["model_transaction_policy"] == {"decoupled": True}


def test_requests_with_texts_of_any_length_are_classified(server, repository):
    texts = ["hello", "this food is not bad .", "good"]
    expected = transformers.pipeline("text-classification", str(repository / "mood" / "1"))(texts, top_k=2)

    def ask(text: str) -> dict[str, np.ndarray]:
        return infer(server, "mood", {"text": np.array([[text]], np.object_)}).outputs

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(ask, texts))
    for answer, (best, _) in zip(answers, expected, strict=True):
        assert answer["label"].tolist() == [[best["label"].encode()]]
        assert abs(float(answer["score"][0, 0]) - best["score"]) < 1e-5


def test_text_comes_as_a_stream_of_events_and_as_a_whole(server):
    body = {"text_input": "hello world", "max_tokens": 6, "min_tokens": 6, "temperature": 0}
    streamed = server.request("POST", "/v2/models/story/generate_stream", {**body, "stream": True}, deadline_s=60)
    events = [json.loads(line[6:]) for line in streamed.body.decode().splitlines() if line]
    assert len(events) > 2
    text = "".join(event["text_output"] for event in events)
    whole = server.request("POST", "/v2/models/story/generate", body, deadline_s=60).json
    assert whole["text_output"] == "hello world" + text
    counted = {**body, "exclude_input_in_output": True, "return_finish_reason": True, "return_num_output_tokens": True}
    counts = server.request("POST", "/v2/models/story/generate", counted, deadline_s=60).json
    assert (counts["text_output"], counts["finish_reason"], counts["num_output_tokens"]) == (text, "length", 6)


def test_texts_are_generated_side_by_side(server):
    body = {"max_tokens": 20, "min_tokens": 20, "temperature": 0}
    prompts = ["hello", "this food is not bad .", "good", "a b c d", "world", "is this good"]

    def ask(prompt: str) -> str:
        return server.request("POST", "/v2/models/story/generate", {**body, "text_input": prompt}, deadline_s=60).json[
            "text_output"
        ]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_a_configuration_that_contradicts_the_directory_is_refused_with_both_sides(server):
    index = server.request("POST", "/v2/repository/index", {}).json
    reasons = {entry["name"]: entry["reason"] for entry in index if entry.get("state") != "READY"}
    assert reasons.keys() == EXPECTED.keys()
    for name, text in EXPECTED.items():
        assert text in reasons[name]


def test_wrong_sampling_parameters_are_the_clients_mistake(server):
    body = {"text_input": "hello", "sampling_parameters": '{"max_token": 6}'}
    refused = server.request("POST", "/v2/models/story/generate", body, deadline_s=60)
    assert refused.status == 400
    assert refused.error.startswith("unknown sampling parameter 'max_token'; there are max_tokens,")
