"""What ``execute`` makes of several requests at once: as a batching scheduler will hand them out, to real stubs."""

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference.request import InferenceRequest
from tests.integration.models.conftest import running_engine
from tests.support.engine import execute_batch, input_tensor, output_array
from tests.support.repositories import tensors, write_model

CONFIG = f"""
backend: "python"
max_batch_size: 16
input [ {tensors(IN=("TYPE_INT32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [-1]), ID=("TYPE_STRING", [1]))} ]
"""
ORDINARY = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            outputs = [
                pb_utils.Tensor("OUT", array * len(requests)),
                pb_utils.Tensor("ID", np.array([[request.request_id()]] * len(array), object)),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
MIXED = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            if array[0, 0] < 0:
                error = pb_utils.TritonError(f"no {request.request_id()}", pb_utils.TritonError.UNAVAILABLE)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], error=error))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""
SHARED = """
class TritonPythonModel:
    def execute(self, requests):
        # One response, and one array, for all of them.
        array = np.full((1, 5000), sum(int(r.inputs()[0].as_numpy()[0, 0]) for r in requests), np.int32)
        response = pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", array), pb_utils.Tensor("ID", np.array([["x"]], object))]
        )
        return [response] * len(requests)
"""
RETURN = """
def ok(request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1), np.int32))])


class TritonPythonModel:
    def execute(self, requests):
        {statement}
"""
PREFIX = "Failed to process the request(s) for model '{model}_0', message: "
REFUSED = {
    "tuple": (
        "return tuple(ok(r) for r in requests)",
        "Expected a list in the execute return, found type '<class 'tuple'>'.",
    ),
    "generator": (
        "return (ok(r) for r in requests)",
        "Expected a list in the execute return, found type '<class 'generator'>'.",
    ),
    "dict": ("return {}", "Expected a list in the execute return, found type '<class 'dict'>'."),
    "one_response": (
        "return ok(None)",
        "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
    ),
    "array": (
        "return np.ones(3)",
        "Expected a list in the execute return, found type '<class 'numpy.ndarray'>'.",
    ),
    "too_few": (
        "return [ok(r) for r in requests[1:]]",
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
        "size is:3, and InferenceResponse(s) size is:2\n",
    ),
    "too_many": (
        "return [ok(None)] * 4",
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
        "size is:3, and InferenceResponse(s) size is:4\n",
    ),
    "empty": (
        "return []",
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
        "size is:3, and InferenceResponse(s) size is:0\n",
    ),
    "element": (
        "return [ok(None), 'text', ok(None)]",
        "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'str'>'.",
    ),
    "element_class": (
        "return [ok(None), pb_utils.Tensor('OUT', np.ones(1)), ok(None)]",
        "Expected an 'InferenceResponse' object in the execute function return list, found type "
        "'<class 'c_python_backend_utils.Tensor'>'.",
    ),
}
"""Last statement of an ``execute``, and what every request of a batch of three is told."""

