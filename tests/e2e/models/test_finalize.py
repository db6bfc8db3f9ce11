"""``finalize``, and the end of models in general: when the server stops, whatever they do with it."""

import time

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import identity_config, write_model
from tests.support.server import free_of_processes, serving

ONE = "instance_group { kind: KIND_CPU }"
MODEL = """
import os
import sys
import threading
import time


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        with open(os.path.join(self.directory, "marker"), "a") as marker:
            print(os.getpid(), file=marker)
        {statement}
"""
ENDINGS = {
    "ordinary": "pass",
    "raises": "raise ValueError('at the very end')",
    "raises_model_exception": "raise pb_utils.TritonModelException('not seen by clients')",
    "logs": "pb_utils.Logger.log_info('last words'); print('printed at the end')",
    "quits": "sys.exit(3)",
    "exits": "os._exit(0)",
    "calls_a_model": "pb_utils.InferenceRequest(model_name='x', inputs=[], requested_output_names=[]).exec()",
    "takes_a_while": "time.sleep(0.5)",
    "daemon_thread": "threading.Thread(target=time.sleep, args=[1000], daemon=True).start()",
}
"""Last statement of a ``finalize``, by the model's name."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A server that has served one request of each model and has been stopped."""
    repository = tmp_path_factory.mktemp("finalize")
    for name, statement in ENDINGS.items():
        write_model(repository, name, MODEL.format(statement=statement), identity_config(extra=ONE))
    write_model(
        repository,
        "several",
        MODEL.format(statement="pass"),
        identity_config(extra="instance_group { count: 3 kind: KIND_CPU }"),
    )
    write_model(repository, "without", "class TritonPythonModel:\n    execute = list", identity_config())
    with serving(repository) as server:
        for name in (*ENDINGS, "several"):
            assert infer(server, name, {"IN": np.ones(2, np.float32)})["OUT"].tolist() == [1, 1]
        server.pids = server.stub_pids()
        server.repository = repository
        server.status = server.stop()
    return server


@pytest.mark.spec("pb-F01")
@pytest.mark.parametrize("model", ENDINGS)
def test_finalize_is_called_once(stopped, model):
    (pid,) = (stopped.repository / model / "marker").read_text().split()
    assert int(pid) in stopped.pids


@pytest.mark.spec("pb-F01")
def test_finalize_is_called_once_per_instance(stopped):
    pids = [int(pid) for pid in (stopped.repository / "several/marker").read_text().split()]
    assert len(pids) == len(set(pids)) == 3
    assert set(pids) < set(stopped.pids)


@pytest.mark.spec("pb-F02")
def test_exceptions_are_only_logged(stopped):
    assert stopped.status == 0
    for name, text in (
        ("raises", "ValueError: at the very end"),
        ("raises_model_exception", "TritonModelException: not seen by clients"),
        ("quits", "SystemExit: 3"),
        ("calls_a_model", "TritonModelException: BLS is only supported during the 'execute' function."),
    ):
        lines = [line for line in stopped.output.splitlines() if f"Failed to finalize model: {text}" in line]
        assert len(lines) == 1, name
        assert lines[0].startswith("I")
        if name != "calls_a_model":
            assert f"{name}/1/model.py(" in lines[0]


def test_nothing_is_slow_without_need(stopped):
    assert "missed its" not in stopped.output
    assert free_of_processes(stopped.pids)


def test_last_words_are_written(stopped):
    assert "last words" in stopped.output
    assert "printed at the end" in stopped.output


ENDLESS = {
    "sleeps": "time.sleep(3600)",
    "leaves_a_thread": "threading.Thread(target=time.sleep, args=[3600]).start()",  # which is waited for at exit
    "computes": "exec('while True: pass')",
    "waits_for_ever": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@pytest.mark.spec("pb-F03")
def test_shutdown_is_bounded(tmp_path):
    for name, statement in ENDLESS.items():
        write_model(tmp_path, name, MODEL.format(statement=statement), identity_config(extra=ONE))
    write_model(tmp_path, "ordinary", MODEL.format(statement="pass"), identity_config())
    with serving(tmp_path, flags=("--exit-timeout-secs=1",)) as server:
        pids = server.stub_pids()
        began_s = time.monotonic()
        server.stop()
        took_s = time.monotonic() - began_s
    assert took_s > 0.9
    for name in ENDLESS:
        assert f"instance '{name}_0_0' missed its" in server.output
        assert (tmp_path / name / "marker").exists()
    assert (tmp_path / "ordinary/marker").exists()
    assert "instance 'ordinary_0" not in server.output
    assert free_of_processes(pids)
