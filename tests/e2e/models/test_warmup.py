"""Samples that a model's instances run before the model is ready: their kinds, their order, and what goes wrong."""

import json
import os
import signal

import numpy as np
import pytest

from pybackend_wire.bytes_tensor import encode_elements
from tests.support.inference import infer, strings
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

RECORDER = """
import json


class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"]
        self.seen = []

    def execute(self, requests):
        self.seen.append([
            {t.name(): [str(t.as_numpy().dtype), list(t.as_numpy().shape), t.as_numpy().ravel()[:4].astype(str).tolist()]
             for t in request.inputs()}
            for request in requests
        ])
        text = json.dumps([self.instance, self.seen]).encode()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([[text]], object))]) for _ in requests]
"""
"""Answers with everything that this instance was ever given."""

SAMPLES = """
model_warmup {
  name: "three of zero" batch_size: 3 count: 2
  inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
  inputs { key: "S" value { data_type: TYPE_STRING dims: [ 2 ] zero_data: false } }
}
model_warmup {
  name: "skipped" batch_size: 0
  inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
  inputs { key: "S" value { data_type: TYPE_STRING dims: [ 2 ] zero_data: true } }
}
model_warmup {
  name: "random" batch_size: 1
  inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 5000 ] random_data: false } }
  inputs { key: "S" value { data_type: TYPE_STRING dims: [ 2 ] random_data: true } }
}
model_warmup {
  name: "of files" batch_size: 1
  inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "numbers" } }
  inputs { key: "S" value { data_type: TYPE_STRING dims: [ 2 ] input_data_file: "words" } }
}
"""

CONFIG = f"""
backend: "python"
max_batch_size: 8
input [ {tensors(A=("TYPE_FP32", [-1]), S=("TYPE_STRING", [2]))} ]
output [ {tensors(SEEN=("TYPE_STRING", [1]))} ]
"""

DECOUPLED = """
class TritonPythonModel:
    def initialize(self, args):
        self.rows = 0

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(3):
                self.rows += 1
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("ROWS", np.array([self.rows], np.int32))]))
            print(f"streamed {self.rows} rows in all")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

FUSSY = """
import os, signal


class TritonPythonModel:
    def execute(self, requests):
        if MODE == "raise":
            raise ValueError("not with these")
        if MODE == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no {i}")) for i, _ in enumerate(requests)]