RAISED = {
    "raises": (
        "raise ValueError('the whole batch')",
        "ValueError: the whole batch\n\nAt:\n  {file}(10): execute\n",
    ),
    "raises_late": (
        "return [ok(r) if r.request_id() != 'b' else 1 / 0 for r in requests]",
        "ZeroDivisionError: division by zero\n\nAt:\n  {file}(10): ",  # newer Pythons give a comprehension no frame
    ),
    "quits": ("import sys; sys.exit(5)", "SystemExit: 5\n\nAt:\n  {file}(10): execute\n"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt: \n\nAt:\n  {file}(10): execute\n"),
    "deep": (
        "f = lambda n: f(n + 1); f(0)",
        "RecursionError: maximum recursion depth exceeded",
    ),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def execute(directory):
    """A function that gives arrays, one per request, to a model as one execution; ids are a, b, c ..."""
    for name, code in (("ordinary", ORDINARY), ("mixed", MIXED), ("shared", SHARED)):
        write_model(directory, name, code, CONFIG)
    for name, (statement, _) in {**REFUSED, **RAISED}.items():
        write_model(directory, name, RETURN.format(statement=statement), CONFIG)
    some = "return [ok(None), None, ok(None)] if len(requests) == 3 else None"
    write_model(directory, "some_none", RETURN.format(statement=some), CONFIG)
    with running_engine(directory) as (engine, run):

        def execute(model, *arrays, outputs=()):
            requests = [
                InferenceRequest(
                    model, id=chr(ord("a") + index), inputs=[input_tensor("IN", array)], requested_outputs=outputs
                )
                for index, array in enumerate(arrays)
            ]
            return run(execute_batch(engine.repository.catalogue.find(model), requests))

        execute.engine, execute.run = engine, run
        yield execute


def ones(rows=1, columns=1, value=1):
    return np.full((rows, columns), value, np.int32)


@pytest.mark.spec("pb-E01")
def test_many_requests_of_different_shapes_in_one_call(execute):
    arrays = [ones(), ones(2, 3, 5), ones(1, 4000), ones(3, 0)]
    answers = execute("ordinary", *arrays)
    for array, answer, name in zip(arrays, answers, "abcd", strict=True):
        assert output_array(answer, "OUT").tolist() == (array * 4).tolist()
        assert output_array(answer, "ID").tolist() == [[name.encode()]] * len(array)
        assert answer.id == name
        answer.release()


def test_large_batch(execute):
    answers = execute("ordinary", *[ones(1, 3000, index) for index in range(200)])
    for index, answer in enumerate(answers):
        assert (output_array(answer, "OUT") == index * 200).all()
        answer.release()


@pytest.mark.spec("pb-E02")
@pytest.mark.parametrize("model", REFUSED)
def test_what_may_not_be_returned(execute, model):
    for answer in execute(model, ones(), ones(), ones()):
        assert answer.error.code is ErrorCode.INTERNAL
        assert answer.error.message == PREFIX.format(model=model) + REFUSED[model][1]


@pytest.mark.spec("pb-E03", "pb-E13")
@pytest.mark.parametrize("model", RAISED)
def test_exception_fails_the_whole_batch(execute, directory, model):
    pid = execute.engine.repository.catalogue.find(model).instances[0].pid
    expected = PREFIX.format(model=model) + RAISED[model][1].format(file=directory / model / "1/model.py")
    for _ in range(2):  # and the process lives
        for answer in execute(model, ones(), ones(), ones()):
            assert answer.error.code is ErrorCode.INTERNAL
            assert answer.error.message.startswith(expected)
            assert "pybackend_s" not in answer.error.message
    assert execute.engine.repository.catalogue.find(model).instances[0].pid == pid


@pytest.mark.spec("pb-E04")
def test_error_of_one_request(execute):
    good, bad, also_good = execute("mixed", ones(value=7), ones(value=-1), ones(value=8))
    assert (bad.error.code, bad.error.message) == (ErrorCode.UNAVAILABLE, "no b")
    assert bad.outputs == []
    assert [output_array(answer, "OUT").tolist() for answer in (good, also_good)] == [[[7]], [[8]]]


@pytest.mark.spec("pb-E09")
def test_elements_that_are_none_are_answered(execute):
    first, second, third = execute("some_none", ones(), ones(), ones())
    assert first.error is third.error is None
    assert second.error.code is ErrorCode.INTERNAL
    assert second.error.message.startswith("The model returned no response for this request")
    for answer in execute("some_none", ones(), ones()):
        assert answer.error.message.startswith("The model returned no response for this request")


def test_one_response_object_for_several_requests(execute):
    answers = execute("shared", ones(value=1), ones(value=2), ones(value=3))
    arrays = [output_array(answer, "OUT") for answer in answers]
    assert [array.tolist() for array in arrays] == [[[6] * 5000]] * 3
    answers[0].release()
    answers[1].release()
    # What one client is done with must not be written over while another one still receives it.
    later = execute("shared", ones(value=50))
    assert arrays[2].tolist() == [[6] * 5000]
    assert output_array(answers[2], "OUT").tolist() == [[6] * 5000]
    assert output_array(later[0], "OUT").tolist() == [[50] * 5000]
    for answer in (answers[2], later[0]):
        answer.release()


@pytest.mark.spec("pb-E06")
def test_requested_outputs_of_each_request(execute):
    engine, run = execute.engine, execute.run
    requests = [
        InferenceRequest("ordinary", id=name, inputs=[input_tensor("IN", ones())], requested_outputs=outputs)
        for name, outputs in (("a", ("OUT",)), ("b", ("ID",)), ("c", ()), ("d", ("ID", "OUT")))
    ]
    answers = run(execute_batch(engine.repository.catalogue.find("ordinary"), requests))
    names = [[output.name for output in answer.outputs] for answer in answers]
    assert names == [["OUT"], ["ID"], ["OUT", "ID"], ["OUT", "ID"]]
