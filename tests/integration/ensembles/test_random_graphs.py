"""Graphs of random steps do what their steps say, evaluated here one after another; nothing is lost and nothing is
kept."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.modelconfig.ensemble import EnsembleStep, UnrelatedStreams, needed_tensors, stream_chains
from tests.integration.ensembles.conftest import Lab
from tests.integration.models.conftest import running_engine
from tests.support.engine import output_array
from tests.support.ensembles import nothing_held, request_of, write_mix
from tests.support.repositories import tensors, write_model
from tests.support.streams import DEADLINE_S, DECOUPLED

RESPONSES = 3
"""Of each stream."""

_BURST = f"""
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = request.inputs()[0].as_numpy()
            for number in range({RESPONSES}):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + np.float32(number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    repository = tmp_path_factory.mktemp("random")
    write_mix(repository, count=2)
    io = f"input [ {tensors(IN=('TYPE_FP32', [-1]))} ] output [ {tensors(OUT=('TYPE_FP32', [-1]))} ]"
    write_model(
        repository, "burst", _BURST, f'backend: "python" {io} {DECOUPLED} instance_group {{ count: 1 kind: KIND_CPU }}'
    )
    with running_engine(repository, explicit=True) as (engine, run):
        yield Lab(engine, run)


@dataclass
class Graph:
    """An ensemble, and a request to it."""

    steps: list[EnsembleStep]
    given: dict[str, np.ndarray]
    optional: list[str]
    outputs: list[str]
    requested: tuple[str, ...]
    limit: int

    @property
    def config(self) -> str:
        def io(name: str, **more: bool) -> dict[str, Any]:
            return {"name": name, "data_type": "TYPE_FP32", "dims": [-1], **more}

        return json.dumps(
            {
                "platform": "ensemble",
                "input": [io(name, optional=True) if name in self.optional else io(name) for name in ("I0", "I1", "I2")],
                "output": [io(name) for name in self.outputs],
                "ensemble_scheduling": {
                    "step": [
                        {"model_name": step.model_name, "model_version": -1, "input_map": step.inputs, "output_map": step.outputs}
                        for step in self.steps
                    ],
                    "max_inflight_requests": self.limit,
                },
            }
        )  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn, *, streams: bool) -> Graph:
    there, steps = ["I0", "I1"], []
    for number in range(draw(st.integers(1, 7))):
        choose = st.sampled_from(there)
        if streams and draw(st.integers(0, 3)) == 0:
            steps.append(EnsembleStep("burst", "", {"IN": draw(choose)}, {"OUT": f"t{number}"}))
        else:
            optional = st.sampled_from([*there, "I2", ""])
            chosen = {"A": draw(choose), "B": draw(optional), "C": draw(optional)}
            made = draw(st.sampled_from([("S",), ("D",), ("S", "D")]))
            inputs = {name: tensor for name, tensor in chosen.items() if tensor}
            steps.append(EnsembleStep("mix", "", inputs, {name: f"t{number}{name}" for name in made}))
        there += steps[-1].outputs.values()
    made = [tensor for step in steps for tensor in step.outputs.values()]
    taken = {tensor for step in steps for tensor in step.inputs.values()}
    # What nobody takes must be an output, and inputs that nobody takes must be taken.
    outputs = [tensor for tensor in made if tensor not in taken or draw(st.booleans())]
    untaken = [name for name in ("I0", "I1", "I2") if name not in taken]
    for name in untaken:
        steps.append(
            EnsembleStep("mix", "", {"A": name} if name != "I2" else {"A": "I0", "B": name}, {"S": f"o{name}"})
        )
        outputs.append(f"o{name}")
    size = draw(st.sampled_from([3, 3000]))
    x = np.arange(size, dtype=np.float32) % 4
    arrays = {"I0": x, "I1": x + 1}
    if draw(st.booleans()):
        arrays["I2"] = x + 2
    requested = draw(st.one_of(st.just(()), st.lists(st.sampled_from(outputs), min_size=1, unique=True).map(tuple)))
    order = draw(st.permutations(steps))
    return Graph(list(order), arrays, ["I2"], outputs, requested, draw(st.sampled_from([0, 0, 1, 3])))


