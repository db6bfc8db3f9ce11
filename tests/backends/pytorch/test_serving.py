"""Models of PyTorch behind a server: the answers are torch's own, bit for bit."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.server import serving

torch = pytest.importorskip("torch")

from tests.backends.pytorch import networks  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

START_S = 300

SMALL = 'parameters { key: "INTRA_OP_THREAD_COUNT" value: { string_value: "1" } }'

INDEXED = f"""
platform: "pytorch_libtorch"
max_batch_size: 8
input [ {{ name: "INPUT__1" data_type: TYPE_FP32 dims: [ 4 ] }}, {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT__1" data_type: TYPE_BOOL dims: [ 4 ] }}, {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 200000 preferred_batch_size: [ 4 ] }}
{SMALL}
"""

MAPPING = """
backend: "pytorch"
input [ { name: "b" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "a" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "product" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "sum" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

TEXTS = """
backend: "pytorch"
max_batch_size: 4
input [ { name: "INPUT__0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

TYPES = {
    "flag": "BOOL", "byte": "UINT8", "short": "INT16", "whole": "INT32", "long": "INT64",
    "half": "FP16", "brain": "BF16", "single": "FP32", "double": "FP64",
}  # fmt: skip

CLASS = """
backend: "pytorch"
runtime: "model.py"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "bias" data_type: TYPE_FP32 dims: [ 3 ] optional: true } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] } ]
parameters { key: "INFERENCE_MODE" value: { string_value: "false" } }
parameters { key: "SANDBOX_MEMORY_MB" value: { string_value: "6000" } }
parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value: { string_value: "{\\"backend\\": \\"eager\\"}" } }
"""


def tensors(names: dict[str, str]) -> str:
    return ", ".join(f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ -1 ] }}' for name, kind in names.items())


def place(repository: Path, name: str, config: str | None) -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return version


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server, and what torch itself makes of the same files."""
    repository = tmp_path_factory.mktemp("repository")
    torch.manual_seed(0)
    outputs = {f"OUTPUT__{number}": kind for number, kind in enumerate(TYPES.values())}
    everything = f'backend: "pytorch"\ninput [ {tensors(TYPES)} ]\noutput [ {tensors(outputs)} ]'
    scores = place(repository, "traced", None)
    own = {
        "traced": networks.save_trace(networks.Scores(), scores / "model.pt", torch.randn(2, 4)),
        "indexed": networks.save_script(networks.Two(), place(repository, "indexed", INDEXED) / "model.pt"),
        "mapping": networks.save_script(networks.Mapping(), place(repository, "mapping", MAPPING) / "model.pt"),
        "exported": networks.save_export(networks.Branches(), place(repository, "exported", None) / "model.pt2"),
    }
    networks.save_script(networks.Shout(), place(repository, "texts", TEXTS) / "model.pt")
    networks.save_script(networks.Everything(), place(repository, "everything", everything) / "model.pt")
    with_class = place(repository, "class", CLASS)
    (with_class / "model.py").write_text(networks.CLASS)
    torch.save(networks.class_weights(), with_class / "model.pt")
    (place(repository, "damaged", None) / "model.pt").write_bytes((scores / "model.pt").read_bytes()[:-100])
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"models? (is|are) ready in", START_S)
        yield server, own


def test_a_traced_module_is_served_without_a_configuration(served):
    server, own = served
    assert server.get("/v2/models/traced").json["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    with torch.inference_mode():
        expected = own["traced"](torch.from_numpy(x)).numpy()
    assert np.array_equal(infer(server, "traced", {"x": x})["OUTPUT__0"], expected)


def test_requests_of_a_batch_are_joined_and_shared_out(served):
    server, own = served
    random = np.random.default_rng(1)
    pairs = [tuple(random.standard_normal((rows, 4), np.float32) for _ in range(2)) for rows in (1, 2, 1)]

    def ask(pair: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        return dict(infer(server, "indexed", {"INPUT__0": pair[0], "INPUT__1": pair[1]}).outputs)

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, pairs))
    for (left, right), answer in zip(pairs, answers, strict=True):
        difference, larger = own["indexed"](torch.from_numpy(left), torch.from_numpy(right))
        assert np.array_equal(answer["OUTPUT__0"], difference.numpy())
        assert np.array_equal(answer["OUTPUT__1"], larger.numpy())


