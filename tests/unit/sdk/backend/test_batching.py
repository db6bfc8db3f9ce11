"""Requests computed together: joined, split, and failing each for itself."""

import numpy as np
import pytest

from pybackend_sdk.backend import Form, execute_batch
from pybackend_sdk.backend.batching import ARRAYS
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.tensor import Tensor


def request(outputs=("y",), **arrays):
    tensors = [Tensor(name, array) for name, array in arrays.items()]
    return InferenceRequest(inputs=tensors, requested_output_names=list(outputs), model_name="m")


class Double:
    """Doubles x, and records the calls."""

    def __init__(self, fails_on=None):
        self.calls = []
        self.fails_on = fails_on

    def __call__(self, inputs, names):
        self.calls.append((inputs["x"], list(names)))
        if self.fails_on is not None and (inputs["x"] == self.fails_on).any():
            raise TritonModelException(f"{self.fails_on} is wrong")
        return {"y": inputs["x"] * 2, "rows": np.full(len(inputs["x"]), len(inputs["x"]))}


def rows(count, value=1.0, width=2):
    return np.full((count, width), value, np.float32)


def outputs_of(responses):
    return [{each.name(): each.as_numpy().tolist() for each in response.output_tensors()} for response in responses]


def test_one_request_is_not_copied():
    run, array = Double(), rows(2)
    outputs = outputs_of(execute_batch([request(x=array)], run, batches=True))
    assert outputs == [{"y": (array * 2).tolist()}]
    assert run.calls[0][0] is array


def test_requests_are_joined_and_split():
    run = Double()
    requests = [request(x=rows(1, 1)), request(x=rows(3, 2)), request(x=rows(2, 3))]
    outputs = outputs_of(execute_batch(requests, run, batches=True))
    assert outputs == [{"y": rows(1, 2).tolist()}, {"y": rows(3, 4).tolist()}, {"y": rows(2, 6).tolist()}]
    assert [len(array) for array, _ in run.calls] == [6]


def test_requests_of_several_shapes_and_outputs():
    """Only alike requests can be joined; answers keep the order of the requests."""
    run = Double()
    requests = [request(x=rows(1, 1)), request(x=rows(1, 2, width=5)), request(("rows",), x=rows(2, 3))]
    outputs = outputs_of(execute_batch(requests, run, batches=True))
    assert outputs == [{"y": rows(1, 2).tolist()}, {"y": rows(1, 4, width=5).tolist()}, {"rows": [3, 3]}]
    assert [(len(array), names) for array, names in run.calls] == [(3, ["y", "rows"]), (1, ["y"])]


@pytest.mark.parametrize("width", [3, 300_000])
def test_rows_that_arrived_are_joined_small_or_large(width):
    """Small ones as bytes; either way the joined array is the model's own, and the outputs are views of one array."""
    arrays = [np.full((count, width), count, np.float32) for count in (1, 2)]
    requests = [request(x=array) for array in arrays]
    for each, array in zip(requests, arrays, strict=True):
        each._inputs[0] = Tensor._from_wire("x", "FP32", list(array.shape), memoryview(bytearray(array.tobytes())))

    def run(inputs, _):
        inputs["x"] += 1
        return {"y": inputs["x"], "turned": inputs["x"].T.copy().T}

    responses = execute_batch(requests, run, batches=True)
    for response, array in zip(responses, arrays, strict=True):
        for tensor in response.output_tensors():
            assert np.array_equal(tensor.as_numpy(), array + 1)
    assert np.array_equal(requests[1].inputs()[0].as_numpy(), arrays[1])


def test_several_inputs_are_joined_by_name():
    """In whichever order they come, and also where each request has another number of rows."""

    def run(inputs, _):
        calls.append(len(inputs["a"]))
        return {"y": inputs["a"] - inputs["b"]}

    for last in ({"a": rows(2, 5), "b": rows(2, 1)}, {"b": rows(2, 1), "a": rows(2, 5)}):
        calls = []
        requests = [request(a=rows(1, 3), b=rows(1, 1)), request(a=rows(1, 2), b=rows(1, 2)), request(**last)]
        outputs = outputs_of(execute_batch(requests, run, batches=True))
        assert outputs == [{"y": rows(1, 2).tolist()}, {"y": rows(1, 0).tolist()}, {"y": rows(2, 4).tolist()}]
        assert calls == [4]


