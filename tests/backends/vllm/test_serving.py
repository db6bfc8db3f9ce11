"""The vLLM backend behind a server. vLLM itself needs a GPU: a stand-in with its names lies in the models' environment."""

from __future__ import annotations

import base64
import io
import json
import queue
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.backends.vllm.stand_in_environment import KIND, make_environment, write_model
from tests.support.gates import wait_until
from tests.support.server import serving

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(600)]

DEADLINE_S = 240
OPTIONAL = {
    "chat", "image", "stream", "sampling_parameters", "exclude_input_in_output", "return_finish_reason", "return_cumulative_logprob",
    "return_logprobs", "return_num_input_tokens", "return_num_output_tokens",
}  # fmt: skip
METRICS = f'{KIND} parameters {{ key: "REPORT_CUSTOM_METRICS" value {{ string_value: "yes" }} }}'


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return make_environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def server(tmp_path_factory, environment):
    repository = tmp_path_factory.mktemp("models")
    version = write_model(
        repository, "story", {"model": "weights", "enable_lora": True, "disable_log_requests": True}, METRICS
    )
    (version / "weights").mkdir()
    (version / "multi_lora.json").write_text('{"poems": "/adapters/verse"}')
    write_model(repository, "frail", {"model": "any"})
    write_model(repository, "broken", {"model": "broken"})
    flags = (f"--backend-config=vllm,environment={environment}", "--exit-on-error=false")
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for(r"models? (is|are) ready in", DEADLINE_S)
        yield server
        assert server.stop() == 0
    assert server.output.count("[stand-in] engine has ended") >= 2


def generate(server, model="story", *, status=200, **body):
    reply = server.request("POST", f"/v2/models/{model}/generate", body, deadline_s=DEADLINE_S)
    assert reply.status == status, reply
    return reply.json if status == 200 else reply.error


def events(server, model="story", **body):
    reply = server.request("POST", f"/v2/models/{model}/generate_stream", body, deadline_s=DEADLINE_S)
    assert reply.status == 200, reply
    return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line]


def grpc_request(client, request_id, prompt, **sampling):
    inputs = []
    for name, value, datatype in (
        ("text_input", np.array([prompt], np.object_), "BYTES"),
        ("stream", np.array([True]), "BOOL"),
        ("sampling_parameters", np.array([json.dumps(sampling)], np.object_), "BYTES"),
    ):
        inputs.append(grpcclient.InferInput(name, [1], datatype).set_data_from_numpy(value))
    client.async_stream_infer("story", inputs, request_id=request_id, enable_empty_final_response=True)


def test_the_configuration_is_that_of_tritons_backend(server):
    config = server.get("/v2/models/story/config").json
    assert (config["max_batch_size"], config["model_transaction_policy"]) == (0, {"decoupled": True})
    assert config["instance_group"][0]["kind"] == "KIND_MODEL"
    assert {tensor["name"] for tensor in config["input"] if tensor["optional"]} == OPTIONAL
    assert [tensor["name"] for tensor in config["input"] if not tensor["optional"]] == ["text_input"]
    outputs = {tensor["name"]: (tensor["data_type"], tensor["dims"]) for tensor in config["output"]}
    assert outputs == {
        "text_output": ("TYPE_STRING", [-1]), "finish_reason": ("TYPE_STRING", [-1]), "logprobs": ("TYPE_STRING", [-1]),
        "cumulative_logprob": ("TYPE_FP32", [-1]), "num_input_tokens": ("TYPE_UINT32", [-1]),
        "num_output_tokens": ("TYPE_UINT32", [-1]),
    }  # fmt: skip
    server.wait_for(r"\[stand-in\] engine of /\S+/story/1/weights, GPU ")


def test_a_text_is_answered_as_a_whole(server):
    assert generate(server, text_input="Count:", max_tokens=3)["text_output"] == "Count: one two three"
    sampling = json.dumps({"max_tokens": "2", "temperature": "0.5", "n": 2, "logit_bias": {"3": 1}})
    answer = generate(
        server, text_input="To count:", sampling_parameters=sampling, max_tokens=5, exclude_input_in_output=True,
        return_finish_reason=True, return_cumulative_logprob=True, return_num_input_tokens=True,
        return_num_output_tokens=True,
    )  # fmt: skip
    assert answer["text_output"] == [" one two", " one two"]
    assert answer["finish_reason"] == ["length", "length"]
    assert answer["cumulative_logprob"] == [-1.0, -1.0]
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (2, [2, 2])
    assert "logprobs" not in answer


def test_log_probabilities_are_a_json_list_for_each_text(server):
    answer = generate(server, text_input="x", max_tokens=2, logprobs=1, return_logprobs=True)
    assert json.loads(answer["logprobs"]) == [
        {"0": {"logprob": -0.5, "rank": 1, "decoded_token": " one"}},
        {"1": {"logprob": -0.5, "rank": 1, "decoded_token": " two"}},
    ]
    assert generate(server, text_input="x", max_tokens=1, return_logprobs=True)["logprobs"] == "null"


def test_a_stream_has_an_event_for_each_piece(server):
    streamed = events(
        server, text_input="Count:", stream=True, max_tokens=3, return_finish_reason=True, return_num_output_tokens=True
    )
    pieces = [(event["text_output"], event["finish_reason"], event["num_output_tokens"]) for event in streamed]
    assert pieces == [(" one", "None", 1), (" two", "None", 1), (" three", "length", 1)]


