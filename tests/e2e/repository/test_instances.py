"""Instance groups: how many executions run at once, under which names, and in which order requests reach them."""

import json
from contextlib import ExitStack

import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.machine import without_gpu
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import serving

WAITING = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.seen = []

    def execute(self, requests):
        self.seen.append([request.request_id() for request in requests])
        pass_gate(self.args["model_repository"], "execute")
        about = {key: self.args[f"model_instance_{key}"] for key in ("name", "kind", "device_id")}
        text = __import__("json").dumps({**about, "pid": os.getpid(), "seen": self.seen})
        out = pb_utils.Tensor("OUT", np.array([text.encode()], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""
)
"""Waits at a gate, and then tells which instance ran it and what it has run so far."""

GROUPS = {
    "three": "instance_group { count: 3 kind: KIND_CPU }",
    "queue": "instance_group { kind: KIND_CPU }",
    "auto": "instance_group { kind: KIND_AUTO }",
    "cpu": "instance_group { kind: KIND_CPU }",
    "model": "instance_group { kind: KIND_MODEL }",
    "several": """instance_group [
        { count: 2 kind: KIND_CPU }, { name: "mine" kind: KIND_MODEL }, { name: "spare" kind: KIND_CPU count: 2 passive: true }
    ]""",
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    repository = tmp_path_factory.mktemp("instances")
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_FP32", [1]))} ] output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
    """
    write_model(repository, "nobody", IDENTITY, identity_config())
    return {name: write_model(repository, name, WAITING, config + text) for name, text in GROUPS.items()}


@pytest.fixture(scope="module")
def server(directories):
    with serving(directories["three"].parent) as server:
        yield server


def request(model, request_id):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}
    return post(f"/v2/models/{model}/infer", json.dumps({"id": request_id, "inputs": [tensor]}).encode())


def told(reply):
    assert reply.status == 200, reply.body
    return json.loads(reply.json["outputs"][0]["data"][0])


class Crowd:
    """Several clients, each with one request to a model that waits at its gate."""

    def __init__(self, server, stack, model, count):
        self._connections = [stack.enter_context(connected(server.port)) for _ in range(count)]
        for number, connection in enumerate(self._connections):
            connection.send(request(model, str(number)))
            server.get("/v2/health/live")  # the server has it: requests arrive in this order

    def answers(self):
        return [told(connection.reply()) for connection in self._connections]


@pytest.fixture
def crowd(server):
    with ExitStack() as stack:
        yield lambda model, count: Crowd(server, stack, model, count)


def wait_for_pending(server, model, count):
    sample = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
    wait_until(lambda: server.metrics()[sample] == count, f"{sample} never became {count}")


@pytest.mark.spec("srv-S01")
def test_as_many_executions_as_instances(server, directories, crowd):
    gate = Gate(directories["three"], "execute")
    clients = crowd("three", 5)
    gate.wait_reached(3)
    wait_for_pending(server, "three", 2)
    assert gate.arrivals == 3
    gate.open()
    answers = clients.answers()
    assert len({answer["pid"] for answer in answers[:3]}) == 3
    assert {answer["name"] for answer in answers[:3]} == {"three_0_0", "three_0_1", "three_0_2"}


TOGETHER = """
import pathlib
import time


class TritonPythonModel:
    def initialize(self, args):
        here = pathlib.Path(args["model_repository"])
        (here / f"{args['model_instance_name']}.arrived").touch()
        end = time.monotonic() + 60
        while len(list(here.glob("*.arrived"))) < 4:
            assert time.monotonic() < end, "the others do not come before this one is through"
            time.sleep(0.005)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
"""Each instance waits in ``initialize`` for all others to be there, too."""


def test_instances_are_initialised_side_by_side(tmp_path):
    groups = "instance_group [ { count: 3 kind: KIND_CPU }, { count: 1 kind: KIND_MODEL } ]"
    directory = write_model(tmp_path, "together", TOGETHER, identity_config(extra=groups))
    with serving(tmp_path) as server:
        assert server.get("/v2/models/together/ready").status == 200
    assert len(list(directory.glob("*.arrived"))) == 4


@pytest.mark.spec("srv-S02")
@pytest.mark.parametrize(
    ("model", "kind"), [pytest.param("auto", "CPU", marks=without_gpu), ("cpu", "CPU"), ("model", "MODEL")]
)
def test_kinds(server, directories, model, kind):
    Gate(directories[model], "execute").open()
    with connected(server.port) as connection:
        connection.send(request(model, "x"))
        answer = told(connection.reply())
    assert (answer["name"], answer["kind"], answer["device_id"]) == (f"{model}_0_0", kind, "0")
    assert server.get(f"/v2/models/{model}/config").json["instance_group"][0]["kind"] == f"KIND_{kind}"


@without_gpu
@pytest.mark.spec("srv-S02")
def test_gpu_where_there_is_none(tmp_path, status_of):
    write_model(tmp_path, "m", IDENTITY, identity_config(extra="instance_group { kind: KIND_GPU }"))
    with serving(tmp_path, flags=("--exit-on-error=false",), ready=False) as server:
        assert status_of(server, "m").startswith(
            "UNAVAILABLE: Invalid argument: instance group m_0 of model m has kind KIND_GPU but server does not support "
            "GPUs. This machine has no NVIDIA driver: there is no /dev/nvidiactl. Set kind: KIND_CPU, or start the server with "
            "--gpu-models=cpu."
        )


def test_models_for_gpus_run_on_the_cpu_if_the_operator_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_SERVER_CPU_ONLY", "1")
    config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_FP32", [1]))} ] output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
        instance_group [ {{ kind: KIND_GPU count: 2 gpus: [ 0, 3 ] }} ]
    """
    Gate(write_model(tmp_path, "m", WAITING, config), "execute").open()
    write_model(tmp_path, "plain", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--gpu-models=cpu",)) as server:
        with connected(server.port) as connection:
            connection.send(request("m", "x"))
            answer = told(connection.reply())
        group = server.get("/v2/models/m/config").json["instance_group"]
        output = server.output
    assert (answer["kind"], answer["device_id"]) == ("CPU", "0")
    assert [(each["kind"], each["count"], each["gpus"]) for each in group] == [("KIND_CPU", 2, [])]
    assert output.count("runs on the CPU: --gpu-models=cpu") == 1
    assert "model 'm' is configured for GPUs, and runs on the CPU: --gpu-models=cpu" in output


@pytest.mark.spec("srv-S03")
def test_several_groups(server, directories, crowd):
    """Two instances of an unnamed group and one of a named one take all there is; the passive two stay idle."""
    gate = Gate(directories["several"], "execute")
    clients = crowd("several", 6)
    gate.wait_reached(3)
    wait_for_pending(server, "several", 3)
    assert gate.arrivals == 3
    gate.open()
    assert {answer["name"] for answer in clients.answers()} == {"several_0_0", "several_0_1", "mine_0"}
    config = server.get("/v2/models/several/config").json["instance_group"]
    assert [(group["name"], group["count"], group["passive"]) for group in config] == [
        ("several_0", 2, False),
        ("mine", 1, False),
        ("spare", 2, True),
    ]


@pytest.mark.spec("srv-S03")
def test_name_of_a_group_that_nobody_wrote(server):
    assert server.get("/v2/models/nobody/config").json["instance_group"][0]["name"] == "nobody"


@pytest.mark.spec("srv-S04")
def test_first_in_first_out(directories, crowd):
    gate = Gate(directories["queue"], "execute")
    clients = crowd("queue", 20)
    gate.wait_reached(1)
    gate.open()
    answers = clients.answers()
    # Each request an execution of its own, in the order of arrival.
    assert answers[-1]["seen"] == [[str(number)] for number in range(20)]
    assert {answer["name"] for answer in answers} == {"queue_0_0"}
