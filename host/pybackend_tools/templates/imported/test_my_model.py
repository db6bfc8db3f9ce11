"""Serves the model without a server, and compares its answers with the recorded ones. Run `pytest` in this directory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from pybackend_testing import ModelHarness

MODEL = Path(__file__).parent
ANSWERS = sorted(MODEL.glob("sample_answer_*.json"))


def arrays(path: Path, kind: str) -> dict[str, np.ndarray]:
    """The tensors of a request or an answer of the v2 protocol in JSON; strings as bytes."""
    tensors = json.loads(path.read_text())[kind]
    return {each["name"]: array(each).reshape(each["shape"]) for each in tensors}


def array(tensor: dict) -> np.ndarray:
    if tensor["datatype"] == "BYTES":
        return np.array([text.encode() for text in tensor["data"]], object)
    return np.array(
        tensor["data"], pb_utils.triton_string_to_numpy(f"TYPE_{tensor['datatype']}")
    )


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answers_are_the_recorded_ones(path: Path) -> None:
    version = int(path.stem.removeprefix("sample_answer_"))
    with ModelHarness(MODEL, version=version) as harness:
        stream = harness.stream(arrays(MODEL / "sample_request.json", "inputs"))
        result = stream.collect()[0]
        result.raise_for_error()
    for name, expected in arrays(path, "outputs").items():
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(
                result[name].ravel(), expected.ravel(), rtol=1e-4, atol=1e-5
            )
        else:
            np.testing.assert_array_equal(result[name].ravel(), expected.ravel())
