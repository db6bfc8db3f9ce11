"""Messages of a server, as commands show them."""

from __future__ import annotations

import pytest

from pybackend.errors import ServerError
from pybackend_client.trial import LADDER, cause_of, sample_request

BEFORE, AFTER = (
    "Failed to process the request(s) for model 'm_0_0', message: ",
    "\n\nAt:\n  /m/1/model.py(37): execute\n",
)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (f"{BEFORE}TritonModelException: nncf is not installed{AFTER}", "nncf is not installed"),
        (f"{BEFORE}RuntimeError: shapes differ:\n  [1] and [2]{AFTER}", "RuntimeError: shapes differ: [1] and [2]"),
        ("Stub process 'm_0_0' is not healthy.", "Stub process 'm_0_0' is not healthy."),
        ("x" * 600, f"{'x' * 500}..."),
        (f"{'x' * 490} /models/a/1/model.onnx is damaged", f"{'x' * 490} ..."),
        (f"{'x' * 494} /a/b/ is damaged", f"{'x' * 494} /a/b/ ..."),
    ],
)
def test_the_cause_of_a_failed_request_stands_alone(message: str, cause: str) -> None:
    assert cause_of(message) == cause


@pytest.mark.parametrize("datatype", ["TYPE_FP32", "TYPE_INT64", "TYPE_STRING"])
@pytest.mark.parametrize("dims", [[10**12], [2**62, 2**62], [-1] * 40])
def test_a_model_that_wants_more_values_than_fit_into_memory_gets_none(datatype: str, dims: list[int]) -> None:
    config = {"max_batch_size": 0, "input": [{"name": "image", "data_type": datatype, "dims": dims}]}
    with pytest.raises(ServerError, match=r"input 'image' of shape .* has more than 16,000,000 elements"):
        sample_request(config, LADDER[0])
