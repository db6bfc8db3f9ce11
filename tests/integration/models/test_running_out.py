"""Models whose memory, descriptors or instances run out: every request is answered, and what it held is given back."""

import asyncio
import errno
import json
import os
import resource
import signal

import numpy as np
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.inference.request import InferenceRequest
from pybackend.instance.model_instance import InstanceState
from pybackend.ipc.channel import StubChannel
from pybackend.protocol.limits import BodyLimits
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor
from tests.support.ensembles import held
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model

MIB = 1024 * 1024

TWO_OUTPUTS = """
class TritonPythonModel:
    def execute(self, requests):
        sizes = requests[0].inputs()[0].as_numpy()
        outputs = [pb_utils.Tensor("OUT%d" % n, np.zeros(size, np.uint8)) for n, size in enumerate(sizes)]
        return [pb_utils.InferenceResponse(outputs)]
"""
BREAKABLE = (
    IDENTITY
    + """
    def initialize(self, args):
        import os
        if args["model_instance_name"] == "active_0" and os.path.exists(os.path.join(args["model_repository"], "broken")):
            raise ValueError("the weights are missing")
"""
)


def infer(engine, run, name: str, array: np.ndarray):
    """The answer of a model to one input."""
    model = engine.repository.catalogue.find(name)
    request = InferenceRequest(name, inputs=[input_tensor("IN", array)])
    return run(asyncio.wait_for(engine.open(model.name, model.version).infer(request), 60))


def test_an_output_that_does_not_fit_leaves_nothing_of_its_response_behind(tmp_path):
    config = f"""
    backend: "python"
    input [ {tensors(IN=("TYPE_INT64", [-1]))} ]
    output [ {tensors(OUT0=("TYPE_UINT8", [-1]), OUT1=("TYPE_UINT8", [-1]))} ]
    """
    write_model(tmp_path, "two", TWO_OUTPUTS, config)
    with running_engine(tmp_path, memory_limit_bytes=4 * MIB) as (engine, run):
        for _ in range(3):
            response = infer(engine, run, "two", np.array([2 * MIB, 3 * MIB]))
            assert response.error is not None
            assert response.error.code is ErrorCode.UNAVAILABLE
        response = infer(engine, run, "two", np.array([2 * MIB, 100_000]))
        assert response.error is None
        response.release()


def test_requests_are_refused_when_only_a_passive_instance_is_left(tmp_path):
    groups = 'instance_group [ { name: "active" kind: KIND_CPU }, { name: "passive" kind: KIND_CPU passive: true } ]'
    directory = write_model(tmp_path, "half", BREAKABLE, identity_config(extra=groups))

    async def until_failed(instance):
        async with asyncio.timeout(60):
            while instance.state is not InstanceState.FAILED:  # noqa: ASYNC110  a state has no event
                await asyncio.sleep(0.01)

    with running_engine(tmp_path) as (engine, run):
        instance = next(each for each in engine.repository.catalogue.find("half").instances if each.name == "active_0")
        (directory / "broken").touch()
        os.kill(instance.pid, signal.SIGKILL)
        run(until_failed(instance))
        with pytest.raises(InferenceError, match=r"has no instance that can serve(?s:.*)the weights are missing"):
            infer(engine, run, "half", np.ones(1, np.float32))


@pytest.fixture
def few_descriptors():
    """Leave this process so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def leave(count: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            for _ in range(count):
                os.close(taken.pop())

    def restore() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while taken:
            os.close(taken.pop())

    leave.restore = restore
    yield leave
    restore()


@pytest.mark.parametrize("count", range(3))
def test_without_descriptors_a_request_is_refused_and_holds_nothing(tmp_path, few_descriptors, count):
    """The first is for the input's segment, the second for sending it; then comes that of the output's segment."""
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    with running_engine(tmp_path) as (engine, run):
        model = engine.repository.catalogue.find("identity")
        request = InferenceRequest("identity", inputs=[input_tensor("IN", np.ones(MIB, np.float32))])
        few_descriptors(count)
        try:
            response = run(asyncio.wait_for(engine.open(model.name, model.version).infer(request), 60))
            error = response.error
        except InferenceError as refusal:
            request.release()
            error = refusal
        finally:
            few_descriptors.restore()
        assert error is not None
        assert error.code is ErrorCode.UNAVAILABLE
        response = infer(engine, run, "identity", np.ones(MIB, np.float32))
        assert response.error is None
        response.release()


def test_a_json_body_that_does_not_fit_is_given_back_by_the_asgi_route(tmp_path):
    config = f"""
    backend: "python"
    input [ {tensors(IN0=("TYPE_UINT8", [-1]), IN1=("TYPE_UINT8", [-1]))} ]
    output [ {tensors(OUT0=("TYPE_UINT8", [-1]), OUT1=("TYPE_UINT8", [-1]))} ]
    """
    write_model(tmp_path, "two", IDENTITY, config)
    values = [1] * 600_000
    inputs = [{"name": f"IN{n}", "shape": [len(values)], "datatype": "UINT8", "data": values} for n in range(2)]
    body = json.dumps({"inputs": inputs}).encode()
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v2/models/two/infer", "query_string": b"", "headers": []}
    with running_engine(tmp_path, memory_limit_bytes=MIB) as (engine, run):
        run(make_app(InferFrontend(engine, BodyLimits(), ClientMemory(1 << 30)))(scope, receive, send))
        assert sent[0]["status"] == 503
        assert held(engine.repository.catalogue.find("two")) == {}


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_group_whose_process_gets_no_descriptors(tmp_path, monkeypatch, failing):
    """Not for its stacks, not for its member's socket, and not for its member's memory: it ends, and another one
    starts."""
    calls = []
    post_attach = StubChannel.post_attach

    def refusing(channel, message, *descriptors):
        calls.append(message)
        if len(calls) == failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        post_attach(channel, message, *descriptors)

    async def check(engine):
        async with asyncio.timeout(60):
            with pytest.raises(InferenceError, match="cannot start a model process"):
                await engine.control.load("one")
            await engine.control.load("one")
            await engine.control.unload("one")
            await engine.control.load("one")

    monkeypatch.setattr(StubChannel, "post_attach", refusing)
    with running_engine(tmp_path, explicit=True) as (engine, run):
        group = 'parameters { key: "PROCESS_GROUP" value { string_value: "g" } }'
        write_model(tmp_path, "one", IDENTITY, identity_config(extra=group))
        run(check(engine))
        response = infer(engine, run, "one", np.zeros(1, np.float32))
        assert response.error is None
        response.release()
