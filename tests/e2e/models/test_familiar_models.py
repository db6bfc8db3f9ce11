"""Models as they are written for Triton, after the manner of its examples, its tutorials and its vLLM backend, run as
they are.

They lie in ``tests/models``; nothing in them knows of this server. Clients are tritonclient's.
"""

import json
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.callers import caller, write_caller
from tests.support.connection import Connection
from tests.support.gates import wait_until
from tests.support.inference import infer_message, strings
from tests.support.server import serving

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "tests/models"
MODELS = (
    "add_squares", "add_squares_async", "complete_text", "countdown_to", "delayed", "detokenize", "next_token", "story",
    "switchboard", "switchboard_async", "tokenize",
)  # fmt: skip
SENTENCE = "the quick brown fox jumps over the lazy dog"
WORDS = ["once", "upon", "a", "time", "there", "was", "a", "server"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("familiar_models")


@pytest.fixture(scope="module")
def server(repository):
    for name in MODELS:
        shutil.copytree(SAMPLES / name, repository / name)
    shutil.copytree(ROOT / "examples/add_sub/model_repository/add_sub", repository / "add_sub")
    # It lasts until it is cancelled, even on a machine that is slow to do so.
    shutil.copytree(SAMPLES / "story", repository / "saga")
    (repository / "saga/1/model.json").write_text(json.dumps({"words": ["and"] * 20_000, "pause_s": 0.01}))
    write_caller(repository)
    cancels = 'parameters { key: "CANCEL_CALLS_WITH_REQUEST" value { string_value: "yes" } }'
    write_caller(repository, "leaving", extra=f"instance_group {{ kind: KIND_CPU }} {cancels}")
    with serving(repository, flags=(f"--backend-directory={SAMPLES / 'backends'}",)) as server:
        yield server
        assert server.stop() == 0
    for last_words in (
        "switchboard: cleaning up",
        "delayed ends with 0 threads under way",
        "[storyteller] ended",
    ):
        assert last_words in server.output


@pytest.fixture(scope="module")
def client(server):
    with httpclient.InferenceServerClient(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def lab(server):
    """Calls decoupled models, which HTTP clients cannot."""
    return caller(server)


def ask(client, model, **arrays):
    """All outputs of a model as arrays by their names."""
    inputs = []
    for name, array in arrays.items():
        datatype = {"O": "BYTES", "i": "INT32", "f": "FP32"}[array.dtype.kind]
        inputs.append(httpclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array))
    result = client.infer(model, inputs)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def text(*rows):
    return np.array([[row] for row in rows], dtype=np.object_)


# --- As in the examples ---

ONE, TWO = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)


@pytest.mark.spec("pb-X01", "pb-B01")
def test_a_model_that_the_client_names(client):
    outputs = ask(client, "switchboard", MODEL_NAME=np.array(["add_sub"], np.object_), INPUT0=ONE, INPUT1=TWO)
    assert outputs["OUTPUT0"].tolist() == [2, 3, 4, 5]
    assert outputs["OUTPUT1"].tolist() == [-2, -1, 0, 1]
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'undefined_model' is not found"):
        ask(client, "switchboard", MODEL_NAME=np.array(["undefined_model"], np.object_), INPUT0=ONE, INPUT1=TWO)


@pytest.mark.spec("pb-X01", "pb-B03")
def test_two_calls_at_the_same_time(client):
    outputs = ask(client, "switchboard_async", INPUT0=ONE, INPUT1=TWO)
    assert outputs["OUTPUT0"].tolist() == [2, 3, 4, 5]
    assert outputs["OUTPUT1"].tolist() == [-2, -1, 0, 1]


@pytest.mark.spec("pb-X01", "pb-B04")
@pytest.mark.parametrize("number", [0, 1, 4, 30])
def test_sums_of_streams(client, number):
    number_array = np.array([number], np.int32)
    assert ask(client, "add_squares", IN=number_array)["SUM"].tolist() == [number**2]
    assert ask(client, "add_squares_async", IN=number_array)["SUM"].tolist() == [number**2 + (number + 1) ** 2]


