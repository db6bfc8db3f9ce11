"""Messages of a server, as commands show them."""

from __future__ import annotations

import pytest

from pybackend_client.trial import cause_of

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
    ],
)
def test_the_cause_of_a_failed_request_stands_alone(message: str, cause: str) -> None:
    assert cause_of(message) == cause
