"""Where the bytes of tensors go between steps, and how often they are copied on the way."""

import asyncio
import gc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import validate
from pybackend.ipc.arena import TensorArena
from pybackend.model.ensemble import step_io
from pybackend.model.ensemble.model import EnsembleModel
from pybackend.model.ensemble.run import EnsembleRun
from pybackend.model.ensemble.scope import EnsembleTensor, Scope
from tests.integration.models.conftest import running_engine
from tests.support.ensembles import held, nothing_held, step, write_ensemble, write_mix
from tests.support.repositories import IDENTITY, by_the_server, identity_config, write_model

MIB = 1 << 20
LARGE = 16 * MIB


class Traffic(NamedTuple):
    """Sizes of tensors, in the order of what happened to them."""

    leased: list[int]
    """Room for inputs: whoever asks for it writes it once."""

    copied: list[int]
    """From one memory into another, by the host."""


@pytest.fixture(scope="module")
def engine_and_run(tmp_path_factory) -> Iterator[tuple]:
    repository = tmp_path_factory.mktemp("copies")
    write_model(repository, "identity", IDENTITY, identity_config() + "instance_group { count: 1 kind: KIND_CPU }")
    write_mix(repository)
    tensors = ["IN", "x", "y", "OUT"]
    steps = [step("identity", {"IN": tensors[i]}, {"OUT": tensors[i + 1]}) for i in range(3)]
    write_ensemble(repository, "three", steps)
    write_ensemble(repository, "nested", [step("three", {"IN": "IN"}, {"OUT": "OUT"})])
    write_ensemble(repository, "fan", [step("mix", {"A": "IN", "B": "IN"}, {"S": "x", "D": "y"}), step("mix", {"A": "x", "B": "y", "C": "IN"}, {"S": "OUT"})])  # fmt: skip
    with running_engine(repository) as (engine, run):
        yield engine, run


@pytest.fixture
def traffic(monkeypatch) -> Traffic:
    traffic = Traffic([], [])
    lease, copy = TensorArena.lease, step_io.copy_bytes

    def counting_lease(arena, nbytes, **how):
        traffic.leased.append(nbytes)
        return lease(arena, nbytes, **how)

    async def counting_copy(target, source):
        traffic.copied.append(len(target))
        await copy(target, source)

    monkeypatch.setattr(TensorArena, "lease", counting_lease)
    monkeypatch.setattr(step_io, "copy_bytes", counting_copy)
    return traffic


async def received(engine, name, array):
    """A request whose tensor is received as front ends do it: straight into the memory that the model names."""
    model = engine.repository.catalogue.find(name)
    lease = model.arena_of("IN").lease(array.nbytes)
    lease.view[:] = array.tobytes()
    request = InferenceRequest(name, inputs=[InputTensor("IN", "FP32", array.shape, lease.view, lease)])
    validate(request, model.signature)
    response = await engine.open(model.name, model.version).infer(request)
    assert response.error is None, response.error
    return response


@by_the_server
@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("name", ["three", "nested"])
def test_two_copies_per_hop(engine_and_run, traffic, name) -> None:
    """Of 16 MB through three steps: one by each producer, into its output memory, and one by the host to the next step."""
    engine, run = engine_and_run
    array = np.arange(LARGE // 4, dtype=np.float32)
    response = run(received(engine, name, array))
    (output,) = response.outputs
    # The client's bytes lie where the first step reads them; those of two steps are copied to the next one's input.
    assert traffic.copied == [LARGE, LARGE]
    assert traffic.leased == [LARGE] * 3
    # What the last step has written is what the client is sent.
    assert isinstance(output.data, memoryview)
    assert bytes(output.data) == array.tobytes()
    response.release()
    run(nothing_held(engine))


def test_memory_goes_back_as_soon_as_it_is_read(engine_and_run, traffic) -> None:
    """While the client takes its time, only what it is sent is held."""
    engine, run = engine_and_run

    async def ask() -> None:
        response = await received(engine, "three", np.zeros(MIB, np.float32))
        part = engine.repository.catalogue.find("identity")
        while held(part) != {"output blocks": 1}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert held(engine.repository.catalogue.find("three")) == {}
        response.release()

    run(ask())
    run(nothing_held(engine))


def test_a_request_leaves_no_circles_of_references(engine_and_run) -> None:
    """They would keep memory mapped until the collector looks for them, which an idle server does not."""
    engine, run = engine_and_run

    async def ask(name: str) -> None:
        response = await received(engine, name, np.zeros(MIB, np.float32))
        response.release()
        await nothing_held(engine)

    def alive() -> dict[int, object]:
        kinds = (EnsembleRun, Scope, EnsembleTensor, PendingRequest, InferenceRequest, InferenceResponse)
        return {id(each): each for each in gc.get_objects() if isinstance(each, kinds)}

    run(ask("fan"))
    gc.collect()
    gc.disable()
    try:
        before = alive()  # other tests of this process may hold some
        for name in ("three", "nested", "fan"):
            run(ask(name))
        assert alive().keys() - before.keys() == set()
    finally:
        gc.enable()


@by_the_server
def test_an_input_for_several(engine_and_run, traffic) -> None:
    """It lies in the ensemble's own memory, and each that takes it gets a copy."""
    engine, run = engine_and_run
    array = np.arange(MIB, dtype=np.float32)
    size = array.nbytes
    response = run(received(engine, "fan", array))
    assert traffic.leased == [size] * 6
    assert traffic.copied == [size] * 5
    out = np.frombuffer(response.outputs[0].data, np.float32)
    assert (out == 3 * array + 2 + 3 * array).all()
    response.release()
    run(nothing_held(engine))


def test_memory_that_was_received_before_a_part_was_replaced(tmp_path) -> None:
    """The bytes lie in memory of a version that is gone by the time the request is complete."""
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    write_ensemble(tmp_path, "one", [step("identity", {"IN": "IN"}, {"OUT": "OUT"})])
    with running_engine(tmp_path, explicit=True) as (engine, run):
        array = np.arange(MIB, dtype=np.float32)
        model = engine.repository.catalogue.find("one")
        assert isinstance(model, EnsembleModel)
        lease = model.arena_of("IN").lease(array.nbytes)
        view = lease.view
        view[:] = array.tobytes()
        old = engine.repository.catalogue.find("identity")
        assert old.owns(lease)
        write_model(tmp_path, "identity", IDENTITY + "# changed", None)
        run(engine.control.load("identity"))
        assert engine.repository.catalogue.find("identity") is not old

        async def ask():
            while old.state.value != "UNAVAILABLE":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            request = InferenceRequest("one", inputs=[InputTensor("IN", "FP32", array.shape, view, lease)])
            return await engine.open(model.name, model.version).infer(request)

        response = run(ask())
        assert response.error is None
        assert bytes(response.outputs[0].data) == array.tobytes()
        response.release()
        run(nothing_held(engine))


def test_names_that_no_input_has(engine_and_run) -> None:
    """Callers ask for memory before their request is held against the signature."""
    engine, _run = engine_and_run
    lease = engine.repository.catalogue.find("three").arena_of("NO_SUCH_INPUT").lease(10_000)
    lease.release()
    assert held(engine.repository.catalogue.find("three")) == {}