@pytest.mark.spec("pb-X01", "pb-D01")
def test_numbers_with_delays_from_threads(lab):
    """Two requests at the same time, the second done before the first."""
    code = """
    def ask(numbers, delays):
        return call(
            "delayed", IN=np.array(numbers, np.int32), DELAY=np.array(delays, np.uint32), WAIT=np.array([1], np.uint32)
        ).exec(decoupled=True)
    ends = []
    def collect(iterator):
        found = [[value(response, "IDX"), value(response, "OUT")] for response in iterator]
        ends.append(len(found))
        return found
    return [in_threads(collect, ask([4, 2, 0, 1], [300, 300, 0, 300]), ask([7, 8], [1, 1])), ends]
    """
    (slow, fast), ends = lab(code)
    assert slow == [[[0], [4]], [[1], [2]], [[2], [0]], [[3], [1]], [None, None]]
    assert fast == [[[0], [7]], [[1], [8]], [None, None]]
    assert ends == [3, 5]


@pytest.mark.spec("pb-X01")
def test_shapes_that_the_model_refuses(lab):
    code = """
    iterator = call(
        "delayed", IN=np.zeros(2, np.int32), DELAY=np.zeros(1, np.uint32), WAIT=np.zeros(1, np.uint32)
    ).exec(decoupled=True)
    return [failure(response)[1] for response in iterator]
    """
    (message,) = lab(code)
    assert "TritonModelException: expected IN and DELAY of one shape, got (2,), (1,)" in message


# --- As in the tutorials ---


@pytest.mark.spec("pb-X02")
def test_a_text_pipeline(client):
    outputs = ask(client, "complete_text", TEXT=text("the quick"))
    assert outputs["TEXT"].tolist() == [[SENTENCE.encode()]]
    assert outputs["TOKENS"].tolist() == [[7]]


@pytest.mark.spec("pb-X02")
def test_a_text_pipeline_with_an_optional_input(client):
    outputs = ask(client, "complete_text", TEXT=text("the quick"), MAX_TOKENS=np.array([[3]], np.int32))
    assert outputs["TEXT"].tolist() == [[b"the quick brown fox jumps"]]
    assert outputs["TOKENS"].tolist() == [[3]]


@pytest.mark.spec("pb-X02")
def test_errors_of_a_text_pipeline(client, server):
    with pytest.raises(InferenceServerException, match="tokenize: unknown word 'cat'") as refused:
        ask(client, "complete_text", TEXT=text("the cat"))
    assert refused.value.status() == "500"
    server.wait_for("a word that is not in the vocabulary: 'cat'")
    assert ask(client, "complete_text", TEXT=text(SENTENCE))["TEXT"].tolist() == [[SENTENCE.encode()]]


@pytest.mark.spec("pb-X02")
def test_single_steps_of_a_text_pipeline(client):
    ids = ask(client, "tokenize", TEXT=text("lazy dog"))["INPUT_IDS"]
    assert ids.tolist() == [[7, 8]]
    config = client.get_model_config("next_token")
    assert "dynamic_batching" in config, "the model has completed it"


# --- As in the vLLM backend ---


@pytest.mark.spec("pb-X03", "pb-K02")
def test_a_text_generator_completes_its_configuration(client):
    config = client.get_model_config("story")
    assert (config["backend"], config["max_batch_size"]) == ("storyteller", 0)
    assert config["model_transaction_policy"]["decoupled"] is True
    optional = {tensor["name"]: tensor["optional"] for tensor in config["input"]}
    assert (optional.pop("text_input"), set(optional.values())) == (False, {True})
    assert [tensor["name"] for tensor in config["output"]] == ["text_output", "finish_reason"]
    assert config["instance_group"][0]["kind"] == "KIND_MODEL"


