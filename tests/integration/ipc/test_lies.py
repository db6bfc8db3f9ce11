"""A process that speaks the protocol and lies in it: it is killed, its requests are answered, and the host is unharmed."""

import asyncio
import re
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.frontend.calls import model_calls
from pybackend.frontend.calls.model_calls import CallsFromModels
from pybackend.inference.request import InferenceRequest, RequestFlags
from pybackend.ipc import channel
from pybackend.model.model import ModelState
from pybackend_wire.messages import STREAM_WINDOW
from tests.integration.ipc.lies import DEATHS, ITERATIVE, LATE, LIES, LOADS
from tests.integration.models.conftest import running_engine
from tests.support.descriptors import open_descriptors
from tests.support.engine import input_tensor, unload
from tests.support.repositories import identity_config, write_model
from tests.support.thorough import one_in, rows_of

BUNDLE = Path(__file__).parent / "scripted_stub"
BROKE = re.compile(
    r"Stub process '(\w+)_0' is not healthy\. The process broke the protocol between host and model process \((.+)\) and "
    r"was killed\."
)
SMALL, LARGE = np.ones(4, np.float32), np.ones(10_000, np.float32)


def script(code):
    return "def execute(requests):\n    " + code.replace("\n", "\n    ")


def model_name(what):
    return what.replace(" ", "_").replace(",", "")


@pytest.fixture(scope="module")
def engine_and_run(tmp_path_factory, request):
    repository = tmp_path_factory.mktemp("lies")
    scripts = {what: script(code) for what, (code, _) in {**LIES, **DEATHS}.items()}
    scripts |= {what: script(code) for what, (code, _) in ITERATIVE.items()}
    scripts |= {what: script(code) for what, code in LATE.items()}
    scripts |= {what: code for what, (code, _) in LOADS.items() if "def hello" not in code}
    scripts = {what: code for what, code in scripts.items() if what in rows_of(request, "what")}
    scripts["ignores the end"] = "import time\ndef finalize():\n    stub.send((FINALIZED, None))\n    time.sleep(1000)"
    scripts["tells its readiness twice"] = (
        "def initialize(message):\n    stub.send((INITIALIZED, True))\n"
        "def probe():\n    stub.send((READINESS, False, 'not today'), (READINESS, True, ''))"
    )
    scripts["calls when it ends"] = (
        "def finalize():\n    stub.call(1)\n    stub.until(REPLY)\n    stub.call(2)\n    stub.send((FINALIZED, None))\n"
        "    stub.call(3)"
    )
    scripts["calls without end"] = script(
        "for first in range(0, 1 << 40, 1000):\n"
        "    stub.send(*[(CALL, first + n, 'never', -1, False, 0, [], [], None, []) for n in range(1000)])"
    )
    scripts["calls itself at once"] = script(
        "stub.send(*[(CALL, n, 'calls_itself_at_once', -1, False, stub.execution, [], [], None, []) for n in range(200)])\n"
        "replies = [stub.until(REPLY) for _ in range(200)]\n"
        "assert all('the call can never be served' in reply[3][0][1] for reply in replies), replies\n"
        "stub.result(['OUT', 'UINT8', [4], 0, 0, 4], tail=b'done')"
    )
    scripts["calls and dies"] = script(
        "import os\n"
        "for first in range(0, 5000, 1000):\n"
        "    stub.send(*[(CALL, first + n, 'never', -1, False, 0, [], [], None, []) for n in range(1000)])\n"
        "stub.send((CALL, 5000, 'nobody', -1, False, 0, [], [], None, []))\n"
        "stub.until(REPLY)\n"
        "os._exit(1)"
    )
    scripts["asks without reading"] = script(
        "while True:\n    stub.send(*[(IS_MODEL_READY, 1, 'n', 'v' * 1000)] * 100)"
    )
    scripts["descriptors"] = script(
        "import socket\n"
        "try:\n    socket.send_fds(stub.socket, [struct.pack('<II', 2, 0) + b'[]'], [0, 1, 2])\n"
        "except PermissionError:\n    stub.result(['OUT', 'UINT8', [8], 0, 0, 8], tail=b'kept out')"
    )
    scripts["calls with much to carry"] = script(
        "options = ['', 0, 0, 0, 0, {'p': 'x' * (15 << 20)}, 0, '']\n"
        "for number in range(10):\n"
        "    stub.send((CALL, number, 'never', -1, False, 0, [], [], options, []))\n"
        "refused = [stub.until(REPLY) for _ in range(6)]\n"
        "assert all('exceed its limit' in reply[3][0][1] and reply[2] for reply in refused), refused\n"
        "assert [reply[1] for reply in refused] == list(range(4, 10))\n"
        "stub.send((CANCEL_CALL, 3))\n"
        "reply = stub.until(REPLY)\n"
        "assert reply[1] == 3, reply\n"
        "stub.send((CALL, 3, 'never', -1, False, 0, [], [], options, []))\n"
        "stub.send((CALL, 10, 'never', -1, False, 0, [], [], options, []))\n"
        "assert stub.until(REPLY)[1] == 10\n"
        "stub.result(['OUT', 'UINT8', [4], 0, 0, 4], tail=b'done')"
    )
    scripts["calls and sleeps"] = script(
        "import time\n"
        "for n in range(3500):\n    stub.send((CALL, n, 'n' * 1000, -1, False, 0, [], [], None, []))\n"
        "time.sleep(1000)"
    )
    scripts["responds without end"] = script("while True:\n    stub.respond(final=False)")
    scripts["callee"] = ""
    scripts["never"] = "def execute(requests):\n    pass"
    for what, code in scripts.items():
        config = identity_config(extra="sequence_batching { iterative_sequence: true }" if what in ITERATIVE else "")
        if what in {"never", "calls itself at once"}:
            config = config.replace("dims: [ -1 ] }", "dims: [ -1 ] optional: true }", 1)
        if what == "calls and sleeps":
            config = identity_config(extra="instance_group { count: 2 kind: KIND_CPU }")
        write_model(repository, model_name(what), code, config)
        (repository / model_name(what) / "1/model.py").write_text(code)
    with running_engine(repository, bundle=BUNDLE, end_s=1) as (engine, run):
        yield engine, run


