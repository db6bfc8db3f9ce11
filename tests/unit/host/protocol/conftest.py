"""The way a front end uses the codec."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pybackend.inference.validation import validate_bytes_tensors, validate_header
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import InferPlan, attach_blobs, body_size_error
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.limits import BodyLimits


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
    if plan.binary_bytes != available:
        raise body_size_error(plan.binary_inputs, available, plan.request.model_name)
    validate_header(plan.request, signature, plan.binary_inputs)
    attach_blobs(plan, text + (blob or b""), len(text))
    validate_bytes_tensors(plan.request, signature)
    return plan


@pytest.fixture(scope="session")
def infer() -> Callable[..., InferPlan]:
    return _infer
