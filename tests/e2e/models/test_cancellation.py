"""Clients that go away: what the model is told while it runs, what is never run, and what becomes of the memory."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.connection import connected
from tests.support.gates import Gate, wait_until
from tests.support.inference import infer, infer_message
from tests.support.served import served
from tests.support.streams import function, write_streams

MEMORY_BYTES = 48 * 1024 * 1024
LARGE = np.zeros(4 * 1024 * 1024, np.int32)
"""An input of which the memory limit allows two or three at a time."""

LOOK = """
began = time.monotonic()
pass_gate(state["directory"], "{gate}")
{how}
with open(os.path.join(state["directory"], "{gate}.seen"), "w") as file:
    json.dump([time.monotonic() - began, request.is_cancelled(), sender.is_cancelled()], file)
"""
HOWS = {
    "request": "while not request.is_cancelled(): pass",
    "sender": "while not sender.is_cancelled(): pass",
    "sleeping": "while not request.is_cancelled(): time.sleep(0.01)",
    "computing": "while not request.is_cancelled(): np.linalg.svd(np.random.rand(60, 60))",
    "threads": """
def look():
    while not request.is_cancelled(): time.sleep(0.001)
threads = [in_thread(look) for _ in range(8)]
for thread in threads: thread.join()
""",
}


@served(flags=(f"--model-memory-limit={MEMORY_BYTES}",))
def server(repository):
    write_streams(repository, "single", "")
    write_streams(
        repository, "overlapping", 'parameters { key: "ASYNC_EXECUTE_CONCURRENCY" value { string_value: "4" } }'
    )


def message(code, *, model="single", asynchronous=False, **inputs):
    return infer_message(model, {"CODE": function(code, asynchronous=asynchronous), **inputs})


def cancelled_count(server, model="single"):
    return server.metrics()[f'nv_inference_request_failure{{model="{model}",reason="CANCELED",version="1"}}']


def seen(server, name, model="single"):
    """What the model has seen: after how many seconds, and what request and sender said then."""
    path = server.repository / model / f"{name}.seen"
    wait_until(lambda: path.exists() and path.read_text().endswith("]"), "the model sees that its client is gone")
    return json.loads(path.read_text())


@pytest.mark.spec("pb-C02", "pb-C01")
@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("how", HOWS)
def test_a_running_model_is_told(server, how, leave):
    name = f"{how}_{leave}"
    gate = Gate(server.repository / "single", name)
    with connected(server.port) as connection:
        connection.send(message(LOOK.format(gate=name, how=HOWS[how]) + "return [failed('nobody reads this')]"))
        gate.wait_reached()
        getattr(connection, leave)()
    gate.open()
    assert seen(server, name)[1:] == [True, True]
    assert infer(server, "single", {"CODE": function("return [out(1)]")})["OUT"].tolist() == [1]


@pytest.mark.spec("pb-C02")
@pytest.mark.parametrize("model", ["single", "overlapping"])
def test_a_running_coroutine_is_told(server, model):
    name = f"coroutine_{model}"
    gate = Gate(server.repository / model, name)
    how = "while not request.is_cancelled(): await asyncio.sleep(0.001)"
    code = LOOK.format(gate=name, how=how) + "return [failed('nobody reads this')]"
    with connected(server.port) as connection:
        connection.send(message(code, model=model, asynchronous=True))
        gate.wait_reached()
    gate.open()
    assert seen(server, name, model)[1:] == [True, True]


@pytest.mark.spec("pb-C01")
def test_a_thread_is_told_after_execute_has_returned(server):
    gate = Gate(server.repository / "single", "later")
    code = f"def work():{LOOK.format(gate='later', how=HOWS['request'])}".replace("\n", "\n    ")
    with connected(server.port) as connection:
        connection.send(message(f"{code}\n    sender.send(failed('nobody reads this'), FINAL)\nin_thread(work)"))
        gate.wait_reached()
        assert infer(server, "single", {"CODE": function("return [out(2)]")})["OUT"].tolist() == [2]
    gate.open()
    assert seen(server, "later")[1:] == [True, True]


@pytest.mark.spec("pb-C01")
def test_a_client_that_waits_has_not_cancelled(server):
    code = """
        told = [request.is_cancelled(), sender.is_cancelled()]
        time.sleep(0.05)
        told += [request.is_cancelled(), sender.is_cancelled()]
        return [text(*told, type(told[0]).__name__)]
    """
    answer = infer(server, "single", {"CODE": function(code)})
    assert answer["TEXT"].tolist() == [b"False"] * 4 + [b"bool"]


@pytest.mark.spec("pb-C01")
def test_others_are_not_cancelled(server):
    """One of several that run at once in one process."""
    gate = Gate(server.repository / "overlapping", "among")
    code = """
        await asyncio.get_running_loop().run_in_executor(None, pass_gate, state["directory"], "among")
        end = time.monotonic() + 0.2
        while time.monotonic() < end and not request.is_cancelled():
            await asyncio.sleep(0.005)
        return [out(request.is_cancelled())]
    """
    with connected(server.port) as first, connected(server.port) as second, connected(server.port) as third:
        for connection in (first, second, third):
            connection.send(message(code, model="overlapping", asynchronous=True))
        gate.wait_reached(3)
        second.close()
        gate.open()
        for connection in (first, third):
            reply = connection.reply()
            assert reply.status == 200
            assert reply.body.endswith((0).to_bytes(4, "little"))


@pytest.mark.spec("pb-C02")
@pytest.mark.parametrize("leave", ["close", "reset"])
def test_queued_requests_of_a_client_that_is_gone_are_not_run(server, leave):
    name = f"queue_{leave}"
    gate, ran = Gate(server.repository / "single", name), server.repository / "single" / f"{name}.ran"
    code = f'mark(state["directory"], "{name}.ran")\nreturn [out(1)]'
    before = cancelled_count(server)
    with connected(server.port) as busy, connected(server.port) as staying, ExitStack() as stack:
        busy.send(message(f'pass_gate(state["directory"], "{name}")\nreturn [out(0)]'))
        gate.wait_reached()
        leaving = [stack.enter_context(connected(server.port)) for _ in range(10)]
        for connection in (*leaving, staying):
            connection.send(message(code))
        wait_until(lambda: pending_count(server) >= 11, "all requests are here")
        for connection in leaving:
            getattr(connection, leave)()
        wait_until(lambda: cancelled_count(server) == before + 10, "the requests are dropped")
        gate.open()
        assert busy.reply().status == staying.reply().status == 200
    assert ran.read_text() == "x"


def pending_count(server):
    return server.metrics()['nv_inference_pending_request_count{model="single",version="1"}']


@pytest.mark.spec("pb-C02")
def test_pipelined_requests_of_a_client_that_is_gone(server):
    """The first is cancelled; those behind it never reach the model."""
    gate, ran = Gate(server.repository / "single", "pipelined"), server.repository / "single/pipelined.ran"
    code = LOOK.format(gate="pipelined", how=HOWS["request"]) + "return [out(1)]"
    with connected(server.port) as connection:
        connection.send(message(code) + message('mark(state["directory"], "pipelined.ran")\nreturn [out(1)]') * 5)
        gate.wait_reached()
    gate.open()
    assert seen(server, "pipelined")[1:] == [True, True]
    assert infer(server, "single", {"CODE": function("return [out(3)]")})["OUT"].tolist() == [3]
    assert not ran.exists()


@pytest.mark.spec("pb-C02")
def test_memory_of_clients_that_are_gone_is_free_again(server):
    """Each of these requests takes a third of the memory that the model may have."""
    for number in range(8):
        gate = Gate(server.repository / "single", f"memory_{number}")
        code = LOOK.format(gate=f"memory_{number}", how=HOWS["request"])
        with connected(server.port) as running, connected(server.port) as queued:
            running.send(message(f"{code}return [pb_utils.InferenceResponse(request.inputs())]", IN=LARGE))
            gate.wait_reached()
            queued.send(message("return [out(1)]", IN=LARGE))
            wait_until(lambda: pending_count(server) == 1, "the second request is here")
        gate.open()
        assert seen(server, f"memory_{number}")[1:] == [True, True]
        wait_until(lambda: pending_count(server) == 0, "the second request is dropped")
    answer = infer(server, "single", {"CODE": function('return [out(len(array(request, "IN")))]'), "IN": LARGE})
    assert answer["OUT"].tolist() == [len(LARGE)]


def test_a_large_answer_to_a_client_that_is_gone(server):
    """Its memory too is free again: the limit is for outputs as well."""
    answer = f'return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones({len(LARGE)}, np.int32))])]'
    for number in range(6):
        gate = Gate(server.repository / "single", f"answer_{number}")
        code = LOOK.format(gate=f"answer_{number}", how=HOWS["request"])
        with connected(server.port) as connection:
            connection.send(message(f"{code}{answer}"))
            gate.wait_reached()
        gate.open()
        seen(server, f"answer_{number}")
    assert len(infer(server, "single", {"CODE": function(answer)})["OUT"]) == len(LARGE)


def test_a_model_that_never_looks(server):
    """Its answer is dropped, and nobody else gets it."""
    gate = Gate(server.repository / "single", "blind")
    with connected(server.port) as connection:
        connection.send(message('pass_gate(state["directory"], "blind")\nreturn [out(13)]'))
        gate.wait_reached()
    gate.open()
    assert infer(server, "single", {"CODE": function("return [out(14)]")})["OUT"].tolist() == [14]
