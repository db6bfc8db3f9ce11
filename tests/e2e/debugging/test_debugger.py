"""``pybackend serve --debug MODEL``: an editor stops in the model's code while nothing times out."""

import json
import os
import random
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support.debug_adapter import attach, debugger_port, line_of
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import free_of_processes, serving
from tests.support.thorough import thorough

MODEL = """
import os

IMPORTED = True  # while importing


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})  # while completing
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        self.scale = 3  # while initializing

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            scaled = array * np.float32(self.scale)  # while executing
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", scaled)]))
        return responses

    def finalize(self):
        del self.scale  # while finalizing
"""
CONFIG = 'backend: "python"'
FLAGS = ("--debug=m", "--debug-port=0")
PATIENT = "--exit-timeout-secs=3600"


@pytest.fixture
def repository(tmp_path):
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def model(repository):
    return write_model(repository, "m", MODEL, CONFIG) / "1" / "model.py"


def test_it_stops_in_execute_and_goes_on(repository, model, send):
    write_model(repository, "other", IDENTITY, identity_config())
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1, 2)
        frame = client.wait_stopped()
        assert (frame["name"], frame["line"]) == ("execute", line_of(model, "while executing"))
        assert frame["reason"] == "breakpoint"
        assert frame["source"]["path"] == str(model)
        assert client.evaluate(frame, "self.scale + 1") == "4"
        assert client.evaluate(frame, "array.tolist()") == "[1.0, 2.0]"
        # The rest of the server serves.
        assert infer(server, "other", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [1]
        assert server.get("/v2/health/live").status == 200
        assert not request.is_answered
        client.evaluate(frame, "array.fill(5)")
        client.resume(frame)
        assert request.wait()["OUT"].tolist() == [15, 15]
        client.detach()
        assert infer(server, "m", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [3], "nobody is attached"


def test_only_the_models_code_is_shown_and_stepped_through(repository, model, send):
    """The code that runs the model is nobody's own: it is not among the frames, and stepping out of execute runs on."""
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        frame = client.wait_stopped()
        assert frame["depth"] == 1
        client.resume(frame, "next")
        frame = client.wait_stopped()
        assert (frame["reason"], frame["line"]) == ("step", line_of(model, "responses.append"))
        client.resume(frame, "stepOut")
        assert request.wait()["OUT"].tolist() == [3]
        client.detach()


@pytest.mark.thorough
def test_waiting_for_a_debugger_everything_can_be_stopped_in(repository, model):
    """The module itself, auto_complete_config, initialize, finalize."""
    with serving(repository, flags=(*FLAGS, "--debug-wait"), ready=False) as server:
        server.wait_for("waiting for a debugger to attach to 127.0.0.1:")
        assert server.get("/v2/health/ready").status == 400
        places = ["while importing", "while completing", "while initializing", "while finalizing"]
        client = attach(server, "m_0", model, *places)
        for place in places[:3]:
            frame = client.wait_stopped()
            assert frame["line"] == line_of(model, place)
            assert server.get("/v2/models/m/ready").status == 400
            client.resume(frame)
        server.wait_ready()
        assert infer(server, "m", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [3]
        server.process.send_signal(signal.SIGTERM)
        frame = client.wait_stopped()
        assert frame["line"] == line_of(model, places[3])
        client.resume(frame)
        assert server.wait() == 0
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, *thorough(signal.SIGINT)])
def test_a_server_that_waits_for_a_debugger_can_be_stopped(repository, model, number):
    with serving(repository, flags=(*FLAGS, PATIENT, "--debug-wait"), ready=False) as server:
        server.wait_for("waiting for a debugger to attach to 127.0.0.1:")
        pids = server.stub_pids()
        assert server.stop(number) == 0
        assert free_of_processes(pids)


@pytest.mark.thorough
def test_what_to_tell_an_editor_can_be_copied_from_the_terminal(repository, model):
    write_model(repository, "m", MODEL, CONFIG + " instance_group { count: 2 kind: KIND_CPU }")
    with serving(repository, flags=FLAGS) as server:
        text = server.wait_for(r'"configurations" in \.vscode/launch\.json:\n((?s:.*?))\nOther clients')[1]
        entries = json.loads(f"[{text}]")
        ports = [debugger_port(server, instance) for instance in ("m_0_0", "m_0_1")]
        assert entries == [
            {
                "name": f"pybackend: m_0_{index}",
                "type": "debugpy",
                "request": "attach",
                "connect": {"host": "127.0.0.1", "port": port},
                "justMyCode": True,
            }
            for index, port in enumerate(ports)
        ]
        clients = [attach(server, f"m_0_{index}", model) for index in range(2)]
        assert len(set(ports)) == 2
        for client in clients:
            client.detach()


def two_free_ports() -> int:
    """The first of two neighbours that nobody listens on, and that the kernel gives to nobody who asks for any port."""
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(1024, lowest_given - 1)
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.mark.thorough
def test_ports_follow_each_other(repository, model):
    """From the given one on."""
    port = two_free_ports()
    write_model(repository, "m", MODEL, CONFIG + " instance_group { count: 2 kind: KIND_CPU }")
    with serving(repository, flags=("--debug=m", f"--debug-port={port}")) as server:
        assert [debugger_port(server, f"m_0_{index}") for index in range(2)] == [port, port + 1]


@pytest.mark.thorough
def test_a_process_that_is_killed_while_stopped_is_restarted_on_its_port(repository, model, send):
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        client.wait_stopped()
        (pid,) = server.stub_pids()
        os.kill(pid, signal.SIGKILL)
        answer = request.wait()
        assert (answer.status, answer.error.split(".")[0]) == (500, "Stub process 'm_0' is not healthy")
        server.wait_ready()
        port = debugger_port(server, "m_0")
        assert len(re.findall(rf"a debugger can attach to 127\.0\.0\.1:{port}", server.output)) == 2
        client.close()
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 2)
        client.resume(client.wait_stopped())
        assert request.wait()["OUT"].tolist() == [6]
        client.detach()
        assert server.stop() == 0
        assert free_of_processes([pid])


