"""The life of models in an engine: kinds of instances, unloading, memory that comes and goes, answers that do not wait."""

import asyncio
import json
import time
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.gpus import Gpu, Gpus
from pybackend.inference.request import InferenceRequest
from pybackend.model.host import ModelHost
from pybackend.model.model import ModelState
from pybackend.model.python_model import PythonModel
from pybackend.model.source import ModelSource
from pybackend.modelconfig.loader import load_config
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.settings import ModelSettings
from tests.integration.models.conftest import running_engine
from tests.support.descriptors import open_descriptors
from tests.support.engine import input_tensor, output_array, services_without_models, unload
from tests.support.ensembles import held
from tests.support.gates import GATE, Gate
from tests.support.repositories import identity_config, tensors, write_model

TELL = """
import json
import os


class TritonPythonModel:
    def initialize(self, args):
        self.told = [args["model_instance_" + key] for key in ("name", "kind", "device_id")]
        self.told.append(os.environ.get("CUDA_VISIBLE_DEVICES"))

    def execute(self, requests):
        told = np.array([json.dumps(self.told)], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", told)]) for _ in requests]
"""
TELL_CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
"""
FINALIZING = """
import os
import time


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] < 0:
            time.sleep(0.3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        with open(os.path.join(self.directory, "marker"), "a") as marker:
            print(os.getpid(), file=marker)
"""
KEEPING = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            if array[0] == 1:  # keep
                self.kept.append(array)
            elif array[0] == 2:  # let go
                self.kept.clear()
            total = sum(float(array.sum()) for array in self.kept)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([total], np.float32))]))
        return responses
"""
SLOW_NOW_AND_THEN = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0]:
            pass_gate(self.directory, "slow")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("life")
    for name, code in (("keeping", KEEPING), ("now_and_then", SLOW_NOW_AND_THEN), ("other", SLOW_NOW_AND_THEN)):
        write_model(repository, name, code, identity_config())
    for name in ("idle", "busy"):
        write_model(repository, name, FINALIZING, identity_config(extra="instance_group { count: 2 }"))
    return repository


@pytest.fixture(scope="module")
def engine_and_run(repository):
    with running_engine(repository) as (engine, run):
        yield engine, run


def request(model, array):
    return InferenceRequest(model, inputs=[input_tensor("IN", np.asarray(array, np.float32))])


async def answered(engine, model, array):
    """The output of a request, as an array of its own."""
    response = await engine.open(model).infer(request(model, array))
    array = output_array(response, "OUT")
    response.release()
    return array