def request(model, array):
    return InferenceRequest(model.name, inputs=[input_tensor("IN", array)])


async def answers(engine, name, *arrays):
    """All answers to requests that were sent in one turn; who asks must release them."""
    model = engine.repository.catalogue.find(model_name(name))
    async with asyncio.timeout(60):
        return await asyncio.gather(
            *(engine.open(model.name, model.version).infer(request(model, array)) for array in arrays)
        )


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what other processes do is no event of this loop
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("what", one_in(6, LIES))
def test_lies(engine_and_run, what):
    engine, run = engine_and_run
    (instance,) = engine.repository.catalogue.find(model_name(what)).instances
    pid = instance.pid

    async def scenario():
        # The second request is there for the lies that need two executions; whatever happens, both are answered.
        found = await answers(engine, what, LARGE, LARGE)
        await until(lambda: not Path(f"/proc/{pid}").exists())
        await until(lambda: instance.state.value == "ready")
        return found

    found = run(scenario())
    assert LIES[what][1] in instance.executor.death_cause
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


def test_descriptors_that_nobody_wants(engine_and_run):
    """They do not arrive, or they are the end of whoever has sent them: closing them can take as long as they like."""
    engine, run = engine_and_run
    (instance,) = engine.repository.catalogue.find("descriptors").instances
    pid = instance.pid

    async def scenario():
        (found,) = await answers(engine, "descriptors", SMALL)
        if found.error is not None:
            await until(lambda: instance.state.value == "ready" and instance.pid != pid)
        return found

    found = run(scenario())
    if found.error is None:
        assert bytes(found.outputs[0].data) == b"kept out"
        found.release()
    else:
        assert "it sends file descriptors" in found.error.message


@pytest.mark.parametrize("what", one_in(3, ITERATIVE))
def test_lies_about_another_turn(engine_and_run, what):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find(model_name(what))
    (instance,) = model.instances
    pid = instance.pid

    async def scenario():
        asked = request(model, LARGE)
        asked.correlation_id, asked.flags = 1, RequestFlags.SEQUENCE_START
        async with asyncio.timeout(60):
            answer = await engine.open(model.name, model.version).infer(asked)
        await until(lambda: instance.state.value == "ready" and instance.pid != pid)
        return answer

    answer = run(scenario())
    if answer.error is None:
        answer.release()
    else:
        assert ITERATIVE[what][1] in answer.error.message
    assert ITERATIVE[what][1] in instance.executor.death_cause


@pytest.mark.parametrize("what", one_in(3, LATE))
def test_oddities_that_hurt_nobody(engine_and_run, what):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find(model_name(what))
    pid = model.instances[0].pid
    before = open_descriptors()
    began_ns = time.monotonic_ns()
    for _ in range(3):
        (answer,) = run(answers(engine, what, SMALL))
        assert answer.error is None
        answer.release()
    statistics = model.statistics
    # It counts once its execution is over, which may follow the response.
    run(until(lambda: statistics.success_count == 3))
    # The end of one execution may come after the next request: the three overlap.
    most_ns = 3 * (time.monotonic_ns() - began_ns)
    assert model.instances[0].pid == pid
    # One output segment, at most; processes of other models may begin meanwhile.
    run(until(lambda: len(open_descriptors() - before) <= 1))
    for name in ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns", "success_ns"):
        assert 0 <= getattr(statistics, name) <= most_ns, name


