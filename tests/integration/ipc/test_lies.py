"""A process that speaks the protocol and lies in it: it is killed, its requests are answered, and the host is unharmed."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.request import InferenceRequest
from pybackend.model.model import ModelState
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor
from tests.support.repositories import identity_config, write_model

BUNDLE = Path(__file__).parent / "scripted_stub"
BROKE = re.compile(
    r"Stub process '(\w+)_0' is not healthy\. The process broke the protocol between host and model process \((.+)\) and "
    r"was killed\."
)
SMALL, LARGE = np.ones(4, np.float32), np.ones(10_000, np.float32)

LIES = {
    # What is said in `execute`, and what the host finds wrong with it.
    "a block twice in one answer": (
        "segment = stub.output_segment()\nplace = ['OUT', 'UINT8', [64], segment, 0, 64]\nstub.result(place, place)",
        "lies in memory that the stub may not use",
    ),
    "a block that the host still reads": (
        # The test keeps the first answer.
        "if stub.executions == 1:\n    stub.number = stub.output_segment()\n"
        "stub.result(['OUT', 'UINT8', [64], stub.number, 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output that begins beyond the segment": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), 1 << 20, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output that ends beyond the segment": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), (1 << 20) - 32, 64])",
        "lies in memory that the stub may not use",
    ),
    "an offset at the end of all numbers": (
        "stub.result(['OUT', 'UINT8', [64], stub.output_segment(), (1 << 63) - 1, 64])",
        "lies in memory that the stub may not use",
    ),
    "a size at the end of all numbers": (
        "stub.result(['OUT', 'UINT8', [(1 << 63) - 1], stub.output_segment(), 0, (1 << 63) - 1])",
        "lies in memory that the stub may not use",
    ),
    "a shape of very many dimensions": (
        "stub.result(['OUT', 'UINT8', [1 << 62] * 60000, 0, 0, 64])",  # their product would take half a minute
        "a frame does not decode",
    ),
    "an offset beyond all numbers": (
        "stub.result(['OUT', 'UINT8', [64], 0, 1 << 64, 64])",
        "a frame does not decode",
    ),
    "an output in input memory": (
        "stub.result(['OUT', 'UINT8', [64], stub.segment(INPUT), 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "an output where the executions are counted": (
        "stub.result(['OUT', 'UINT8', [8], stub.segment(PROGRESS), 0, 8])",
        "lies in memory that the stub may not use",
    ),
    "an output in a segment that was given back": (
        "segment = stub.output_segment()\nstub.send((DETACHED, segment))\n"
        "stub.result(['OUT', 'UINT8', [64], segment, 0, 64])",
        "lies in memory that the stub may not use",
    ),
    "memory that the host still reads is given back": (
        "segment = stub.output_segment()\nstub.result(['OUT', 'UINT8', [64], segment, 0, 64])\n"
        "stub.send((DETACHED, segment))",
        "dropped output memory that is still being read",
    ),
    "an input is given back twice": (
        "place = [stub.segment(INPUT), 0]\nstub.send((FREE_INPUT, [place]))\nstub.send((FREE_INPUT, [place]))",
        "was not lent",
    ),
    "an input is given back twice in one message": (
        "stub.send((FREE_INPUT, [[stub.segment(INPUT), 0]] * 2))",
        "was not lent",
    ),
    "a part of an input is given back": ("stub.send((FREE_INPUT, [[stub.segment(INPUT), 64]]))", "was not lent"),
    "an output beyond the frame": (
        "stub.result(['OUT', 'UINT8', [5], 0, 0, 5], tail=b'four')",
        "reaches beyond its frame",
    ),
    "a shape that multiplies to a size": (
        "stub.result(['OUT', 'UINT8', [1 << 62, 1 << 62], 0, 0, 0])",
        "is no UINT8",
    ),
    "a shape without elements and bytes": (
        "stub.result(['OUT', 'FP32', [0, 1 << 62], 0, 0, 4], tail=b'four')",
        "is no FP32",
    ),
    "the configuration once more": ("stub.send((COMPLETED, {}))", "Completed is out of place while ready"),
    "the beginning once more": ("stub.send((INITIALIZED,))", "Initialized is out of place while ready"),
    "a failure to load": ("stub.send((FAILED, 'load', [1, 'too late']))", "Failed is out of place while ready"),
    "answers in the wrong number": ("stub.send((RESULT, 1, 1, 1, 1, []))", "wrong number of answers"),
    "another codec": (
        "stub.socket.sendall(struct.pack('<II', 4, 0) + b'\\x91\\x92\\x28\\x00')",
        "a frame does not decode",
    ),
    "a frame that nobody has room for": (
        "stub.socket.sendall(struct.pack('<II', 1 << 31, 0))",
        "frame announces 2147483648 metadata and 0 tail bytes",
    ),
}
"""Code of an ``execute``, by what is wrong with it, and how the host puts it."""

LATE = {
    # What an execution says that is answered all the same.
    "times that run backwards": "stub.result(times=((1 << 63) - 1, 5, 3, 0))",
    "no time at all": "stub.result(times=(0, 0, 0, 0))",
    "times in the future": "stub.result(times=((1 << 63) - 1,) * 4)",
    "more executions than there were": "stub.progress((1 << 64) - 1)\nstub.result()",
    "overlapping outputs": "if stub.executions == 1:\n    stub.number = stub.output_segment()\nsegment = stub.number\n"
    "stub.result(['OUT', 'UINT8', [100], segment, 0, 100], ['OUT', 'UINT8', [100], segment, 64, 100])",
    "descriptors": "import socket\nsocket.send_fds(stub.socket, [b''.join((struct.pack('<II', 2, 0), b'[]'))], [0, 1, 2])\nstub.result()",
    "an empty list of messages": "stub.send()\nstub.result()",
    "memory that was not asked for": "stub.send((FREE_INPUT, []), (DETACHED, 12345))\nstub.result()",
}

DEATHS = {
    # What a process does before it ends, and whether the request counts as begun, which no other process may repeat.
    "half a frame": ("stub.socket.sendall(b'\\x10\\0\\0\\0\\0\\0\\0\\0[[37')\nos._exit(3)", True),
    "says that it has begun what nobody sent": ("stub.progress((1 << 64) - 1)\nos._exit(3)", True),
    "says that it has begun nothing": ("stub.progress(0)\nos._exit(3)", False),
}

LOADS = {
    "another version": (
        "def hello():\n    stub.send((HELLO, 2, 1, '', '', ['json']))",
        "the model runner speaks version 2 of the protocol",
    ),
    "no greeting": ("def hello():\n    stub.send((COMPLETED, None))", "Completed is out of place while starting"),
    "an answer before the question": ("def hello():\n    stub.result()", "Result is out of place while starting"),
    "a greeting twice": (
        "def load(message):\n    stub.send((HELLO, 1, 1, '', '', ['json']))",
        "Hello is out of place while loading",
    ),
    "ready too early": (
        "def load(message):\n    stub.send((INITIALIZED,))",
        "Initialized is out of place while loading",
    ),
    "an odd configuration": (
        "def load(message):\n    stub.send((COMPLETED, {'input': 5, 'max_batch_size': []}))",
        "auto_complete_config",
    ),
    "a configuration that is no document": (
        "def load(message):\n    stub.send((COMPLETED, [1]))",
        "a frame does not decode",
    ),
    "says that it failed, and stays": (
        "import time\ndef load(message):\n    stub.send((FAILED, 'load', [3, 'on purpose']))\n    time.sleep(1000)",
        "on purpose",
    ),
    "hangs up": ("import time\ndef load(message):\n    stub.socket.close()\n    time.sleep(1000)", "is not healthy"),
    "fails to begin, and stays": (
        "import time\ndef initialize(message):\n    stub.send((FAILED, 'initialize', [1, 'not today']))\n    time.sleep(1000)",
        "not today",
    ),
}
"""Scripts that lie before they are ready, and the reason why the model is not loaded."""


def script(code):
    return "def execute(requests):\n    " + code.replace("\n", "\n    ")


def model_name(what):
    return what.replace(" ", "_").replace(",", "")


@pytest.fixture(scope="module")
def engine_and_run(tmp_path_factory):
    repository = tmp_path_factory.mktemp("lies")
    scripts = {what: script(code) for what, (code, _) in {**LIES, **DEATHS}.items()}
    scripts |= {what: script(code) for what, code in LATE.items()}
    scripts |= {what: code for what, (code, _) in LOADS.items() if "def hello" not in code}
    scripts["ignores the end"] = "import time\ndef finalize():\n    stub.send((FINALIZED,))\n    time.sleep(1000)"
    for what, code in scripts.items():
        write_model(repository, model_name(what), code, identity_config())
        (repository / model_name(what) / "1/model.py").write_text(code)
    with running_engine(repository, bundle=BUNDLE) as (engine, run):
        yield engine, run


def request(model, array):
    return InferenceRequest(model.name, inputs=[input_tensor("IN", array)])


async def answers(engine, name, *arrays):
    """All answers to requests that were sent in one turn; who asks must release them."""
    model = engine.model(model_name(name))
    async with asyncio.timeout(10):
        return await asyncio.gather(*(engine.infer(model, request(model, array)) for array in arrays))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  what other processes do is no event of this loop
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("what", LIES)
def test_lies(engine_and_run, what):
    engine, run = engine_and_run
    (instance,) = engine.model(model_name(what)).instances
    pid = instance.pid

    async def scenario():
        # The second request is there for the lies that need two executions; whatever happens, both are answered.
        found = await answers(engine, what, LARGE, LARGE)
        await until(lambda: not Path(f"/proc/{pid}").exists())
        await until(lambda: instance.state.value == "ready")
        return found

    found = run(scenario())
    assert LIES[what][1] in instance.death_cause
    for error in [answer.error for answer in found if answer.error is not None]:
        assert error.code is ErrorCode.INTERNAL
        told = BROKE.fullmatch(error.message)
        assert told, error.message
        assert LIES[what][1] in told[2]
    for answer in found:
        # What was answered before can still be read: its memory stays until it is released.
        assert [bytes(output.data) for output in answer.outputs] == [bytes(64)] * len(answer.outputs)
        answer.release()
    assert instance.pid != pid


@pytest.mark.parametrize("what", LATE)
def test_oddities_that_hurt_nobody(engine_and_run, what):
    engine, run = engine_and_run
    model = engine.model(model_name(what))
    pid = model.instances[0].pid
    before = len(os.listdir("/proc/self/fd"))
    began_ns = time.monotonic_ns()
    for _ in range(3):
        (answer,) = run(answers(engine, what, SMALL))
        assert answer.error is None
        answer.release()
    took_ns = time.monotonic_ns() - began_ns
    assert model.instances[0].pid == pid
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # one output segment and its mapping, at most
    statistics = model.statistics
    assert statistics.success_count == 3
    for name in ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns", "success_ns"):
        assert 0 <= getattr(statistics, name) <= took_ns, name


@pytest.mark.parametrize("what", DEATHS)
def test_deaths(engine_and_run, what):
    engine, run = engine_and_run
    _, counts_as_begun = DEATHS[what]
    model = engine.model(model_name(what))
    if counts_as_begun:
        (answer,) = run(answers(engine, what, LARGE))
        assert (
            answer.error.message == f"Stub process '{model.name}_0' is not healthy. The process exited with status 3."
        )
        return

    async def scenario():
        # Sent again and again, each time to a new process, until somebody loses patience.
        first = model.instances[0].pid
        pending = asyncio.create_task(engine.infer(model, request(model, LARGE)))
        await until(lambda: model.instances[0].pid not in {None, first})
        assert not pending.done()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)

    run(scenario())


@pytest.mark.parametrize("what", [what for what in LOADS if "def hello" not in LOADS[what][0]])
def test_lies_while_loading(engine_and_run, what):
    engine, _ = engine_and_run
    (model,) = [model for model in engine.repository.models() if model.name == model_name(what)]
    assert model.state is ModelState.UNAVAILABLE
    assert LOADS[what][1] in model.reason


@pytest.mark.parametrize("what", [what for what in LOADS if "def hello" in LOADS[what][0]])
def test_lies_before_loading(tmp_path, monkeypatch, what):
    """Nothing tells a stub what it is for before it has greeted: these scripts come by the environment."""
    path = tmp_path / "script.py"
    path.write_text(LOADS[what][0])
    monkeypatch.setenv("SCRIPT", str(path))
    (tmp_path / "models").mkdir()
    write_model(tmp_path / "models", "lying", "", identity_config())
    with running_engine(tmp_path / "models", bundle=BUNDLE) as (engine, _):
        (model,) = engine.repository.models()
        assert model.state is ModelState.UNAVAILABLE
        assert LOADS[what][1] in model.reason


def test_one_that_does_not_end(engine_and_run):
    engine, run = engine_and_run
    pid = engine.model("ignores_the_end").instances[0].pid
    began_s = time.monotonic()
    run(engine.repository.unload("ignores_the_end", 5, 0.2))
    assert 0.2 <= time.monotonic() - began_s < 3
    assert not Path(f"/proc/{pid}").exists()
