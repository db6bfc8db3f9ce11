"""Ensembles for tests: their configurations, models to put into them, and what they may hold when nothing is asked of
them."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.validation import validate
from pybackend.model.ensemble.model import EnsembleModel
from pybackend.model.model import Model
from pybackend.model.python_model import PythonModel
from tests.support.engine import input_tensor, output_array
from tests.support.repositories import model_code, tensors, write_model

Step = tuple[str, Mapping[str, str], Mapping[str, str]]
"""Model, ensemble tensor by its input, ensemble tensor by its output."""

DEADLINE_S = 30

FP32 = ("TYPE_FP32", [-1])


def write_ensemble(
    repository: Path,
    name: str,
    steps: Sequence[Step | str],
    inputs: str = tensors(IN=FP32),
    outputs: str = tensors(OUT=FP32),
    extra: str = "",
    limit: int = 0,
) -> Path:
    """Write an ensemble and return its directory; a step may be given as text.

    Args:
        repository: the directory of models.
        name: the ensemble's name.
        steps: in order.
        inputs: as :func:`tensors` makes them.
        outputs: likewise.
        extra: more of config.pbtxt.
        limit: ``max_inflight_requests``.
    """
    written = " ".join(each if isinstance(each, str) else step(*each) for each in steps)
    config = f"""
platform: "ensemble"
input [ {inputs} ]
output [ {outputs} ]
ensemble_scheduling {{ {written} {f"max_inflight_requests: {limit}" if limit else ""} }}
{extra}
"""
    return write_model(repository, name, None, config)


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


_MIX = model_code("mix")


def write_mix(repository: Path, name: str = "mix", dims: str = "[ -1 ]", extra: str = "", count: int = 1) -> None:
    """Write a model that makes S = A + 2 B + 3 C and D = A - B + 1; B and C are optional, and 0 if they are left out."""
    config = f"""
backend: "python"
input [
    {{ name: "A" data_type: TYPE_FP32 dims: {dims} }},
    {{ name: "B" data_type: TYPE_FP32 dims: {dims} optional: true }},
    {{ name: "C" data_type: TYPE_FP32 dims: {dims} optional: true }}
]
output [ {{ name: "S" data_type: TYPE_FP32 dims: {dims} }}, {{ name: "D" data_type: TYPE_FP32 dims: {dims} }} ]
instance_group {{ count: {count} kind: KIND_CPU }}
{extra}
"""
    write_model(repository, name, _MIX, config)


def request_of(name: str, arrays: Mapping[str, np.ndarray], **members: Any) -> InferenceRequest:
    request = InferenceRequest(name, inputs=[input_tensor(key, array) for key, array in arrays.items()])
    for key, value in members.items():
        setattr(request, key, value)
    return request


async def ask(
    engine: InferenceEngine, name: str, arrays: Mapping[str, np.ndarray], **members: Any
) -> dict[str, np.ndarray]:
    """All outputs of a request.

    Raises:
        InferenceError: it failed.
    """
    model, request = engine.repository.catalogue.find(name), request_of(name, arrays, **members)
    validate(request, model.signature)
    response = await engine.open(model.name, model.version).infer(request)
    if response.error is not None:
        raise response.error
    outputs = {output.name: output_array(response, output.name) for output in response.outputs}
    response.release()
    return outputs


async def refusal(
    engine: InferenceEngine, name: str, arrays: Mapping[str, np.ndarray], **members: Any
) -> InferenceError:
    """The error of a request that fails, whether it was taken or not."""
    try:
        outputs = await ask(engine, name, arrays, **members)
    except InferenceError as error:
        return error
    raise AssertionError(f"it did not fail: {outputs}")


def held(model: Model) -> dict[str, int]:
    """What a model holds for requests: input and output memory, requests, and the ensembles that are not through with
    it."""
    found = {"requests": model.open_requests.count, "holds": model.open_requests.holds}
    if isinstance(model, EnsembleModel):
        requests = model._requests
        found |= {"runs": len(requests.runs), "lookups": len(requests._looked_up)}
        found |= {"input bytes": model.arena.used_bytes}
    elif isinstance(model, PythonModel):
        sessions = [instance.session for instance in model.instances if instance.session is not None]
        blocks = [len(segment.held) for session in sessions for segment in session.outputs._segments.values()]
        found |= {"input bytes": model.arena.used_bytes, "output blocks": sum(blocks)}
    return {what: count for what, count in found.items() if count}


async def nothing_held(engine: InferenceEngine) -> None:
    """Wait until no model holds anything any more: stubs tell with their next message what they have let go of."""
    end = time.monotonic() + DEADLINE_S
    while found := {model.name: held(model) for model in engine.repository.catalogue.models() if held(model)}:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.01)


def floats(*values: float) -> np.ndarray:
    """A tensor."""
    return np.array(values, np.float32)
