"""Models without inputs, without outputs, and with neither: they load, describe themselves and serve."""

import pytest
import tritonclient.http

from tests.support.repositories import tensors, write_model
from tests.support.served import served

CODE = """
class TritonPythonModel:
    calls = 0

    def execute(self, requests):
        self.calls += len(requests)
        for request in requests:
            print("inputs:", [tensor.name() for tensor in request.inputs()])
        answer = [pb_utils.Tensor("OUT", np.array([self.calls], np.int32))]
        return [pb_utils.InferenceResponse(ANSWER) for _ in requests]
"""
IN, OUT = (
    f"{field} [ {tensors(**{name: ('TYPE_INT32', [1])})} ]" for field, name in (("input", "IN"), ("output", "OUT"))
)
ASK = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [5]}]}


@served()
def server(repository):
    for name, config, answer in (
        ("counter", OUT, "answer"),
        ("sink", IN, "[]"),
        ("bell", "", "[]"),
        ("batching", f"max_batch_size: 4 {OUT}", "[pb_utils.Tensor('OUT', np.array([[7]], np.int32))]"),
    ):
        write_model(repository, name, CODE.replace("ANSWER", answer), f'backend: "python" {config}')


@pytest.mark.spec("srv-H50")
def test_metadata_lists_nothing(server):
    described = {name: server.get(f"/v2/models/{name}").json for name in ("counter", "sink", "bell")}
    assert described["counter"]["inputs"] == described["sink"]["outputs"] == []
    assert described["bell"]["inputs"] == described["bell"]["outputs"] == []
    assert [each["name"] for each in described["counter"]["outputs"] + described["sink"]["inputs"]] == ["OUT", "IN"]


@pytest.mark.spec("srv-H50")
def test_requests_without_inputs(server):
    counts = [server.infer("counter", {"inputs": []}).json["outputs"][0]["data"][0] for _ in range(3)]
    assert counts == [1, 2, 3]
    assert server.infer("bell", {"inputs": []}).json["outputs"] == []
    assert server.infer("sink", ASK).json["outputs"] == []
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.infer("counter", []).as_numpy("OUT").tolist() == [4]
    server.wait_for(r"inputs: \['IN'\]")


@pytest.mark.spec("srv-H50")
def test_a_batching_model_without_inputs_gets_a_batch_of_one(server):
    assert server.infer("batching", {"inputs": []}).json["outputs"] == [
        {"name": "OUT", "datatype": "INT32", "shape": [1, 1], "data": [7]}
    ]


@pytest.mark.spec("srv-H50")
def test_refusals(server, snapshot):
    missing = server.infer("counter", {})
    assert missing.status == 500
    assert missing.error.startswith("Unable to parse 'inputs': attempt to access non-existing object member 'inputs'")
    assert missing.error == snapshot
    for name in ("counter", "bell"):
        surplus = server.infer(name, ASK)
        assert surplus.status == 400
        assert f"expected 0 inputs but got 1 inputs for model '{name}'. Got input(s) ['IN'], but" in surplus.error
    unasked = server.infer("sink", {**ASK, "outputs": [{"name": "OUT"}]})
    assert (unasked.status, unasked.error) == (
        400,
        "unexpected inference output 'OUT' for model 'sink'. It has no outputs",
    )


@pytest.mark.spec("srv-H50")
def test_the_log_says_that_tensors_are_missing(server):
    """A forgotten block is more frequent than a model without tensors."""
    server.wait_for(
        "model 'counter': it has no inputs. If that is a mistake, add an input block to config.pbtxt, or add_"
    )
    server.wait_for(
        "model 'sink': it has no outputs. If that is a mistake, add an output block to config.pbtxt, or add_"
    )
