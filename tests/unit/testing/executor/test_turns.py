"""Requests that a model under test has executed more than once."""

import sys

import numpy as np
import pytest

from pybackend_testing import HarnessError, ModelHarness, Request
from pybackend_testing.executor import MOST_TURNS
from tests.unit.testing.conftest import DECOUPLED, configuration

START = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [7, 8]}]}
ITERATIVE = {"sequence_batching": {"iterative_sequence": True, "control_input": [START]}}

COUNTING = """
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}
        self.batches = []

    def execute(self, requests):
        self.batches.append(len(requests))
        return [self.turn(request) for request in requests]

    def turn(self, request):
        seen = self.seen.setdefault(request.correlation_id(), [])
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        starts = int(inputs["START"][0]) if "START" in inputs else None
        seen.append((request.flags(), starts, float(inputs["IN"][0])))
        wanted = int(inputs["IN"][-1])
        if len(seen) >= wanted > 0:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, len(seen), np.float32))])
        inputs["IN"][0] += 100
        request.set_release_flags(AGAIN)
        if wanted < 0:
            raise ValueError("no more")
        return None
"""

STREAMING = """
class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            key, sender = request.correlation_id(), request.get_response_sender()
            left = self.left.setdefault(key, int(request.inputs()[0].as_numpy()[0])) - 1
            self.left[key] = left
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, left, np.float32))]))
            if left:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_it_is_executed_until_it_is_answered(opened):
    harness = opened(COUNTING, configuration(**ITERATIVE))
    assert harness.infer(IN=[0, 3], START=np.array([8], np.int32))["OUT"].tolist() == [3]
    assert list(harness.model.seen.values()) == [[(1, 8, 0), (0, 7, 100), (0, 7, 200)]]
    assert harness.infer(IN=[0, 1])["OUT"].tolist() == [1]
    assert len(harness.model.seen) == 2  # each request is a sequence of its own


def test_private_copies_of_inputs_are_made_anew(opened):
    harness = opened(COUNTING, configuration(**ITERATIVE), parameters={"INPUT_COPY": "yes"})
    harness.infer(IN=[0, 3])
    assert list(harness.model.seen.values()) == [[(1, None, 0), (0, None, 0), (0, None, 0)]]


def test_only_those_that_want_it_are_executed_once_more(opened):
    harness = opened(COUNTING, configuration(**ITERATIVE))
    results = harness.execute([Request({"IN": [0, n]}, correlation_id=n) for n in (2, 1, 3)])
    assert [result["OUT"].tolist() for result in results] == [[2], [1], [3]]
    assert harness.model.batches == [3, 2, 1]
    assert sorted(harness.model.seen) == [1, 2, 3]


def test_ids_are_texts_where_the_model_wants_texts(opened):
    control = {"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}]}
    batching = {"sequence_batching": {"iterative_sequence": True, "control_input": [control]}}
    harness = opened(COUNTING, configuration(**batching))
    harness.infer(IN=[1])
    assert list(harness.model.seen) == ["1"]


def test_an_exception_ends_it(opened):
    harness = opened(COUNTING, configuration(**ITERATIVE))
    assert "ValueError: no more" in harness.infer(IN=[-1]).error.message()
    assert harness.model.batches == [1]


def test_a_model_that_never_has_enough(opened):
    harness = opened(COUNTING, configuration(**ITERATIVE))
    with pytest.raises(HarnessError, match=f"rescheduled a request {MOST_TURNS} times"):
        harness.infer(IN=[0])


@pytest.mark.parametrize("way", ["def", "async def"])
def test_decoupled_models_send_responses_on_the_way(opened, way):
    harness = opened(STREAMING.replace("def execute", f"{way} execute"), configuration(**DECOUPLED, **ITERATIVE))
    stream = harness.stream(IN=[3])
    assert [result["OUT"].tolist() for result in stream] == [[2], [1], [0]]
    assert stream.finished


def test_a_cancelled_request_ends_between_two_turns(opened):
    harness = opened(STREAMING, configuration(**DECOUPLED, **ITERATIVE))
    stream = harness.stream(IN=[1_000_000])
    assert next(stream)["OUT"].tolist() == [999_999]
    stream.cancel()
    *_, last = stream.collect()
    assert last.error.code().name == "CANCELLED"


def test_a_request_may_be_cancelled_at_any_moment(opened):
    """With threads that change places all the time, cancellations hit every line of the code between two turns."""
    harness = opened(STREAMING, configuration(**DECOUPLED, **ITERATIVE))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            stream = harness.stream(IN=[1_000_000])
            next(stream)
            stream.cancel()
            *_, last = stream.collect()
            assert last.error.code().name == "CANCELLED"
    finally:
        sys.setswitchinterval(interval)


def test_requests_of_other_models_too(opened, write):
    other = ModelHarness(write(COUNTING, "other"), config=configuration(**ITERATIVE))
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            (request,) = requests
            asked = pb_utils.InferenceRequest(
                inputs=request.inputs(), requested_output_names=["OUT"], model_name="other"
            )
            return [asked.exec()]
    """
    assert opened(code, models={"other": other}).infer(IN=[0, 4])["OUT"].tolist() == [4]
