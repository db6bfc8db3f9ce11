"""Models that call models, in the environments of :mod:`tests.floor.environments`: threads, coroutines, streams, forks."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from tests.floor import environments
from tests.support.callers import ONE, write_caller, write_targets
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.repositories import identity_config, write_model

DEADLINE_S = 60
THREADS = """
def run(row):
    for number in range(60):
        assert value(call("double", IN=[row, number]).exec()) == [2 * row, 2 * number]
        assert len(list(call("repeat", IN=[number % 4]).exec(decoupled=True))) == number % 4 + 1
    return row
sys.setswitchinterval(1e-6)
try:
    return in_threads(run, *range(6))
finally:
    sys.setswitchinterval(5e-3)
"""
SHARED = """
iterator = call("repeat", IN=[300]).exec(decoupled=True)
def take(_):
    return sum(1 for _ in iter(lambda: next(iterator, None), None))
return sum(in_threads(take, *range(5)))
"""
FORKS = """
import multiprocessing
context = multiprocessing.get_context("fork")
def run(depth, to):
    found = value(call("double", IN=[depth]).exec())
    to.send(found + (forked(depth - 1) if depth else []))
def forked(depth):
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(depth, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found
return forked(2)
"""
COROUTINES = """
responses = await asyncio.gather(*(call("double", IN=[number]).async_exec() for number in range(300)))
iterators = await asyncio.gather(*(call("repeat", IN=[number]).async_exec(decoupled=True) for number in range(20)))
return [sum(value(response)[0] for response in responses), [len(list(iterator)) for iterator in iterators]]
"""
EXPECTED = {
    "threads": ("caller", THREADS, list(range(6))),
    "shared": ("caller", SHARED, 301),
    "forks": ("caller", FORKS, [4, 2, 0]),
    "coroutines": ("coroutines", COROUTINES, [2 * sum(range(300)), list(range(1, 21))]),
}
"""Model, code and what it gives."""


GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "floor" } }'
MAKER = """
class TritonPythonModel:
    # Answers with a new array, or from a buffer that it uses again if IN begins with 1. The parameter says which array it was.
    def initialize(self, args):
        self.buffer = np.zeros(5000, np.float32)

    def execute(self, requests):
        data = requests[0].inputs()[0].as_numpy()
        result = self.buffer if data[0] else data + 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", result)], parameters={"array": id(result)})]
"""
WHOSE = """
call("maker", IN=np.zeros(1, np.float32)).exec()  # once it has answered, it has heard that calls are for it
found = []
for first in (0, 1):
    response = call("maker", IN=np.full(5000, first, np.float32)).exec()
    array = response.output_tensors()[0].as_numpy()
    found.append([json.loads(response.parameters())["array"] == id(array), array.flags.writeable])
return found
"""


@pytest.fixture(scope="module", params=environments.rows(), ids=str)
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of a row's environment."""
    try:
        return environments.python_of(request.param)
    except environments.Unavailable as reason:
        pytest.skip(f"{request.param} was not run: {reason}")


async def _use(ways: Mapping[str, tuple[str, str, object]], repository: Path, python: str) -> dict[str, object]:
    found: dict[str, object] = {}
    async with engine_on(repository, python=python) as engine:
        for name, (model, code, _) in ways.items():
            text = np.array([textwrap.dedent(code)], object)
            request = InferenceRequest(model, inputs=[input_tensor("CODE", text)])
            async with asyncio.timeout(DEADLINE_S):
                response = await engine.open(model).infer(request)
            found[name] = json.loads(output_array(response, "JSON").item())
            response.release()
    return found


@pytest.mark.timeout(300)
def test_models_call_models(python, tmp_path):
    write_caller(tmp_path)
    write_caller(tmp_path, "coroutines", asynchronous=True)
    write_targets(tmp_path, "double", "repeat")
    found = asyncio.run(_use(EXPECTED, tmp_path, python))
    assert found == {name: expected for name, (_, _, expected) in EXPECTED.items()}


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_new_output_changes_hands_within_a_group(python, tmp_path):
    write_caller(tmp_path, extra=f"{ONE} {GROUP}")
    write_model(tmp_path, "maker", MAKER, f"{identity_config()} {ONE} {GROUP}")
    found = asyncio.run(_use({"whose": ("caller", WHOSE, None)}, tmp_path, python))
    assert found == {"whose": [[True, True], [False, True]]}
