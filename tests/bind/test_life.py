"""The life of a program with bound functions and of the server beside it: starts, signals, deaths, forks, and limits."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from pybackend_bind.decorators import batch
from pybackend_bind.exceptions import PyTritonRuntimeError, PyTritonUnrecoverableError, PyTritonValidationError
from pybackend_bind.model_config import ModelConfig, Tensor
from pybackend_bind.triton import Triton, TritonConfig
from pybackend_client import Client, UnavailableError
from tests.support.gates import wait_until
from tests.support.server import DEADLINE_S, free_of_processes

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P15")]

HEAD = """
import logging, os, resource, signal, sys, threading, time
import numpy as np
from pybackend_bind.decorators import batch
from pybackend_bind.exceptions import *
from pybackend_bind.model_config import ModelConfig, Tensor
from pybackend_bind.triton import Triton, TritonConfig

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
go_on = threading.Event()
threading.Thread(target=lambda: sys.stdin.readline() and go_on.set(), daemon=True).start()

def report(*words):
    print(*words, flush=True)

@batch
def wait(x):
    report("runs")
    go_on.wait()
    return {"y": x}

@batch
def identity(x):
    return {"y": x}

def bind(name="identity", function=identity, **config):
    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy"]
    triton.bind(name, function, tensors[:1], tensors[1:], config=ModelConfig(**config))

triton = Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1"))
"""


class Program:
    """A program that binds functions; it has said the server's address and process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Let the function return."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def client(self) -> Client:
        self.server_pid = int(self.line())
        self.address, self.metrics_address = self.line(), self.line()
        return Client(self.address)

    def accepts(self) -> bool:
        """Whether the server takes connections."""
        host, _, port = self.address.partition(":")
        with socket.socket() as sock:
            return sock.connect_ex((host, int(port))) == 0

    def pending(self) -> bool:
        """Whether a request waits."""
        with urlopen(f"http://{self.metrics_address}/metrics") as reply:
            return bool(
                re.search(r"^nv_inference_pending_request_count\{.*\} 1\.0$", reply.read().decode(), re.MULTILINE)
            )

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@contextmanager
def program(code: str) -> Iterator[Program]:
    text = HEAD + textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


SERVE = """
triton.run()
report(triton.server_pid)
report(triton.addresses["http"])
report(triton.addresses["metrics"])
triton.serve()
report("stopped")
"""


def ones() -> dict[str, np.ndarray]:
    return {"x": np.ones((1, 1), np.float32)}


class Call(threading.Thread):
    """A request, and its outcome."""

    def __init__(self, client: Client, model: str) -> None:
        super().__init__()
        self._client, self._model = client, model
        self.outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._client(self._model).infer(**ones())["y"].tolist()
        except Exception as error:  # the test compares it
            self.outcome = error

    def result(self) -> object:
        self.join(DEADLINE_S)
        return self.outcome


def test_when_the_program_is_killed_its_requests_are_answered_and_the_server_ends() -> None:
    with program('bind("wait", wait, max_batch_size=1)' + SERVE) as running, running.client() as client:
        calls = [Call(client, "wait")]
        assert running.line() == "runs"
        waiting = Call(client, "wait")
        wait_until(running.pending, "the second request does not wait")
        running.process.kill()
        for call in [*calls, waiting]:
            error = call.result()
            assert isinstance(error, UnavailableError), error
            assert error.status == 503
        assert re.fullmatch(
            r"Stub process 'wait_0(_0)?' is not healthy. The process \d+, whose function this is, has ended.",
            str(calls[0].outcome),
        )
        assert free_of_processes([running.server_pid])