def test_images_adapters_and_constraints_reach_the_engine(server):
    image_module = pytest.importorskip("PIL.Image")
    images = []
    for size in ((4, 3), (2, 2)):
        file = io.BytesIO()
        image_module.new("L", size).save(file, "PNG")
        images.append(base64.b64encode(file.getvalue()).decode())
    ask = partial(generate, server, text_input="What?", max_tokens=1, exclude_input_in_output=True)
    assert ask(image=images)["text_output"] == " 4x3RGB 2x2RGB"
    assert ask(image="no image", status=400).startswith("'image' must be the Base64 text of an image")
    assert ask(lora_name="poems")["text_output"] == " poems/verse"
    assert ask(lora_name="prose", status=400) == "LoRA adapter 'prose' is unknown: multi_lora.json has poems."
    assert ask(model="frail", lora_name="poems", status=400).startswith("LoRA adapters are not enabled")
    choice = {"guided_decoding": {"choice": ["yes", "no"]}}
    assert ask(sampling_parameters=json.dumps(choice))["text_output"] == " yes"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"sampling_parameters": '{"max_token": 6}'},
            "unknown sampling parameter 'max_token': did you mean max_tokens?",
        ),
        ({"sampling_parameters": "[]"}, "'sampling_parameters' must be a JSON object"),
        ({"max_tokens": "many"}, "sampling parameter 'max_tokens' must be int | None, it is 'many'"),
        ({"temperature": -1}, "vLLM refuses the sampling parameters: temperature must be non-negative, got -1.0."),
        ({"text_input": ""}, "vLLM refuses the request: The decoder prompt cannot be empty"),
        (
            {"stream": True, "exclude_input_in_output": False},
            "When streaming, `exclude_input_in_output` = False is not",
        ),
    ],
)
def test_mistakes_of_clients_are_sentences(server, body, text):
    assert generate(server, status=400, **{"text_input": "x", **body}).startswith(text)


def test_an_unexpected_error_concerns_one_request(server):
    error = generate(server, text_input="fail", status=500)
    assert error == "Error generating stream: ArithmeticError: the numbers went wrong"
    assert generate(server, text_input="x", max_tokens=1)["text_output"] == "x one"


def test_streams_of_a_grpc_client_run_side_by_side_and_are_aborted_with_it(server):
    results: queue.Queue[tuple[object, object]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        grpc_request(client, "endless", "slowly", max_tokens=1_000_000)
        result, error = results.get(timeout=DEADLINE_S)
        assert error is None
        assert result.as_numpy("text_output").tolist() == [b" one"]
        grpc_request(client, "short", "quickly", max_tokens=2)
        short = []
        while len(short) < 2:
            result, error = results.get(timeout=DEADLINE_S)
            assert error is None
            if result.get_response().id == "short":
                short.append(result.as_numpy("text_output")[0])
        assert short == [b" one", b" two"]
        client.stop_stream(cancel_requests=True)
    server.wait_for(r"\[stand-in\] aborted story-\d+", DEADLINE_S)


def test_the_engines_numbers_are_on_the_metrics_page(server):
    generate(server, text_input="one two three", max_tokens=5)
    labels = '{model="story",version="1"}'
    at_least = {
        f"vllm:prompt_tokens_total{labels}": 3,
        f"vllm:generation_tokens_total{labels}": 5,
        f"vllm:e2e_request_latency_seconds_count{labels}": 1,
        f"vllm:time_to_first_token_seconds_count{labels}": 1,
        'vllm:request_prompt_tokens_bucket{le="2000",model="story",version="1"}': 1,
    }
    idle = {f"vllm:num_requests_running{labels}", f"vllm:kv_cache_usage_perc{labels}"}

    def is_complete():
        page = server.metrics()
        return all(page[name] == 0 for name in idle) and all(page[name] >= value for name, value in at_least.items())

    wait_until(is_complete, "the numbers of the last step", DEADLINE_S)
    page = server.metrics()
    assert not any(name.startswith("vllm:") and "frail" in name for name in page), "only models that say so"


def test_a_dead_engine_fails_its_requests_and_starts_again(server):
    server.wait_for(r"\[stand-in\] engine of any")
    starts = len(re.findall(r"\[stand-in\] engine of any", server.output))
    with ThreadPoolExecutor(4) as pool:
        slow = [
            pool.submit(generate, server, "frail", text_input="slowly", max_tokens=10**6, status=503) for _ in range(3)
        ]
        wait_until(
            lambda: len(re.findall(r"\] frail-\d+ begins", server.output)) >= 3, "three requests run", DEADLINE_S
        )
        dead = generate(server, "frail", text_input="die", status=503)
        for error in (dead, *(each.result() for each in slow)):
            assert error.startswith(
                "model 'frail': the vLLM engine died while the request was running, and starts again"
            )
    wait_until(
        lambda: len(re.findall(r"\[stand-in\] engine of any", server.output)) > starts, "a new engine", DEADLINE_S
    )
    server.wait_until("/v2/models/frail/ready", 200, DEADLINE_S)
    assert generate(server, "frail", text_input="x", max_tokens=1)["text_output"] == "x one"


def test_an_engine_that_cannot_start_says_why(server):
    index = server.request("POST", "/v2/repository/index", {}).json
    reason = next(each["reason"] for each in index if each["name"] == "broken")
    assert (
        "vLLM 0.33.0+stand.in cannot start the engine of model.json: RuntimeError: Engine core initialization" in reason
    )
    assert "Traceback" not in reason
