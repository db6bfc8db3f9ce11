"""Outputs that are not as configured: passed on by default, refused for models that ask for it."""

from __future__ import annotations

import pytest

from tests.support.repositories import write_model
from tests.support.server import serving

# A request names the output to return by an index into these.
MODEL = """
OUTPUTS = [
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 4), np.int16)),
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 5), np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros(4, np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros((2, 4), np.float32)),
]

class TritonPythonModel:
    def execute(self, requests):
        chosen = [int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0]) for request in requests]
        return [pb_utils.InferenceResponse([OUTPUTS[number]()]) for number in chosen]
"""

CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }}
parameters {{ key: "VALIDATE_OUTPUTS" value: {{ string_value: "{switch}" }} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("outputs")
    for switch in ("yes", "no"):
        write_model(repository, f"validates_{switch}", MODEL, CONFIG.format(switch=switch))
    with serving(repository) as running:
        yield running


def ask(server, model, number):
    return server.infer(model, {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [number]}]})


@pytest.mark.spec("pb-E08")
@pytest.mark.parametrize(
    ("number", "datatype", "shape", "complaint"),
    [
        (1, "INT16", [1, 4], "returned output 'OUT' as INT16, but its configuration says FP32"),
        (2, "FP32", [1, 5], "returned output 'OUT' with shape [1, 5], but its configuration says [1, 4]"),
        (3, "FP32", [4], "returned output 'OUT' with shape [4], but its configuration says [1, 4]"),
        (4, "FP32", [2, 4], "returned output 'OUT' with shape [2, 4], but its configuration says [1, 4]"),
    ],
)
def test_what_is_not_as_configured(server, number, datatype, shape, complaint):
    (passed_on,) = ask(server, "validates_no", number).json["outputs"]
    assert (passed_on["datatype"], passed_on["shape"]) == (datatype, shape)
    refused = ask(server, "validates_yes", number)
    assert (refused.status, refused.error) == (500, f"model 'validates_yes' {complaint}")


@pytest.mark.spec("pb-E08")
def test_what_is_as_configured(server):
    (output,) = ask(server, "validates_yes", 0).json["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP32", [1, 4])
