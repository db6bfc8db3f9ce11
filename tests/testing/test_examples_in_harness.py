"""The project's own examples in a harness, as their authors would test them."""

from pathlib import Path

import numpy as np
import pytest

from pybackend_testing import InputError, ModelHarness

pytest.importorskip("pybackend", reason="config.pbtxt is read by the server's package")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _example(name, model=None):
    return EXAMPLES / name / "model_repository" / (model or name)


def test_add_sub():
    with ModelHarness(_example("add_sub")) as harness:
        left, right = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40], np.float32)
        result = harness.infer(INPUT0=left, INPUT1=right)
        np.testing.assert_array_equal(result["OUTPUT0"], left + right)
        np.testing.assert_array_equal(result["OUTPUT1"], left - right)
        with pytest.raises(InputError, match=r"Expected \[4\], got \[5\]\. Dimension 0 is 5, not 4"):
            harness.infer(INPUT0=np.zeros(5, np.float32), INPUT1=right)
    assert harness.logs[-1].message == "add_sub: no more sums today"


@pytest.mark.parametrize("shape", [(1, 5), (8, 5), (1, 0)])
def test_identity(shape):
    with ModelHarness(_example("identity")) as harness:
        tensor = np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(harness.infer(INPUT0=tensor)["OUTPUT0"], tensor)


def test_string_upper():
    with ModelHarness(_example("string_upper")) as harness:
        upper = harness.infer(TEXT=["hello", "", "größe", "日本 rice"])["UPPER"]
        assert [element.decode() for element in upper] == ["HELLO", "", "GRÖSSE", "日本 RICE"]
        result = harness.infer(TEXT=[b"\xff\xfe"])
        assert result.error.code().name == "INVALID_ARG"
        assert result.error.message().startswith("TEXT must be UTF-8")


@pytest.mark.parametrize(("model", "batch", "shape"), [("nobatch_model", 0, (4,)), ("batch_model", 4, (3, 4))])
def test_auto_complete(model, batch, shape):
    with ModelHarness(_example("auto_complete", model)) as harness:
        assert harness.config["max_batch_size"] == batch
        tensor = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(harness.infer(INPUT0=tensor)["OUTPUT0"], tensor * 2)


def _pipeline(name, model):
    """A model that runs the others of its repository."""
    repository = EXAMPLES / name / "model_repository"
    others = {path.name: path for path in repository.iterdir() if path.name != model}
    return ModelHarness(repository / model, models=others)


@pytest.mark.parametrize("model", ["ask_all", "add_parts", "add_parts_async"])
def test_models_that_run_others(model):
    with _pipeline("bls", model) as harness:
        values = np.array([1, 2, 3, 10], np.float32)
        outputs = harness.infer(VALUES=values).outputs
        if model == "ask_all":
            assert [outputs["MEAN"].item(), outputs["MEDIAN"].item()] == [4.0, 2.5]
        else:
            assert outputs["SUM"].item() == 16.0


def test_decoupled_models():
    with _pipeline("decoupled", "square") as harness:
        assert len(harness.stream(NUMBER=[3]).collect()) == 3
    with _pipeline("decoupled", "square_front") as harness:
        assert harness.infer(NUMBERS=[3, 2])["SUMS"].tolist() == [9, 4]


def test_custom_metrics():
    with ModelHarness(_example("custom_metrics", "word_count")) as harness:
        harness.infer(TEXT=["a b c"]).raise_for_error()
        assert any(name.startswith("word_count_") and value == 1 for name, value in harness.metrics.items())
