"""Signatures and the way a front end uses the codec, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.infer_plan import InferPlan, attach_blobs, check_body_size
from pybackend.protocol.infer_request import parse_infer
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.validation import validate_bytes_tensors, validate_header


def _signature(
    *inputs: tuple[Any, ...], outputs: tuple[tuple[Any, ...], ...] = (), max_batch_size: int = 0, name: str = "m"
) -> ModelSignature:
    def tensors(rows: tuple[tuple[Any, ...], ...]) -> dict[str, TensorSignature]:
        return {row[0]: TensorSignature(row[0], row[1], tuple(row[2]), *row[3:]) for row in rows}

    return ModelSignature(name, max_batch_size, tensors(inputs), tensors(outputs))


def _infer(
    document: Any,
    signature: ModelSignature,
    blob: bytes | None = None,
    *,
    limits: BodyLimits | None = None,
    size_known: bool = True,
) -> InferPlan:
    """What a front end does with a body, from its JSON part to the engine's door."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    available = len(blob or b"")
    plan = parse_infer(
        text,
        header_length=None if blob is None else len(text),
        signature=signature,
        model_version="",
        limits=limits or BodyLimits(),
        available_bytes=available if size_known else None,
    )
    check_body_size(plan, available)
    validate_header(plan.request, signature, plan.binary_inputs)
    attach_blobs(plan, text + (blob or b""), len(text))
    validate_bytes_tensors(plan.request, signature)
    return plan


def _refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(InferenceError) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == caught.value.message
    return caught.value.code, caught.value.message


@pytest.fixture(scope="session")
def make_signature() -> Callable[..., ModelSignature]:
    return _signature


@pytest.fixture(scope="session")
def infer() -> Callable[..., InferPlan]:
    return _infer


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
