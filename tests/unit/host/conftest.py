"""Signatures, and calls that must be refused, for all tests of the host's units."""

from collections.abc import Callable
from typing import Any

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.modelconfig.signature import ModelSignature, TensorSignature


def _signature(
    *inputs: tuple[Any, ...], outputs: tuple[tuple[Any, ...], ...] = (), max_batch_size: int = 0, name: str = "m"
) -> ModelSignature:
    def tensors(rows: tuple[tuple[Any, ...], ...]) -> dict[str, TensorSignature]:
        return {row[0]: TensorSignature(row[0], row[1], tuple(row[2]), *row[3:]) for row in rows}

    return ModelSignature(name, max_batch_size, tensors(inputs), tensors(outputs))


def _refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(InferenceError) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == caught.value.message
    return caught.value.code, caught.value.message


@pytest.fixture(scope="session")
def make_signature() -> Callable[..., ModelSignature]:
    return _signature


@pytest.fixture(scope="session")
def refusal() -> Callable[..., tuple[ErrorCode, str]]:
    """Calls a function that must refuse; returns the code and the message."""
    return _refusal


@pytest.fixture(scope="session")
def add_sub() -> ModelSignature:
    return _signature(
        ("INPUT0", "FP32", [4]),
        ("INPUT1", "FP32", [4]),
        outputs=(("OUTPUT0", "FP32", [4]), ("OUTPUT1", "FP32", [4])),
        name="add_sub",
    )