"""


def seen(server):
    inputs = {"A": np.float32([[7, 8]]), "S": strings("x", "y").reshape(1, 2)}
    return json.loads(infer(server, "recorder", inputs)["SEEN"][0, 0])


@served()
def server(repository):
    config = CONFIG + SAMPLES + "instance_group { count: 2 kind: KIND_CPU }"
    directory = write_model(repository, "recorder", RECORDER, config)
    (directory / "warmup").mkdir()
    (directory / "warmup" / "numbers").write_bytes(np.float32([1.5, 2.5, 3.5]).tobytes())
    (directory / "warmup" / "words").write_bytes(encode_elements([b"first", b"second"]))
    streaming = f"""
        backend: "python"
        model_transaction_policy {{ decoupled: true }}
        input [ {tensors(IN=("TYPE_INT64", [1]))} ] output [ {tensors(ROWS=("TYPE_INT32", [1]))} ]
        model_warmup {{
          name: "s" batch_size: 1 count: 2
          inputs {{ key: "IN" value {{ data_type: TYPE_INT64 dims: 1 random_data: true }} }}
        }}
    """
    write_model(repository, "streaming", DECOUPLED, streaming)


@pytest.mark.spec("srv-R20")
def test_every_instance_runs_every_sample_first(server):
    zero = {"A": ["float32", [1, 2], ["0.0", "0.0"]], "S": ["object", [1, 2], ["", ""]]}
    instances = set()
    while len(instances) < 2:  # which of the two instances answers is the scheduler's choice
        instance, executions = seen(server)
        instances.add(instance)
        assert executions[:2] == [[zero] * 3] * 2  # a batch of three, twice; what has a batch size of 0 is left out
        ((dtype, shape, values),) = [request["A"] for request in executions[2]]
        assert (dtype, shape) == ("float32", [1, 5000])
        assert len(set(values)) > 1
        assert all(0 <= float(value) < 1 for value in values)
        assert executions[3][0]["A"] == ["float32", [1, 2], ["1.5", "2.5"]]
        assert executions[3][0]["S"][2] == ["first", "second"]
        assert executions[4][0]["A"][2] == ["7.0", "8.0"]  # the first that a client asked for
    assert instances == {"recorder_0_0", "recorder_0_1"}


@pytest.mark.spec("srv-R20")
def test_samples_are_in_no_statistics(server):
    metrics = server.metrics()
    assert metrics['nv_inference_exec_count{model="streaming",version="1"}'] == 0
    assert metrics['nv_inference_request_success{model="streaming",version="1"}'] == 0


def test_a_decoupled_model_runs_its_samples_too(server):
    assert server.get("/v2/models/streaming/ready").status == 200
    server.wait_for(
        "streamed 6 rows in all"
    )  # a process's output takes another way than its answers, and may come later


def test_a_restarted_instance_is_warm_before_it_takes_requests(server):
    victims = server.stub_pids()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    server.wait_for(r"instance 'recorder_0_\d' is restarted")
    _, executions = seen(server)
    assert len(executions) >= 5, "four of samples come first"


BROKEN = {
    "variable": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ -1 ] zero_data: true } }',
        "warmup setting expects all variable-size dimensions are specified for input 'A'",
    ),
    "short": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "short" } }',
        "warmup setting expects 8 bytes, but the data provided from shortonly has 3 bytes",
    ),
    "nothing": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] } }',
        "warmup setting expects input 'A' to have input_data_type set",
    ),
    "outside": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "../1/model.py" } }',
        "input_data_file '../1/model.py' of input 'A' is outside ",
    ),
    "absent": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "gone" } }',
        "cannot read ",
    ),
    "other_type": (
        'inputs { key: "A" value { data_type: TYPE_INT32 dims: [ 2 ] zero_data: true } }',
        "input 'A' has data_type TYPE_INT32, the model expects TYPE_FP32",
    ),
    "other_dims": (
        'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2, 2 ] zero_data: true } }',
        "input 'A' has dims [2, 2], the model expects [-1]",
    ),
    "unknown": (
        'inputs { key: "B" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }',
        "unexpected input 'B'. The model's inputs are 'A'",
    ),
    "missing": ("", "there is no input 'A', which the model needs"),
}
FAILING = {
    "raise": "failed to run warmup sample 'w': ",
    "die": "failed to run warmup sample 'w': Stub process 'die_0_0' is not healthy.",
    "refuse": "failed to run warmup sample 'w': no 0; no 1;",
}


@pytest.mark.spec("srv-R20")
def test_a_sample_that_fails_fails_the_load(tmp_path):
    def config(inputs):
        return f"""
            backend: "python"
            max_batch_size: 2
            input [ {tensors(A=("TYPE_FP32", [-1]))} ] output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
            instance_group {{ kind: KIND_CPU }}
            model_warmup {{ name: "w" batch_size: 2 {inputs} }}
        """

    good = 'inputs { key: "A" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }'
    for name, (inputs, _) in BROKEN.items():
        directory = write_model(tmp_path, name, FUSSY, config(inputs))
        (directory / "warmup").mkdir()
        (directory / "warmup" / "short").write_bytes(b"abc")
    for name in FAILING:
        write_model(tmp_path, name, f'MODE = "{name}"\n' + FUSSY, config(good))
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        for name, (_, text) in BROKEN.items():
            assert f"UNAVAILABLE: Invalid argument: {text}" in status(server, name)
        for name, text in FAILING.items():
            assert f"UNAVAILABLE: Internal: {text}" in status(server, name)
        assert "not with these" in server.output


def status(server, name):
    """A row of the table that the server prints once it has loaded its models."""
    return server.wait_for(rf'"{name} *\| 1 *\| (.*)"\n')[1]