def test_when_the_server_is_killed_serve_raises_a_sentence() -> None:
    with program("bind()" + SERVE) as running, running.client() as client:
        assert client("identity").infer(**ones())["y"].tolist() == [[1]]
        os.kill(running.server_pid, signal.SIGKILL)
        status, errors = running.end()
    sentence = f"the server, process {running.server_pid}, was killed by signal 9: its requests are lost, and run() starts another one"
    assert (status, errors.splitlines()[-1]) == (1, f"pybackend_bind.exceptions.PyTritonRuntimeError: {sentence}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_serve_once_the_running_requests_are_answered(number: signal.Signals) -> None:
    with program('bind("wait", wait)' + SERVE) as running, running.client() as client:
        call = Call(client, "wait")
        assert running.line() == "runs"
        running.process.send_signal(number)
        wait_until(lambda: not running.accepts(), "the server goes on")
        running.go_on()
        assert call.result() == [[1]]
        assert running.line() == "stopped"
        assert running.end()[0] == 0
        assert free_of_processes([running.server_pid])


def test_a_second_ctrl_c_cuts_requests_short() -> None:
    with program('bind("wait", wait)' + SERVE) as running, running.client() as client:
        call = Call(client, "wait")
        assert running.line() == "runs"
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: not running.accepts(), "the server goes on")
        running.process.send_signal(signal.SIGINT)
        status, errors = running.end()
        assert isinstance(call.result(), Exception)
        assert (status, errors.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
        assert free_of_processes([running.server_pid])


def test_a_program_that_forgets_stop_leaves_nothing() -> None:
    code = """
    bind()
    triton.run()
    report(triton.server_pid)
    report(triton._repository)
    """
    with program(textwrap.dedent(code)) as running:
        pid, repository = int(running.line()), running.line()
        status, errors = running.end()
        assert (status, "Traceback" in errors) == (0, False)
        assert free_of_processes([pid])
        assert not os.path.exists(repository)


def test_forks_have_no_part_in_the_server(snapshot) -> None:
    code = """
    bind()
    triton.run()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            bind("another")
        except PyTritonInvalidOperationError as error:
            report(error)
        report(triton.stop(), triton.is_alive(), triton.server_pid)
        os.write(writing, b"x")
        os.close(1)  # the test reads to the end of the program's output
        os.close(2)
        signal.pause()
    os.read(reading, 1)
    report(pid)
    """
    with program(textwrap.dedent(code) + SERVE) as running:
        assert running.line() == snapshot
        assert running.line() == "False False None"
        child = int(running.line())
        try:
            with running.client() as client:
                assert client("identity").infer(**ones())["y"].tolist() == [[1]]
            running.process.kill()
            assert free_of_processes([running.server_pid]), "the fork keeps the server"
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_program_without_open_files_goes_on_when_it_has_some(snapshot) -> None:
    code = """
    bind()
    triton.run()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, hard))
    kept = []
    try:
        while True:
            kept.append(os.dup(0))
    except OSError:
        pass
    for _ in range(2):
        try:
            bind("another")
        except PyTritonError as error:
            report(type(error).__name__, error)
        os.close(kept.pop())
    for descriptor in kept:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    bind("another")
    """
    with program(textwrap.dedent(code) + SERVE) as running:
        assert running.line() == snapshot
        assert running.line().startswith("PyTritonModelConfigError ")
        with running.client() as client:
            for name in ("identity", "another"):
                assert client(name).infer(**ones())["y"].tolist() == [[1]]


def test_a_function_that_hangs_is_given_up_after_its_time_limit() -> None:
    code = """
    calls = 0

    @batch
    def hang(x):
        global calls
        calls += 1
        if calls == 1:
            go_on.wait()
        return {"y": x * calls}

    bind("hang", hang, parameters={"EXECUTION_TIME_LIMIT_S": "1"})
    """
    with program(textwrap.dedent(code) + SERVE) as running, running.client() as client:
        with pytest.raises(UnavailableError, match="ran `execute` for more than 1 s, its limit"):
            client("hang").infer(**ones())
        wait_until(client.is_ready, "the server is not ready again")
        assert client("hang").infer(**ones())["y"].tolist() == [[2]]


# In this process


def bind(triton: Triton, function=lambda requests: [{"y": request["x"]} for request in requests], **config) -> None:
    tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy"]
    triton.bind("identity", function, tensors[:1], tensors[1:], config=ModelConfig(**config))


FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "http_address": "127.0.0.1"}


def test_serve_in_another_thread_touches_no_signal_and_ends_with_stop() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    triton = Triton(config=TritonConfig(**FREE))
    bind(triton)
    serving = threading.Thread(target=triton.serve)
    serving.start()
    wait_until(triton.is_alive, "the server does not start")
    triton.run()  # it runs: this waits until it is ready
    with Client(triton.addresses["http"]) as client:
        assert client("identity").infer(**ones())["y"].tolist() == [[1]]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert triton.stop()
    serving.join(DEADLINE_S)
    assert not serving.is_alive()