@pytest.mark.parametrize("what", one_in(3, DEATHS))
def test_deaths(engine_and_run, what, snapshot):
    engine, run = engine_and_run
    _, counts_as_begun = DEATHS[what]
    model = engine.repository.catalogue.find(model_name(what))
    if counts_as_begun:
        (answer,) = run(answers(engine, what, LARGE))
        assert answer.error.message.startswith(f"Stub process '{model.name}_0' is not healthy")
        assert answer.error.message == snapshot
        return

    async def scenario():
        # Sent again and again, each time to a new process, until somebody loses patience.
        first = model.instances[0].pid
        pending = asyncio.create_task(engine.open(model.name, model.version).infer(request(model, LARGE)))
        await until(lambda: model.instances[0].pid not in {None, first})
        assert not pending.done()
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)

    run(scenario())


@pytest.mark.parametrize("what", one_in(3, [what for what in LOADS if "def hello" not in LOADS[what][0]]))
def test_lies_while_loading(engine_and_run, what):
    engine, _ = engine_and_run
    (model,) = [model for model in engine.repository.catalogue.models() if model.name == model_name(what)]
    assert model.state is ModelState.UNAVAILABLE
    assert LOADS[what][1] in model.reason


@pytest.mark.parametrize("what", one_in(3, [what for what in LOADS if "def hello" in LOADS[what][0]]))
def test_lies_before_loading(tmp_path, monkeypatch, what):
    """Nothing tells a stub what it is for before it has greeted: these scripts come by the environment."""
    path = tmp_path / "script.py"
    path.write_text(LOADS[what][0])
    monkeypatch.setenv("SCRIPT", str(path))
    (tmp_path / "models").mkdir()
    write_model(tmp_path / "models", "lying", "", identity_config())
    with running_engine(tmp_path / "models", bundle=BUNDLE) as (engine, _):
        (model,) = engine.repository.catalogue.models()
        assert model.state is ModelState.UNAVAILABLE
        assert LOADS[what][1] in model.reason


def test_a_stream_that_heeds_no_pause(engine_and_run):
    """What its receiver does not take would pile up in the host."""
    engine, run = engine_and_run
    model = engine.repository.catalogue.find("responds_without_end")
    (instance,) = model.instances
    answers = []

    async def scenario():
        pending = engine.open(model.name, model.version).submit(request(model, SMALL), answers.append)
        pending.pause()
        await until(lambda: pending.answered)
        await until(lambda: instance.state.value == "ready")

    run(scenario())
    assert len(answers) == STREAM_WINDOW + 1
    assert "more responses than the host accepts" in answers[-1].error.message


def test_calls_without_end(engine_and_run, monkeypatch):
    """They are bounded, as the refusals are that nobody reads, and while they come the loop is there for others."""
    monkeypatch.setattr("pybackend.instance.services.MOST_UNREAD_BYTES", 1 << 20)
    engine, run = engine_and_run
    (instance,) = engine.repository.catalogue.find("calls_without_end").instances
    callee = engine.repository.catalogue.find("never")
    waiting_before = callee.pending_count
    counts = [waiting_before]

    async def scenario():
        flood = asyncio.create_task(answers(engine, "calls_without_end", SMALL))
        while not flood.done():
            await asyncio.sleep(0)
            counts.append(callee.pending_count)
        await until(lambda: instance.state.value == "ready")
        return await flood

    (answer,) = run(scenario())
    assert BROKE.fullmatch(answer.error.message)
    assert "bytes of answers to its calls are unread" in answer.error.message
    assert max(counts) - waiting_before in {
        model_calls.MOST_OPEN_CALLS - 1,
        model_calls.MOST_OPEN_CALLS,
    }  # perhaps one runs
    # A turn of the loop ends with the frame, of a thousand calls, in which the bound is reached.
    assert max(after - before for before, after in pairwise(counts)) <= 1000 + channel.MESSAGES_AT_ONCE
    run(until(lambda: callee.pending_count == waiting_before))


def test_calls_of_a_frame_that_wait_for_themselves(engine_and_run, monkeypatch):
    """All of them are found by one look at the open calls: one for each would take the time of all calls for each."""
    engine, run = engine_and_run
    looks = []
    open_calls = CallsFromModels.open_calls
    monkeypatch.setattr(CallsFromModels, "open_calls", lambda *args: looks.append(args) or open_calls(*args))
    (found,) = run(answers(engine, "calls itself at once", SMALL))
    assert found.error is None, found.error
    assert bytes(found.outputs[0].data) == b"done"
    found.release()
    assert len(looks) < 10