@pytest.mark.spec("pb-I07")
@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            "instance_group { kind: KIND_GPU gpus: [ 1 ] count: 2 }",
            {("gpus_0_0", "GPU", "0", "GPU-1"), ("gpus_0_1", "GPU", "0", "GPU-1")},
        ),
        (
            "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }",
            {("gpus_0_0", "GPU", "0", "GPU-0"), ("gpus_0_0", "GPU", "0", "GPU-1")},
        ),
        (
            "instance_group { kind: KIND_AUTO }",
            {("gpus_0_0", "GPU", "0", "GPU-0"), ("gpus_0_0", "GPU", "0", "GPU-1")},
        ),
        ("", {("gpus_0", "GPU", "0", "GPU-0"), ("gpus_0", "GPU", "0", "GPU-1")}),
        ("instance_group { kind: KIND_MODEL }", {("gpus_0_0", "MODEL", "0", "of the server")}),
        ("instance_group { kind: KIND_CPU }", {("gpus_0_0", "CPU", "0", "")}),
    ],
)
def test_kinds_on_a_machine_with_two_gpus(tmp_path, monkeypatch, group, expected):
    """What a process sees is a variable, so this needs no GPU. Without a sandbox, no other layer is about GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "of the server")
    directory = write_model(tmp_path, "gpus", TELL, TELL_CONFIG + group)

    async def main():
        launcher = StubLauncher(stage_bundle())
        config = load_config(directory, auto_complete=True)
        host = ModelHost(
            launcher=launcher,
            settings=ModelSettings(memory_limit_bytes=1 << 24),
            gpus=Gpus(tuple(Gpu(f"GPU-{number}", f"GPU-{number}", "", 0, ()) for number in (0, 1))),
        )
        model = PythonModel(ModelSource(directory, config, 1), host, services_without_models(launcher))
        await model.load()
        try:
            seen = set()
            while len(seen) < len(expected):
                answer = asyncio.get_running_loop().create_future()
                model.submit(request("gpus", [0]), answer.set_result)
                (text,) = output_array(await answer, "OUT")
                seen.add(tuple(json.loads(text)))
            assert seen == expected
            assert len(model.instances) == len(expected)
        finally:
            await model.unload(5, 5)
            launcher.close()

    asyncio.run(main())


@pytest.mark.spec("pb-F01")
def test_unload_finalizes_each_instance_once(engine_and_run, repository):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find("idle")
    pids = [instance.pid for instance in model.instances]
    assert run(answered(engine, "idle", [1, 2])).tolist() == [1, 2]
    assert not (repository / "idle/marker").exists()
    assert run(unload(engine, "idle"))
    assert sorted(map(int, (repository / "idle/marker").read_text().split())) == sorted(pids)
    assert model.state is ModelState.UNAVAILABLE
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(InferenceError) as refused:
        engine.repository.catalogue.find("idle")
    assert refused.value.code is ErrorCode.NOT_FOUND
    # Others are not concerned, and unloading once more does nothing.
    assert run(answered(engine, "other", [0])).tolist() == [0]
    assert run(unload(engine, "idle"))
    assert len((repository / "idle/marker").read_text().split()) == 2


@pytest.mark.spec("pb-F01")
def test_unload_answers_what_was_taken_before_it_finalizes(engine_and_run, repository):
    engine, run = engine_and_run

    async def unload_while_busy():
        # More than the instances can run at once: some of them wait in the queue.
        tasks = [asyncio.create_task(answered(engine, "busy", [-1, number])) for number in range(6)]
        await asyncio.sleep(0)
        assert await unload(engine, "busy")
        assert all(task.done() for task in tasks)
        return [task.result()[1] for task in tasks]

    assert run(unload_while_busy()) == list(range(6))
    assert len((repository / "busy/marker").read_text().split()) == 2


@pytest.mark.spec("pb-T06")
def test_memory_of_kept_inputs_belongs_to_the_model_until_it_lets_go(engine_and_run):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find("keeping")
    size = 100_000

    def used_bytes():
        return held(model).get("input bytes", 0)

    def ask(value):
        return float(run(answered(engine, "keeping", np.full(size, value)))[0])

    assert ask(0) == 0
    assert used_bytes() == 0
    for count in range(1, 6):
        assert ask(1) == count * size
        assert used_bytes() >= count * 4 * size
    # Requests that come later leave what was kept as it was.
    for value in range(3, 20):
        assert ask(value) == 5 * size
    assert 5 * 4 * size <= used_bytes() < 6 * 4 * size
    assert ask(2) == 0
    run(asyncio.sleep(0))
    assert used_bytes() == 0


def test_memory_is_given_back_to_the_system_after_a_pause(engine_and_run):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find("other")
    run(answered(engine, "other", np.zeros(3_000_000)))
    assert model.arena.total_bytes > 12_000_000
    before = _shared_bytes(model.instances[0].pid)
    assert before > 12_000_000
    now_ns = time.monotonic_ns()
    model.trim(now_ns)
    model.trim(now_ns + 60 * 10**9)
    assert model.arena.total_bytes == 0
    assert run(answered(engine, "other", [0, 5])).tolist() == [0, 5]  # which the stub reads after it let go
    assert _shared_bytes(model.instances[0].pid) < before - 12_000_000


def _shared_bytes(pid):
    """Size of the tensor memory that a process has mapped."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:" in line:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            total += end - begin
    return total


@pytest.mark.parametrize("position", [1, 10, 19])
def test_answers_do_not_wait_for_a_slow_execution_behind_them(engine_and_run, repository, position):
    """A frame carries several short executions whose answers return together: unless one of them turns out to be long."""
    engine, run = engine_and_run

    async def burst():
        for _ in range(200):  # the model becomes known as a fast one, of which many executions are sent ahead
            await answered(engine, "now_and_then", [0])
        values = [float(number == position) for number in range(20)]
        tasks = [asyncio.create_task(answered(engine, "now_and_then", [value])) for value in values]
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks[:position])
        assert not any(task.done() for task in tasks[position:])
        gate.open()
        assert [found.tolist() for found in await asyncio.gather(*tasks)] == [[value] for value in values]

    gate = Gate(repository / "now_and_then", "slow")
    run(burst())
    gate.close()


def test_descriptors_do_not_pile_up(engine_and_run):
    engine, run = engine_and_run
    for _ in range(3):
        run(answered(engine, "other", np.zeros(300_000)))
    before = open_descriptors()
    for _ in range(50):
        run(answered(engine, "other", np.zeros(300_000)))
    assert not open_descriptors() - before
