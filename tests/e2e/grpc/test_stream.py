"""ModelStreamInfer: order, final flags, errors as messages, slow readers, cancellation."""

import queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2

from tests.e2e.grpc.conftest import floats, given
from tests.support.gates import wait_until
from tests.support.streams import function

DEADLINE_S = 30


class Stream:
    """A client's stream, and what came."""

    def __init__(self, url, **options):
        self.client = client.InferenceServerClient(url)
        self._answers = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put((result, error)), **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()
        self.client.close()

    def send(self, model, *values, **options):
        self.client.async_stream_infer(model, floats(*values), **options)

    def next(self):
        """``(values, id, final)`` of the next response, or the message of an error."""
        result, error = self._answers.get(timeout=DEADLINE_S)
        if error is not None:
            return error.message()
        response = result.get_response()
        values = result.as_numpy("OUT")
        final = response.parameters["triton_final_response"].bool_param
        return None if values is None else values.tolist(), response.id, final

    def take(self, count):
        return [self.next() for _ in range(count)]


@pytest.fixture
def stream(server):
    with Stream(server.grpc_url) as opened:
        yield opened


@pytest.mark.spec("srv-G05")
def test_responses_come_in_the_order_of_the_requests(stream):
    for number in range(50):
        stream.send(("identity", "other")[number % 2], number, request_id=str(number))
    assert stream.take(50) == [([float(number)], str(number), True) for number in range(50)]


@pytest.mark.spec("srv-G05")
def test_errors_are_messages_and_the_stream_goes_on(stream):
    stream.send("identity", 1, request_id="a")
    stream.send("nobody", 1, request_id="b")
    stream.send("failing", 2, request_id="c")
    stream.send("identity", 2, request_id="d")
    assert stream.take(4) == [
        ([1.0], "a", True),
        "Request for unknown model: 'nobody' is not found",
        "it is NOT_FOUND: 100 %, ü",
        ([2.0], "d", True),
    ]


@pytest.mark.spec("srv-G06")
def test_decoupled_responses_and_their_final_flag(stream):
    stream.send("repeat", 3, request_id="a")
    assert stream.take(3) == [([float(index)], "a", False) for index in range(3)]
    stream.send("repeat", 2, -1, 1, request_id="b")  # the flag comes with the last response
    assert stream.take(2) == [([0.0], "b", False), ([1.0], "b", True)]
    stream.send("repeat", 0, request_id="c")  # nothing comes
    stream.send("repeat", 1, request_id="d", enable_empty_final_response=True)
    assert stream.take(2) == [([0.0], "d", False), (None, "d", True)]
    stream.send("repeat", 0, request_id="e", enable_empty_final_response=True)
    assert stream.next() == (None, "e", True)


@pytest.mark.spec("srv-G06")
def test_an_error_in_the_middle_of_a_decoupled_answer(stream):
    stream.send("repeat", 3, 1)
    assert stream.take(3) == [([0.0], "", False), "no 1", ([2.0], "", False)]


FAILURES = {
    "raised": "raise ValueError('the first')",
    "sent": "sender.send(failed('the first'), FINAL)",
    "sent before the flag": "sender.send(failed('the first'))\nsender.send(flags=FINAL)",
    "returned": "return []",
    "dropped": "return",
    "dropped in a cycle": "cycle = [sender]\ncycle.append(cycle)\ndel cycle, sender, request\ngc.collect()",
}


@pytest.mark.spec("srv-G06")
@pytest.mark.parametrize("code", FAILURES.values(), ids=FAILURES)
def test_the_first_request_of_a_decoupled_model_fails_and_the_second_succeeds(stream, code):
    for number, each in enumerate((code, "sender.send(out(7), FINAL)")):
        tensor = client.InferInput("CODE", [1, 1], "BYTES")
        tensor.set_data_from_numpy(function(each).reshape(1, 1))
        stream.client.async_stream_infer("streams", [tensor], request_id=str(number))
    first, second = stream.take(2)
    assert isinstance(first, str)
    assert second == ([7], "1", True)


@pytest.mark.spec("srv-G07")
def test_an_error_may_end_the_stream_with_its_status(server):
    with Stream(server.grpc_url, headers={"triton_grpc_error": "true"}) as stream:
        stream.send("identity", 1)
        assert stream.next() == ([1.0], "", True)
        stream.send("failing", 2)
        assert "it is NOT_FOUND" in stream.next()


@pytest.mark.spec("srv-G19")
def test_a_sequence_on_a_stream(server, stream):
    for number in range(4):
        stream.send("identity", number, sequence_id=5, sequence_start=number == 0, sequence_end=number == 3)
    assert [values for values, _, _ in stream.take(4)] == [[0.0], [1.0], [2.0], [3.0]]


def test_half_a_stream_that_is_closed_is_answered_to_the_end(server):
    requests = [service_pb2.ModelInferRequest(model_name="repeat", id=str(number)) for number in range(5)]
    for request in requests:
        request.inputs.add(name="IN", datatype="FP32", shape=[1]).contents.fp32_contents.append(4)
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        answers = list(call(iter(requests), timeout=DEADLINE_S))
    assert sorted(each.infer_response.id for each in answers) == sorted("01234" * 4)


@pytest.mark.spec("srv-G08")
def test_a_slow_reader_pauses_its_model_and_nobody_else(server, grpc_client):
    place = server.repository / "flood"
    request = service_pb2.ModelInferRequest(model_name="flood")
    request.inputs.add(name="IN", datatype="FP32", shape=[1]).contents.fp32_contents.append(100_000)
    count = place / "count"

    def counted():
        return int(count.read_text() or 0) if count.exists() else 0

    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(server.grpc_url, options=options) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        answers = call(iter([request]), timeout=DEADLINE_S)
        first = next(answers)
        assert np.frombuffer(first.infer_response.raw_output_contents[0], np.float32)[0] == 0

        def stands_still():
            before = counted()
            np.testing.assert_array_equal(grpc_client.infer("identity", floats(1)).as_numpy("OUT"), [1])
            return counted() == before

        wait_until(lambda: all(stands_still() for _ in range(5)), "the model is not paused")
        assert counted() < 50_000
        for expected in range(1, 200):
            answer = np.frombuffer(next(answers).infer_response.raw_output_contents[0], np.float32)
            assert answer[0] == answer[-1] == expected
        answers.cancel()
    wait_until((place / "cancelled").exists, "the model is not told that nobody reads")


def test_requests_larger_than_a_window_on_a_stream(stream, server):
    array = np.arange(2_000_000, dtype=np.float32)
    for _ in range(3):
        stream.client.async_stream_infer("identity", given(array))
    for _ in range(3):
        values, _, _ = stream.next()
        assert len(values) == len(array)
        assert values[-1] == array[-1]