@pytest.mark.spec("pb-X03")
def test_a_text_generator_answers_at_once(lab):
    code = """
    iterator = call("story", text_input=["Well,"], sampling_parameters=[json.dumps({"max_tokens": 4})]).exec(decoupled=True)
    return [seen(response) for response in iterator]
    """
    assert lab(code) == [{"text_output": [" once upon a time"]}]


@pytest.mark.spec("pb-X03")
def test_a_text_generator_streams(lab):
    code = """
    request = call(
        "story", ["text_output", "finish_reason"], text_input=["Well,"], stream=np.array([True]),
        exclude_input_in_output=np.array([False]), return_finish_reason=np.array([True]), parameters={"max_tokens": 3},
    )
    return [seen(response) for response in request.exec(decoupled=True)]
    """
    assert lab(code) == [
        {"text_output": ["Well, once"], "finish_reason": ["None"]},
        {"text_output": [" upon"], "finish_reason": ["None"]},
        {"text_output": [" a"], "finish_reason": ["stop"]},
    ]


@pytest.mark.spec("pb-X03")
def test_many_streams_of_a_text_generator(lab):
    code = """
    def run(number):
        iterator = call("story", text_input=[str(number)], stream=np.array([True])).exec(decoupled=True)
        return "".join(value(response, "text_output")[0] for response in iterator)
    return in_threads(run, *range(30))
    """
    assert lab(code) == [" " + " ".join(WORDS)] * 30


@pytest.mark.spec("pb-X03")
def test_a_text_generator_refuses(lab, server):
    code = """
    wrong = call("story", text_input=["x"], sampling_parameters=['{"max_tokens": 0}']).exec(decoupled=True)
    return [failure(response) for response in wrong]
    """
    assert lab(code) == [["INVALID_ARG", "Error processing the request: max_tokens must be at least 1, got 0."]]
    server.wait_for(r"\[storyteller\] refused: Traceback")


@pytest.mark.spec("pb-X03", "pb-B07")
def test_a_text_generator_is_cancelled(lab, server):
    code = """
    request = call("saga", text_input=["x"], stream=np.array([True]), parameters={"max_tokens": 20_000})
    iterator = request.exec(decoupled=True)
    first = value(next(iterator), "text_output")
    iterator.cancel()
    return [first, seen(list(iterator)[-1])]
    """
    assert lab(code) == [[" and"], ["CANCELLED", "request was cancelled"]]
    server.wait_for(r"\[storyteller\] cancelling request \d+")


@pytest.mark.spec("pb-X03", "pb-B16")
def test_a_text_generator_whose_client_goes_away(server, repository):
    cancelled = server.output.count("cancelling request")
    code = """
    request = call("saga", text_input=["x"], stream=np.array([True]), parameters={"max_tokens": 20_000})
    for response in request.exec(decoupled=True):
        mark(state["directory"], "began")
        last = response
    mark(state["directory"], last.error().code().name if last.has_error() else "served")
    return 0
    """
    connection = Connection(server.port)
    connection.send(infer_message("leaving", {"CODE": strings(textwrap.dedent(code))}))
    directory = repository / "leaving"
    wait_until((directory / "began").exists, "the stream did not begin")
    connection.close()
    wait_until((directory / "CANCELLED").exists, "the stream was not cancelled")
    wait_until(lambda: server.output.count("cancelling request") > cancelled, "the model was not told")


@pytest.mark.spec("pb-X03")
def test_metrics_of_a_text_generator(lab, server):
    labels = '{model="story",version="1"}'
    before = server.metrics().get(f"storyteller:generation_tokens_total{labels}", 0)
    lab("return [seen(response) for response in call('story', text_input=['x']).exec(decoupled=True)]")
    wait_until(
        lambda: server.metrics()[f"storyteller:generation_tokens_total{labels}"] == before + len(WORDS), "not counted"
    )
    assert server.metrics()[f"storyteller:words_per_request_count{labels}"] > 0