@pytest.mark.thorough
def test_an_editor_that_goes_away_leaves_a_model_that_runs(repository, model, send):
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        client.wait_stopped()
        client.close()
        assert request.wait()["OUT"].tolist() == [3]
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        client.resume(client.wait_stopped())
        assert request.wait().status == 200
        client.detach()


def test_no_time_limit_counts_while_a_model_is_debugged(repository, model, send):
    limit = 'parameters { key: "EXECUTION_TIME_LIMIT_S" value { string_value: "0.2" } }'
    write_model(repository, "m", MODEL, f"{CONFIG} {limit}")
    with serving(repository, flags=(*FLAGS, "--exit-timeout-secs=1")) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        frame = client.wait_stopped()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests")
        stopped_s = time.monotonic()
        # Limits of executions are looked after about once a second.
        wait_until(lambda: time.monotonic() - stopped_s > 2.5 or request.is_answered, "time stands still")
        assert not request.is_answered
        client.resume(frame)
        assert request.wait()["OUT"].tolist() == [3]
        assert server.wait() == 0
        client.close()


def test_a_second_signal_ends_a_server_whose_model_is_stopped(repository, model, send):
    with serving(repository, flags=(*FLAGS, PATIENT)) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        client.wait_stopped()
        server.process.send_signal(signal.SIGINT)
        server.wait_for("Waiting for in-flight requests")
        assert server.stop(signal.SIGINT) == 1
        client.close()
        wait_until(lambda: request.is_answered, "the request is neither answered nor refused")


@pytest.mark.thorough
def test_forked_processes_run_through_breakpoints(repository, send):
    """No debugger hears of them: one that stopped there would never go on."""
    code = """
import multiprocessing


def triple(number):
    return 3 * number  # in a fork


class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            numbers = pool.map(triple, requests[0].inputs()[0].as_numpy().tolist())
        assert triple(1) == 3
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers, np.float32))])]
"""
    path = write_model(repository, "m", code, identity_config()) / "1" / "model.py"
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", path, "in a fork")
        request = send(server, "m", 1, 2)
        frame = client.wait_stopped()
        assert (frame["depth"], client.evaluate(frame, "number")) == (2, "1")
        client.resume(frame)
        assert request.wait()["OUT"].tolist() == [3, 6]
        client.detach()


def test_a_port_that_is_taken(repository, model):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        flags = ("--debug=m", f"--debug-port={port}", "--exit-on-error=false")
        with serving(repository, flags=flags, ready=False) as server:
            reason = server.wait_for(r'"failed to load \'m\' version 1: (.*)"\n')[1]
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use. --debug-port chooses another" in reason
    assert "Traceback" not in reason


def test_a_model_that_is_not_there(repository, model):
    with serving(repository, flags=("--debug=n",)) as server:
        assert "--debug n: no model of this name is loaded" in server.output
        assert "launch.json" not in server.output
        assert infer(server, "m", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [3]


@pytest.mark.thorough
def test_threads_of_the_model_stop_too(repository, send):
    """Coroutines of ``execute`` and ``is_ready`` run beside the main thread."""
    code = """
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        array = requests[0].inputs()[0].as_numpy()  # in a coroutine
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]

    def is_ready(self):
        return True  # in is_ready
"""
    concurrent = 'parameters { key: "ASYNC_EXECUTE_CONCURRENCY" value { string_value: "2" } }'
    path = write_model(repository, "m", code, identity_config(extra=concurrent)) / "1" / "model.py"
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", path, "in a coroutine")
        requests = [send(server, "m", number) for number in (1, 2)]
        for _ in requests:
            client.resume(client.wait_stopped())
        assert [request.wait()["OUT"].tolist() for request in requests] == [[1], [2]]
        client.set_breakpoints(path, [line_of(path, "in is_ready")])
        with ThreadPoolExecutor(1) as pool:
            ready = pool.submit(server.get, "/v2/models/m/ready")
            frame = client.wait_stopped()
            assert (frame["name"], ready.done()) == ("is_ready", False)
            client.resume(frame)
            assert ready.result().status == 200
        client.detach()


@pytest.mark.thorough
def test_a_stopped_model_can_call_others(repository, model, send):
    """From the editor's console: what carries the answer is not stopped."""
    write_model(repository, "other", IDENTITY, identity_config())
    with serving(repository, flags=FLAGS) as server:
        client = attach(server, "m_0", model, "while executing")
        request = send(server, "m", 1)
        frame = client.wait_stopped()
        call = (
            "pb_utils.InferenceRequest(model_name='other', requested_output_names=['OUT'], "
            "inputs=[pb_utils.Tensor('IN', np.float32([7]))]).exec().output_tensors()[0].as_numpy().tolist()"
        )
        assert client.evaluate(frame, call) == "[7.0]"
        client.resume(frame)
        assert request.wait()["OUT"].tolist() == [3]
        client.detach()