def test_a_dictionary_goes_in_and_comes_out(served):
    server, own = served
    a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    expected = own["mapping"]({"a": torch.from_numpy(a), "b": torch.from_numpy(b)})
    answer = infer(server, "mapping", {"a": a, "b": b})
    assert {name: array.tolist() for name, array in answer.outputs.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


def test_strings_are_lists_of_text(served):
    server, _ = served
    texts = np.array([["abc"], ["äö"]], np.object_)
    assert infer(server, "texts", {"INPUT__0": texts})["OUTPUT__0"].tolist() == [[b"abc!"], ["äö!".encode()]]


def test_all_datatypes_pass(served):
    server, _ = served
    given = {
        "flag": np.array([True, False]), "byte": np.array([1, 2], np.uint8), "short": np.array([1, -2], np.int16),
        "whole": np.array([1, -2], np.int32), "long": np.array([1, -(2**40)], np.int64),
        "half": np.array([0.5, 2], np.float16), "brain": ("BF16", np.array([0x3F80, 0x4000], np.uint16)),
        "single": np.array([0.1, 2], np.float32), "double": np.array([0.1, 2], np.float64),
    }  # fmt: skip
    answer = infer(server, "everything", given)
    assert answer["OUTPUT__0"].tolist() == [False, True]
    for number, name in enumerate(list(given)[1:], 1):
        value = given[name]
        if isinstance(value, tuple):  # the bits of 1 and 2 become those of 2 and 4
            assert answer[f"OUTPUT__{number}"].tolist() == [0x4000, 0x4080]
        else:
            assert np.array_equal(answer[f"OUTPUT__{number}"], value * value.dtype.type(2)), name


def test_an_exported_program_is_served_without_a_configuration(served):
    server, own = served
    x, shift = np.ones((1, 4), np.float32), np.full((1, 3), 0.25, np.float32)
    with torch.inference_mode():
        expected = own["exported"](torch.from_numpy(x), shift=torch.from_numpy(shift))
    answer = infer(server, "exported", {"x": x, "shift": shift})
    assert np.array_equal(answer["scores"], expected["scores"].numpy())
    assert np.array_equal(answer["best"].ravel(), expected["best"].numpy())


def test_a_class_with_weights_restarts_after_an_abort_and_a_segmentation_fault(served):
    server, _ = served
    x, bias = np.ones((2, 4), np.float32), np.full((2, 3), 2, np.float32)
    weights = networks.class_weights()
    expected = torch.nn.functional.linear(
        torch.from_numpy(x), weights["head.layer.weight"], weights["head.layer.bias"]
    ).numpy()
    assert np.array_equal(infer(server, "class", {"x": x})["scores"], expected)
    assert np.array_equal(infer(server, "class", {"x": x, "bias": bias})["scores"], expected + 2)
    for value, signal in ((12345, "SIGABRT"), (23456, "SIGSEGV")):
        ended = infer(server, "class", {"x": np.full((1, 4), value, np.float32)})
        assert ended.status == 500
        assert "Stub process 'class_0' is not healthy." in ended.error
        assert signal in ended.error
        server.wait_until("/v2/models/class/ready", 200, START_S)
        assert np.array_equal(infer(server, "class", {"x": x})["scores"], expected)
    assert infer(server, "traced", {"x": x}).status == 200, "the other models are served meanwhile"


def test_a_class_that_needs_more_memory_than_it_may_have_is_told(served):
    server, _ = served
    greedy = infer(server, "class", {"x": np.full((1, 4), 34567, np.float32)})
    assert greedy.status == 500
    assert "can't allocate memory: you tried to allocate 8589934592 bytes" in greedy.error
    assert infer(server, "class", {"x": np.ones((2, 4), np.float32)}).status == 200, "the process goes on"


def test_errors_of_a_model_are_answers(served):
    server, _ = served
    failed = infer(server, "mapping", {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    assert failed.status == 500
    assert failed.error.startswith("PyTorch execute failure: ")


def test_a_damaged_file_says_why_it_is_not_served(served):
    server, _ = served
    index = server.request("POST", "/v2/repository/index", {}).json
    reason = next(model["reason"] for model in index if model["name"] == "damaged")
    assert re.search(r"model\.pt is damaged or of another format", reason)
    assert "Traceback" not in reason