def evaluate(graph: Graph) -> list[tuple[tuple[str, ...], list[np.ndarray]]]:
    """The responses that the request must get: for each, the names of its outputs and their values."""
    wanted = graph.requested or tuple(graph.outputs)
    chains = stream_chains(graph.steps, [step.model_name == "burst" for step in graph.steps])
    needed = needed_tensors(graph.steps, wanted)
    ends = {chains[name] for name in wanted}
    leaves = {end for end in ends if not any(end != other and other[: len(end)] == end for other in ends)}
    responses = []

    def run(chain: tuple[int, ...], env: dict[str, np.ndarray]) -> None:
        waiting = [
            (number, step)
            for number, step in enumerate(graph.steps)
            if not needed.isdisjoint(step.outputs.values())
            and max((chains.get(tensor, ()) for tensor in step.inputs.values()), key=len) == chain
        ]
        streams = []
        while waiting:
            for number, step in waiting:
                if all(tensor in env or tensor == "I2" for tensor in step.inputs.values()):
                    waiting.remove((number, step))
                    break
            else:
                break
            if step.model_name == "burst":
                streams.append((number, step))
                continue
            a, b, c = (env.get(step.inputs.get(name, ""), np.float32(0)) for name in "ABC")
            made = {"S": a + 2 * b + 3 * c, "D": a - b + 1}
            env.update({tensor: made[name] for name, tensor in step.outputs.items()})
        assert not waiting
        if chain in leaves:
            names = tuple(name for name in wanted if name in env)
            responses.append((names, [env[name] for name in names]))
        for number, step in streams:
            for response in range(RESPONSES):
                value = env[step.inputs["IN"]] + np.float32(response)
                run((*chain, number), {**env, step.outputs["OUT"]: value})

    run((), dict(graph.given))
    return responses


async def answered(lab: Lab, graph: Graph) -> list[tuple[tuple[str, ...], list[np.ndarray]]]:
    finished = asyncio.get_running_loop().create_future()
    found = []

    def on_response(response):
        if response.error is not None:
            finished.set_exception(response.error)
            return
        names = tuple(output.name for output in response.outputs)
        if not response.empty:
            found.append((names, [output_array(response, name) for name in names]))
        response.release()
        if response.final:
            finished.set_result(None)

    request = request_of("e", graph.given, requested_outputs=graph.requested)
    lab.engine.submit(lab.engine.repository.catalogue.find("e"), request, on_response)
    async with asyncio.timeout(DEADLINE_S):
        await finished
    await nothing_held(lab.engine)
    return found


def by_names(responses):
    """Streams that do not meet are answered in any order; each in its own."""
    grouped = defaultdict(list)
    for names, arrays in responses:
        grouped[names].append([array.tolist() for array in arrays])
    return grouped


RANDOM = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.spec("srv-R17")
@RANDOM
@given(graph=graphs(streams=False))
def test_graphs_of_models_that_answer_once(lab: Lab, graph: Graph) -> None:
    lab.run(lab.engine.control.load("e", graph.config, {"file:1/none": b""}))
    (expected,) = evaluate(graph)
    (found,) = lab.run(answered(lab, graph))
    assert found[0] == expected[0]
    assert all(np.array_equal(one, other) for one, other in zip(found[1], expected[1], strict=True))


@pytest.mark.spec("srv-R18")
@RANDOM
@given(graph=graphs(streams=True))
@pytest.mark.thorough
def test_graphs_with_streams(lab: Lab, graph: Graph) -> None:
    try:
        expected = evaluate(graph)
    except UnrelatedStreams:
        error = lab.run(loading_error(lab, graph))
        assert "receives inputs originated from different decoupled models" in error
        return
    lab.run(lab.engine.control.load("e", graph.config, {"file:1/none": b""}))
    assert by_names(lab.run(answered(lab, graph))) == by_names(expected)


async def loading_error(lab: Lab, graph: Graph) -> str:
    try:
        await lab.engine.control.load("e", graph.config, {"file:1/none": b""})
    except InferenceError as error:
        return error.message
    return ""
