"""Parts of an application die while requests come."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.addons.ray.conftest import Application, processes, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.faults, pytest.mark.thorough, pytest.mark.timeout(600)]


_PAUSE_S = 0.05
"""After a failure: a caller that knocks at a closed port all the time says nothing about what is lost."""


class Load:
    """Callers over each protocol, which send one request after the other."""

    def __init__(
        self, application: Application, model: str = "add_sub", callers: int = 1, expected: Sequence[float] = (2.0,)
    ) -> None:
        self.answered = 0
        self.values: set[float] = set()
        self.failures: list[str] = []
        self._application = application
        self._model = model
        self._expected = set(expected)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(module, url))
            for module, url in ((httpclient, application.http), (grpcclient, application.grpc)) * callers
        ]

    def _call(self, module: object, url: str) -> None:
        inputs = [
            module.InferInput(name, [4], "FP32").set_data_from_numpy(np.ones(4, np.float32))
            for name in ("INPUT0", "INPUT1")
        ]
        while not self._ended.is_set():
            with module.InferenceServerClient(url) as client:
                try:
                    while not self._ended.is_set():
                        self.values.add(float(client.infer(self._model, inputs).as_numpy("OUTPUT0")[0]))
                        self.answered += 1
                except Exception as error:
                    self.failures.append(f"{module.__name__}: {error!r} {error}")
                    self._ended.wait(_PAUSE_S)

    def wait_for_more(self, count: int = 50) -> None:
        goal = self.answered + count
        wait_until(lambda: self.answered >= goal, "requests are answered", self._application)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            self.wait_for_more()
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
        assert self.values <= self._expected


def pid_of(text: str, application: Application) -> int:
    """A process of this application's cluster whose command line has a text."""
    (pid,) = [pid for pid, command in processes().items() if text in command and mine(pid, application)]
    return pid


def mine(pid: int, application: Application) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"HOME={application.environment['HOME']}".encode() in file.read()
    except OSError:
        return False


def kill_and_wait(find: Callable[[], int], application: Application) -> None:
    victim = find()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: _found(find) not in {None, victim}, "another one has started", application)


def _found(find: Callable[[], int]) -> int | None:
    try:
        return find()
    except ValueError:
        return None


def test_requests_are_answered_without_the_coordinator(application: Application) -> None:
    load = Load(application)
    with load.running():
        kill_and_wait(lambda: pid_of("ServeReplica:pybackend:Coordinator", application), application)
        with httpclient.InferenceServerClient(application.http) as client:
            wait_until(client.is_server_ready, "two replicas are ready", application)
        load.wait_for_more()
    assert load.failures == []


def test_requests_are_answered_while_a_replica_is_replaced(application: Application) -> None:
    """Those that the killed server had are lost, with their connections."""
    load = Load(application)
    with load.running():
        os.kill(application.servers()[0], signal.SIGKILL)
        wait_until(lambda: len(application.servers()) < 2, "the server has ended", application)
        with httpclient.InferenceServerClient(application.http) as client:
            wait_until(lambda: not client.is_server_ready(), "one is missing", application)
            wait_until(client.is_server_ready, "two replicas are ready", application)
        load.wait_for_more()
    assert len(load.failures) <= 4, load.failures
    broken = ("broke: whether it has run", "UNAVAILABLE", "connection closed")
    assert all(any(text in failure for text in broken) for failure in load.failures), load.failures


def test_without_a_replica_nobody_is_told_that_the_application_is_ready(application: Application) -> None:
    inputs = [
        grpcclient.InferInput(name, [4], "FP32").set_data_from_numpy(np.ones(4, np.float32))
        for name in ("INPUT0", "INPUT1")
    ]

    def ready() -> tuple[bool, bool]:
        with httpclient.InferenceServerClient(application.http) as http:  # the entrance may close a connection
            return http.is_server_ready(), grpc.is_server_ready()

    def has_replica() -> bool:
        with suppress(HTTPError):
            return urlopen(f"http://{application.http}/-/healthz").status == 200
        return False

    def is_answered() -> bool:
        with suppress(InferenceServerException):
            return bool(grpc.infer("add_sub", inputs).as_numpy("OUTPUT0")[0] == 2.0)
        return False

    with grpcclient.InferenceServerClient(application.grpc) as grpc:
        wait_until(lambda: ready() == (True, True), "two replicas are ready", application)
        for pid in application.servers():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not has_replica(), "the entrance notices", application)
        assert (is_answered(), *ready()) == (False, False, False)
        wait_until(lambda: ready() == (True, True), "two replicas are ready", application)
        assert is_answered()


def test_another_haproxy_takes_the_place_of_a_killed_one(application: Application) -> None:
    load = Load(application)
    with load.running():
        os.kill(haproxy(application), signal.SIGKILL)
        load.wait_for_more()
    assert load.answered


def haproxy(application: Application) -> int:
    (pid,) = [
        pid
        for pid, command in processes().items()
        if "haproxy" in command and f"{application.environment['HOME']}/" in command
    ]
    return pid