def test_a_process_that_dies_with_many_open_calls(engine_and_run):
    """They are cancelled and answered in slices: others are served in between."""
    engine, run = engine_and_run
    callee = engine.repository.catalogue.find("never")
    waiting_before = callee.pending_count
    counts = [waiting_before]

    async def scenario():
        flood = asyncio.create_task(answers(engine, "calls and dies", SMALL))
        while not flood.done() or callee.pending_count > waiting_before:
            await asyncio.sleep(0)
            counts.append(callee.pending_count)
        return await flood

    (answer,) = run(scenario())
    assert "The process exited with status 1" in answer.error.message
    assert max(counts) - waiting_before in {4999, 5000}  # perhaps one runs
    assert max(before - after for before, after in pairwise(counts)) <= 200


def test_calls_with_much_to_carry(engine_and_run):
    """Their parameters are kept until somebody takes them: so many bytes, then calls are refused until others are
    answered."""
    engine, run = engine_and_run
    (found,) = run(answers(engine, "calls with much to carry", SMALL))
    assert found.error is None, found.error
    assert bytes(found.outputs[0].data) == b"done"
    found.release()


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("ipc.channel.MOST_BACKLOG_BYTES", r"\d+ bytes wait for the stub, which does not read"),
        (
            "instance.services.MOST_UNREAD_BYTES",
            r"\d+ bytes of answers to its calls are unread, 4194304 is the most",
        ),
        (
            "instance.services.MOST_UNREAD_OF_MODEL_BYTES",
            r"\d+ bytes of answers of its model's processes are unread, 4194304 is the most",
        ),
    ],
    ids=["everything", "answers", "answers of a model"],
)
def test_questions_whose_answers_nobody_reads(engine_and_run, monkeypatch, limit, told):
    """They would wait in the host for ever, more and more of them."""
    monkeypatch.setattr(f"pybackend.{limit}", 4 << 20)
    engine, run = engine_and_run
    (answer,) = run(answers(engine, "asks without reading", SMALL))
    broke = BROKE.fullmatch(answer.error.message)
    assert broke, answer.error.message
    assert re.fullmatch(told, broke[2])
    (instance,) = engine.repository.catalogue.find("asks_without_reading").instances
    run(until(lambda: instance.state.value == "ready"))


def test_answers_that_two_processes_of_a_model_do_not_read(engine_and_run, monkeypatch):
    """Together they are too many; for each of them alone they would not be."""
    monkeypatch.setattr("pybackend.instance.services.MOST_UNREAD_OF_MODEL_BYTES", 6 << 20)
    monkeypatch.setattr("pybackend.instance.services.MOST_UNREAD_BYTES", 4 << 20)
    engine, run = engine_and_run

    async def scenario():
        both = [asyncio.ensure_future(answers(engine, "calls and sleeps", SMALL)) for _ in range(2)]
        ended, _ = await asyncio.wait(both, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for each in both:
            each.cancel()
        return [each.result() for each in ended]

    messages = [answer.error.message for (answer,) in run(scenario())]  # the other one may soon reach its own limit
    limit = "bytes of answers of its model's processes are unread, 6291456 is the most"
    assert any(limit in message for message in messages), messages


def test_readiness_is_told_twice(engine_and_run):
    engine, run = engine_and_run
    model = engine.repository.catalogue.find("tells_its_readiness_twice")
    (instance,) = model.instances
    pid = instance.pid

    async def scenario():
        reason = await model.health.not_ready_reason()
        await until(lambda: instance.state.value == "ready" and instance.pid != pid)
        return reason

    assert run(scenario()) == "not today"
    assert "readiness that nobody asked for" in instance.executor.death_cause


def test_calls_at_the_end(engine_and_run):
    """While it finalizes a model's threads may still call; what comes after the last word is nobody's concern."""
    engine, run = engine_and_run
    pid = engine.repository.catalogue.find("calls_when_it_ends").instances[0].pid
    assert run(unload(engine, "calls_when_it_ends"))
    assert not Path(f"/proc/{pid}").exists()
    (answer,) = run(answers(engine, "callee", SMALL))
    assert answer.error is None


def test_one_that_does_not_end(engine_and_run):
    engine, run = engine_and_run
    pid = engine.repository.catalogue.find("ignores_the_end").instances[0].pid
    began_s = time.monotonic()
    run(unload(engine, "ignores_the_end", 5, 0.2))
    assert time.monotonic() - began_s >= 0.2
    assert not Path(f"/proc/{pid}").exists()
