"""Inputs in a frame: models get arrays that view it, however odd their shapes are."""

import struct

from pybackend_wire.messages import TAIL, RequestOptions, StubMessage
from tests.integration.stub.conftest import execute

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(list(map(self.doubled, request.inputs()))) for request in requests]

    def doubled(self, tensor):
        if tensor.name() == "UNREAD":
            return pb_utils.Tensor("OUT", np.array(tensor.shape()))
        array = tensor.as_numpy()
        array *= 2
        return pb_utils.Tensor("OUT", array)
"""
NO_ARRAY = [2**62, 0, 2**62]
"""A shape without elements that NumPy does not have."""


def place(name: str, shape: list[int], offset: int, nbytes: int) -> list:
    return [name, "FP32", shape, TAIL, offset, nbytes]


def test_a_shape_that_numpy_does_not_have_fails_only_the_model_that_reads_it(host):
    stub = host(MODEL)
    numbers = struct.pack("<3f", 0, 1, 2)
    inputs = [
        place("IN", [1, 2], 4, 8),
        place("IN", [], 0, 4),
        place("IN", [0, 3], 12, 0),
        place("UNREAD", NO_ARRAY, 0, 0),
    ]
    stub.say(execute(1, *[([each], None, RequestOptions()) for each in inputs]), tail=numbers)
    results = stub.wait_for(StubMessage.RESULT)[6]
    assert [(error, outputs[0][2], outputs[0][5]) for error, outputs, _ in results] == [
        (None, [1, 2], 8),
        (None, [], 4),
        (None, [0, 3], 0),
        (None, [3], 24),
    ]
    stub.say(
        execute(2, ([place("IN", NO_ARRAY, 0, 0)], None, RequestOptions())),
        execute(3, ([inputs[0]], None, None)),
        tail=numbers,
    )
    broken, good = (stub.wait_for(StubMessage.RESULT)[6] for _ in range(2))
    assert "too big" in broken[0][0][1]
    assert good[0][0] is None
