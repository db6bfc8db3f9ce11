"""Resources that instances hold while they execute: what runs together, and who comes first."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pybackend.cli.command_parser import UsageError
from tests.support.command_line import serve_settings
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

WORKER = """
import os
import signal
import time


class TritonPythonModel:
    def execute(self, requests):
        begin = time.monotonic_ns()
        time.sleep(0.01)  # this is the work that would overlap
        if pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        out = pb_utils.Tensor("SPAN", np.array([begin, time.monotonic_ns()]))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""

ON = "--rate-limit=execution_count"


def config(resources, count=1, priority=1):
    written = ", ".join(
        f'{{ name: "{name}" global: {str(everywhere).lower()} count: {number} }}'
        for name, everywhere, number in resources
    )
    return f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_INT64", [1]))} ] output [ {tensors(SPAN=("TYPE_INT64", [2]))} ]
        instance_group {{
          count: {count} kind: KIND_CPU rate_limiter {{ resources [ {written} ] priority: {priority} }}
        }}
    """


def spans(server, *models, each=8):
    """Ask models for this many executions, all at once; returns when each began and ended."""

    def ask(model):
        return infer(server, model, {"IN": np.int64([1])})["SPAN"].tolist()

    names = [model for _ in range(each) for model in models]
    with ThreadPoolExecutor(len(names)) as threads:
        return list(zip(names, threads.map(ask, names), strict=True))


def most_at_once(found):
    events = sorted([(begin, 1) for _, (begin, _) in found] + [(end, -1) for _, (_, end) in found])
    running = most = 0
    for _, step in events:
        running += step
        most = max(most, running)
    return most


@pytest.mark.spec("srv-R25")
def test_what_executes_together(tmp_path):
    write_model(tmp_path, "one", WORKER, config([("R", True, 1)], count=2))
    write_model(tmp_path, "other", WORKER, config([("R", True, 1)]))
    write_model(tmp_path, "greedy", WORKER, config([("R", True, 2), ("S", False, 1)]))
    write_model(tmp_path, "free", WORKER, config([("T", False, 1)]))
    with serving(tmp_path, flags=(ON, "--rate-limit-resource=R:2")) as server:
        assert most_at_once(spans(server, "one", "other")) == 2
        assert most_at_once(spans(server, "one", "greedy")) <= 2
        both = spans(server, "greedy", "other")  # the greedy one must not starve
        assert not [
            1
            for name, (begin, end) in both
            if name == "greedy" and any(other == "other" and b < end and begin < e for other, (b, e) in both)
        ]
        assert len(spans(server, "free", "greedy")) == 16
    with serving(tmp_path) as server:  # without the flag nobody is kept waiting
        assert most_at_once(spans(server, "one", "other")) == 3


@pytest.mark.spec("srv-R25")
def test_priorities(tmp_path):
    write_model(tmp_path, "first", WORKER, config([("R", True, 1)], priority=1))
    write_model(tmp_path, "second", WORKER, config([("R", True, 1)], priority=2))
    with serving(tmp_path, flags=(ON,)) as server:
        found = spans(server, "first", "second", each=24)
    assert most_at_once(found) == 1  # as much as one needs is what there is
    order = [name for name, _ in sorted(found, key=lambda each: each[1])]
    # The first few come while others still arrive; while both wait, one gets twice as many as the other.
    assert 17 <= order[3:30].count("first") <= 21


def test_what_a_dead_process_held_is_free(tmp_path):
    write_model(tmp_path, "mortal", WORKER, config([("R", True, 1)]))
    write_model(tmp_path, "other", WORKER, config([("R", True, 1)]))
    with serving(tmp_path, flags=(ON,)) as server:
        assert infer(server, "mortal", {"IN": np.int64([-1])}).status == 500
        server.wait_for("instance 'mortal_0_0' is restarted")
        assert most_at_once(spans(server, "other")) == 1
        for pid in server.stub_pids():
            os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'other_0_0' is restarted")
        server.wait_for(r"(?s)(instance 'mortal_0_0' is restarted.*){2}")
        assert most_at_once(spans(server, "other", "mortal")) == 1


@pytest.mark.spec("srv-R25")
def test_models_that_could_never_execute(tmp_path):
    write_model(tmp_path, "large", WORKER, config([("R", True, 2)]))
    write_model(tmp_path, "mixed", WORKER, config([("S", True, 1), ("S", False, 1)]))
    flags = (ON, "--rate-limit-resource=R:1", "--exit-on-error=false", "--strict-readiness=false")
    with serving(tmp_path, flags=flags) as server:
        server.wait_for(
            r'large \| 1 \| UNAVAILABLE: Invalid argument: Resource count for \\"R\\" is limited to 1 which will prevent '
            "scheduling of one or more model instances, the minimum required count is 2"
        )
        server.wait_for(
            r'mixed \| 1 \| UNAVAILABLE: Invalid argument: Resource \\"S\\" is present as both global and device-specific '
            "resource in the model configuration."
        )


def test_counts_per_device():
    settings = serve_settings(["serve", "models", ON, "--rate-limit-resource=R:4", "--rate-limit-resource", "S:2:1"])
    assert settings.resource_limits == {("R", None): 4, ("S", 1): 2}


@pytest.mark.parametrize("value", ["R", "R:", ":1", "R:x", "R:1:2:3", "R:-1"])
def test_mistakes(value):
    with pytest.raises(UsageError) as caught:
        serve_settings(["serve", "models", f"--rate-limit-resource={value}"])
    text = (
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got "
    )
    assert text + value in str(caught.value)


def test_unknown_mode():
    with pytest.raises(UsageError, match="Invalid rate limit mode: on"):
        serve_settings(["serve", "models", "--rate-limit=on"])
