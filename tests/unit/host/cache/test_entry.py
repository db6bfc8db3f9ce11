"""Responses that a cache keeps are copies: of the memory that they came in, nothing is needed any more."""

from __future__ import annotations

from pybackend.cache.entry import ENTRY_BYTES, copy_of, weight_bytes, weight_bytes_of
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor


def test_a_copy_outlives_the_memory_of_its_response():
    memory, released = bytearray(b"abcd"), []
    shape = [2, 2]
    outputs = [OutputTensor("OUT", "UINT8", shape, memoryview(memory))]
    response = InferenceResponse("m", "1", "first", outputs, {"a": 1}, lambda: released.append(1))
    kept = copy_of(response)
    assert kept.nbytes == weight_bytes(response) == weight_bytes_of([4]) == ENTRY_BYTES + 4
    response.release()
    memory[:] = b"next"
    shape.append(7)

    answer = InferenceResponse("m", "1", "second")
    kept.fill(answer)
    (output,) = answer.outputs
    assert (output.name, output.datatype, output.shape, bytes(output.data)) == ("OUT", "UINT8", (2, 2), b"abcd")
    assert answer.parameters == {"a": 1}
    assert answer.id == "second"
    answer.release()
    assert released == [1]
