"""Replicas are added while requests wait, and removed when they no longer do, and no request fails meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.addons.ray.conftest import Application, running, wait_until
from tests.addons.ray.test_failures import Load
from tests.support.repositories import write_model

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

CONFIG = """
backend: "python"
instance_group { count: 2 }
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
SLOW = """
import time

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(0.02)  # as long as a model may compute, without the processor that others need
            one, other = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one + other)]))
        return answers
"""


@pytest.mark.parametrize("target", ["--target-waiting=0.5", "--target-ongoing=2"])
def test_replicas_follow_the_load(tmp_path: Path, target: str) -> None:
    """From 1 to 4 and back, with a caller who goes on all the time."""
    write_model(tmp_path / "models", "slow", SLOW, CONFIG)
    flags = ("--replicas=1..4", "--replica-cpus=0.5", "--scale-down-secs=3", "--target-ongoing=1000", target)
    with running(tmp_path / "models", *flags) as application:
        steady, heavy = Load(application, "slow"), Load(application, "slow", 8)
        with steady.running():
            with heavy.running():
                wait_until(lambda: ready(application) == 4, "four replicas are ready", application)
                heavy.wait_for_more(500)
            wait_until(lambda: ready(application) == 1, "one replica is left", application)
            steady.wait_for_more()
    assert steady.failures + heavy.failures == []


def ready(application: Application) -> int:
    return sum(replica["serves"] for replica in application.status()["replicas"])
