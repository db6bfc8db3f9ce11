"""``async def execute`` in models that answer once: awaited one by one, or overlapping where the model allows it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import free_of_processes, serving

SLEEPING = f"""
import asyncio
import json
{GATE}


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        self.inside = self.most = 0
        self.loops = set()
        with open(os.path.join(self.directory, "pid"), "w") as file:
            file.write(str(os.getpid()))

    async def execute(self, requests):
        (request,) = requests
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.loops.add(id(asyncio.get_running_loop()))
        try:
            await self.work(value[0], json.loads(request.parameters()))
        finally:
            self.inside -= 1
        told = np.array([self.most, len(self.loops)], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value), pb_utils.Tensor("TOLD", told)])]

    async def work(self, value, parameters):
        await asyncio.sleep(parameters.get("sleep", 0))
        if "gate" in parameters:
            mark(self.directory, parameters["gate"] + ".reached")
            while not os.path.exists(os.path.join(self.directory, parameters["gate"] + ".open")):
                await asyncio.sleep(0.01)
        if value < 0:
            raise ValueError(f"value {{value}}")
"""
CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [-1]), TOLD=("TYPE_INT32", [2]))} ]
instance_group {{ count: 1 kind: KIND_CPU }}
"""
SYNCHRONOUS = """
class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        call = pb_utils.InferenceRequest(
            model_name="six", inputs=request.inputs(), requested_output_names=["OUT"], parameters={"sleep": 0}
        )
        response, end = None, time.monotonic() + 0.4
        while response is None or time.monotonic() < end:
            response = call.exec()
            assert not response.has_error() and not request.is_cancelled(), response.error().message()
        told = np.zeros(2, np.int32)
        return [pb_utils.InferenceResponse([*response.output_tensors(), pb_utils.Tensor("TOLD", told)])]
"""


def allowing(count):
    return f'{CONFIG} parameters {{ key: "ASYNC_EXECUTE_CONCURRENCY" value {{ string_value: "{count}" }} }}'


@served()
def server(repository):
    write_model(repository, "one", SLEEPING, CONFIG)
    write_model(repository, "six", SLEEPING, allowing(6))
    write_model(repository, "mortal", SLEEPING, allowing(6))
    write_model(repository, "synchronous", f"import time\n{SYNCHRONOUS}", allowing(6))


def ask(server, model, *values, **parameters):
    """Send requests at once; their answers in the order of the values."""
    with ThreadPoolExecutor(max(1, len(values))) as pool:
        return list(
            pool.map(
                lambda value: infer(server, model, {"IN": np.array([value], np.int32)}, parameters=parameters), values
            )
        )


def outcome(answer):
    return answer["OUT"].tolist() if answer.status == 200 else answer.error


@pytest.mark.spec("pb-E11")
def test_without_the_option_they_run_one_after_the_other(server):
    answers = ask(server, "one", *range(5), sleep=0.05)
    assert [outcome(answer) for answer in answers] == [[value] for value in range(5)]
    assert {tuple(answer["TOLD"].tolist()) for answer in answers} == {(1, 1)}


@pytest.mark.spec("pb-E12")
def test_two_requests_wait_at_the_same_time(server):
    gates = {name: Gate(server.repository / "six", name) for name in ("one_waits", "another_waits")}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, server, "six", number, gate=name) for number, name in enumerate(gates)]
        for gate in gates.values():
            gate.wait_reached()
        for gate in gates.values():
            gate.open()
        answers = [answer for future in asked for answer in future.result()]
    assert [outcome(answer) for answer in answers] == [[0], [1]]


@pytest.mark.spec("pb-E12")
def test_no_more_overlap_than_allowed(server):
    gate = Gate(server.repository / "six", "full")
    with gate.holding(lambda: ask(server, "six", *range(24), gate="full"), 6) as asked:
        gate.open()
        answers = asked.result()
    assert [outcome(answer) for answer in answers] == [[value] for value in range(24)]
    assert max(answer["TOLD"][0] for answer in answers) == 6
    assert {answer["TOLD"][1] for answer in answers} == {1}, "there is one event loop"


@pytest.mark.spec("pb-E12")
def test_later_requests_overtake(server):
    gate = Gate(server.repository / "six", "overtaken")
    with gate.holding(lambda: ask(server, "six", 7, gate="overtaken")) as slow:
        assert [outcome(answer) for answer in ask(server, "six", *range(20))] == [[value] for value in range(20)]
        assert not slow.done()
        gate.open()
        assert outcome(slow.result()[0]) == [7]


@pytest.mark.spec("pb-E12")
def test_errors_of_overlapping_executions(server):
    """Each exception is the answer to its own request only."""
    answers = ask(server, "six", *range(-8, 8), sleep=0.02)
    for value, answer in zip(range(-8, 8), answers, strict=True):
        if value >= 0:
            assert outcome(answer) == [value]
        else:
            expected = (
                f"Failed to process the request(s) for model 'six_0_0', message: ValueError: value {value}\n\nAt:"
            )
            assert answer.status == 500
            assert answer.error.startswith(expected)


def test_coroutines_that_never_wait(server):
    assert [outcome(answer) for answer in ask(server, "six", *range(30))] == [[value] for value in range(30)]


def test_death_while_several_run(server):
    """All that have begun are answered; what had not goes to the next process."""
    gate = Gate(server.repository / "mortal", "held")
    with gate.holding(lambda: ask(server, "mortal", *range(9), gate="held"), 6) as held:
        wait_until(lambda: pending_count(server) == 3, "six of nine run")
        pid = int((server.repository / "mortal/pid").read_text())
        os.kill(pid, signal.SIGKILL)
        gate.open()
        outcomes = [outcome(answer) for answer in held.result()]
    failed = [text for text in outcomes if isinstance(text, str)]
    assert len(failed) == 6
    assert all(text.startswith("Stub process 'mortal_0_0' is not healthy.") for text in failed)
    assert free_of_processes([pid])
    assert outcome(ask(server, "mortal", 5)[0]) == [5]


def pending_count(server):
    return server.metrics()['nv_inference_pending_request_count{model="mortal",version="1"}']


def test_a_model_that_is_not_async_may_have_the_option(server):
    """Its executions come one after the other, also while it waits for other models."""
    outcomes = [outcome(answer) for answer in ask(server, "synchronous", *range(4))]
    assert outcomes == [[value] for value in range(4)]
    assert "broke the protocol" not in server.output


def test_stop_waits_for_coroutines(tmp_path):
    write_model(tmp_path, "six", SLEEPING, allowing(6))
    gate = Gate(tmp_path / "six", "last")
    with serving(tmp_path) as server, gate.holding(lambda: ask(server, "six", *range(6), gate="last"), 6) as asked:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests to complete")
        gate.open()
        answers = asked.result()
        assert server.wait() == 0
    assert [outcome(answer) for answer in answers] == [[value] for value in range(6)]


def test_values_of_the_option(tmp_path):
    values = ("0", "-1", "many", "1.5", "")
    for number, value in enumerate(values):
        write_model(tmp_path, f"wrong_{number}", SLEEPING, allowing(value))
    with serving(tmp_path, ready=False, flags=("--exit-on-error=false",)) as server:
        for number, value in enumerate(values):
            server.wait_for(
                f"model 'wrong_{number}': parameters ASYNC_EXECUTE_CONCURRENCY must be a whole number of at least 1, it is "
                f"'{value}'"
            )