def test_requests_without_wanted_outputs_or_without_inputs_are_answered():
    run = Double()
    assert outputs_of(execute_batch([request((), x=rows(1)), request((), x=rows(1))], run, batches=True)) == [{}, {}]
    responses = execute_batch([request(), request()], lambda inputs, names: {"y": np.ones(1)}, batches=True)
    assert outputs_of(responses) == [{"y": [1.0]}, {"y": [1.0]}]


def test_strings_are_joined():
    words = [np.array([[b"a"], [b"bc"]], np.object_), np.array([[b""]], np.object_)]
    responses = execute_batch(
        [request(x=array) for array in words], lambda inputs, names: {"y": inputs["x"]}, batches=True
    )
    assert outputs_of(responses) == [{"y": [[b"a"], [b"bc"]]}, {"y": [[b""]]}]


def test_an_error_concerns_the_request_that_causes_it():
    run = Double(fails_on=7)
    requests = [request(x=rows(1, 1)), request(x=rows(1, 7)), request(x=rows(2, 3))]
    responses = execute_batch(requests, run, batches=True, repeats=True)
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().message() == "7 is wrong"
    assert outputs_of(responses)[2] == {"y": rows(2, 6).tolist()}


def test_a_computation_that_may_leave_something_behind_is_not_repeated():
    """Neither if it fails, nor if its outputs cannot be split."""
    run = Double(fails_on=7)
    responses = execute_batch([request(x=rows(1, 1)), request(x=rows(1, 7))], run, batches=True)
    together = "(2 requests were computed together, and none is computed twice: any of them may be the cause)"
    assert [response.error().message() for response in responses] == [f"7 is wrong {together}"] * 2
    assert len(run.calls) == 1
    calls = []

    def total(inputs, _):
        calls.append(inputs)
        return {"y": inputs["x"].sum(axis=0)}

    responses = execute_batch([request(x=rows(2, 1)), request(x=rows(2, 2))], total, batches=True)
    shape = "output 'y' has the shape [2] for a batch of 4: its first dimension is not the batch's"
    assert [response.error().message() for response in responses] == [f"{shape} {together}"] * 2
    assert len(calls) == 1


def test_inputs_that_cannot_be_joined_are_computed_alone():
    class Choosy(type(ARRAYS)):
        def join(self, column):
            raise MemoryError

    run = Double()
    responses = execute_batch([request(x=rows(1, 1)), request(x=rows(1, 2))], run, batches=True, form=Choosy())
    assert outputs_of(responses) == [{"y": rows(1, 2).tolist()}, {"y": rows(1, 4).tolist()}]


def test_without_batching_each_request_is_computed_alone():
    run = Double()
    responses = execute_batch([request(x=rows(1)), request(x=rows(1))], run, batches=False)
    assert len(responses) == len(run.calls) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_an_output_can_be_a_tensor(count):
    def run(inputs, _):
        tensor = Tensor.empty("y", inputs["x"].shape, np.float32)
        np.negative(inputs["x"], out=tensor.as_numpy())
        return {"y": tensor}

    responses = execute_batch([request(x=rows(1, n + 1)) for n in range(count)], run, batches=True)
    assert outputs_of(responses) == [{"y": rows(1, -n - 1).tolist()} for n in range(count)]


def test_an_output_without_the_batch_dimension_is_not_split():
    """Computed alone, each request still gets its own."""
    requests = [request(x=rows(2, 1)), request(x=rows(2, 2))]
    responses = execute_batch(
        requests, lambda inputs, names: {"y": inputs["x"].sum(axis=0)}, batches=True, repeats=True
    )
    assert outputs_of(responses) == [{"y": [2.0, 2.0]}, {"y": [4.0, 4.0]}]


def test_a_form_says_how_values_are_held():
    class Lists(Form):
        def read(self, tensor):
            return tensor.as_numpy().tolist()

        def join(self, tensors):
            return [row for tensor in tensors for row in self.read(tensor)]

        def write(self, name, value):
            return Tensor(name, np.array(value, np.int64))

    calls = []

    def run(inputs, _):
        calls.append(inputs)
        return {"y": [row * 2 for row in inputs["x"]]}

    requests = [request(x=np.array(values)) for values in ([1], [2, 3])]
    assert outputs_of(execute_batch(requests, run, batches=True, form=Lists())) == [{"y": [2]}, {"y": [4, 6]}]
    assert calls == [{"x": [1, 2, 3]}]