def test_an_error_that_is_unrecoverable_stops_the_server_and_is_raised_by_serve() -> None:
    @batch
    def broken(x):
        raise PyTritonUnrecoverableError("the weights are gone")

    triton = Triton(config=TritonConfig(**FREE))
    bind(triton, broken)
    triton.run()
    with Client(triton.addresses["http"]) as client:
        call = Call(client, "identity")
        with pytest.raises(
            PyTritonUnrecoverableError, match=r"model 'identity' cannot go on, .*: the weights are gone"
        ):
            triton.serve()
        assert "the weights are gone" in str(call.result())
    assert not triton.is_alive()


def test_an_end_of_the_server_before_serve_is_raised_by_serve() -> None:
    @batch
    def broken(x):
        raise PyTritonUnrecoverableError("the weights are gone")

    triton = Triton(config=TritonConfig(**FREE))
    bind(triton, broken)
    triton.run()
    with Client(triton.addresses["http"]) as client:
        Call(client, "identity").result()
    wait_until(lambda: not triton.is_alive(), "the server does not stop")
    with pytest.raises(PyTritonUnrecoverableError, match="the weights are gone"):
        triton.serve()
    triton.run()
    assert triton.server_pid is not None
    os.kill(triton.server_pid, signal.SIGKILL)
    wait_until(lambda: not triton.is_alive(), "the server does not end")
    with pytest.raises(PyTritonRuntimeError, match="was killed by signal 9"):
        triton.serve()


def test_a_port_that_is_taken_is_a_sentence_and_another_one_may_follow() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        triton = Triton(config=TritonConfig(**{**FREE, "http_port": taken.getsockname()[1]}))
        bind(triton)
        with pytest.raises(PyTritonRuntimeError, match=r"the server cannot start: .*in use"):
            triton.run()
        assert not triton.is_alive()
    triton.run()
    assert triton.stop()


def test_flags_and_variables_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ID", "from the environment")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ALLOW_METRICS", "false")
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_EXIT_TIMEOUT_SECS", "7")
    with Triton(config=TritonConfig(**FREE, exit_timeout_secs=8, flags=["--allow-grpc=false"])) as triton:
        assert triton.addresses.keys() == {"http", "grpc", "metrics"}
        assert triton.addresses["grpc"] == triton.addresses["metrics"] == ""
        with urlopen(f"http://{triton.addresses['http']}/v2") as reply:
            assert b"from the environment" in reply.read()


def test_wrong_settings_are_sentences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PyTritonValidationError, match=r"config is of type dict: pass TritonConfig\(...\)"):
        Triton(config={"http_port": 0})
    with pytest.raises(PyTritonRuntimeError, match=r"cannot be started: .*/file: File exists"):
        Triton(config=TritonConfig(**FREE), workspace=tmp_path / "file").run()
    for name, flag in (("GRPC_KEEPALIVE_TIME", "--grpc-keepalive-time"), ("ALLOW_GPU_METRICS", "--allow-gpu-metrics")):
        with monkeypatch.context() as patch:
            patch.setenv(f"PYTRITON_TRITON_CONFIG_{name}", "perhaps")
            with pytest.raises(PyTritonRuntimeError, match=f"cannot start: .*{flag}.*perhaps"):
                Triton(config=TritonConfig(**FREE)).run()


def test_a_server_that_is_stopped_leaves_no_memory_in_the_program() -> None:
    def mapped() -> set[str]:
        return {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line}

    gc.collect()
    before = mapped()
    gc.disable()  # the program may be busy with few, large objects
    try:
        triton = Triton(config=TritonConfig(**FREE))
        bind(triton)
        triton.run()
        with Client(triton.addresses["http"]) as client:
            client("identity").infer(x=np.ones((1, 100_000), np.float32))
        assert mapped() - before
        triton.stop()
        wait_until(lambda: not mapped() - before, "the memory of the server stays")
    finally:
        gc.enable()


def test_a_flag_that_does_not_exist_is_a_sentence() -> None:
    triton = Triton(config=TritonConfig(**FREE, flags=["--no-such-flag"]))
    with pytest.raises(PyTritonRuntimeError, match=r"the server cannot start: .*--no-such-flag"):
        triton.run()
