"""A message that arrives in pieces means what it means as a whole, wherever it is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.grpc_arriving import ArrivingMessage
from pybackend.protocol.grpc_message import MOST_FIELDS, split_message
from pybackend.protocol.grpc_request import decode_message, plan_arriving
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from pybackend_wire.bytes_tensor import encode_elements

LIMITS = BodyLimits()


@pytest.fixture(scope="module")
def signature(make_signature):
    return make_signature(("X", "FP32", [-1]), ("T", "BYTES", [-1], True), outputs=(("Y", "FP32", [1]),))


def message(count=1, texts=None, surplus=(), **fields):
    inputs = [{"name": "X", "datatype": "FP32", "shape": [count]}]
    raw = [np.arange(count, dtype=np.float32).tobytes()]
    if texts is not None:
        inputs.append({"name": "T", "datatype": "BYTES", "shape": [len(texts)]})
        raw.append(encode_elements(texts))
    return service_pb2.ModelInferRequest(
        model_name="m", **({"inputs": inputs, "raw_input_contents": [*raw, *surplus]} | fields)
    ).SerializeToString()


def whole(data, signature, plans=None):
    plans = PlanCache() if plans is None else plans
    return decode_message(split_message(data, LIMITS), signature, "3", LIMITS, plans)


def in_pieces(data, cuts, signature, plans=None, limits=LIMITS, rooms=None):
    plans = PlanCache() if plans is None else plans

    def plan_of(parts, arriving):
        return (plan_arriving if arriving else decode_message)(parts, signature, "3", limits, plans)

    def make_room(tensor, size):
        if rooms is not None:
            rooms.append((tensor.name, size))
        tensor.data = bytearray(size)
        return memoryview(tensor.data)

    reader = ArrivingMessage(len(data), limits, plan_of, make_room)
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(edges):
        reader.feed(data[begin:end])
    return reader.finish()


def facts(plan):
    request = plan.request
    inputs = [(each.name, each.datatype, list(each.shape), bytes(each.data)) for each in request.inputs]
    options = (request.id, request.parameters, request.priority, request.requested_outputs)
    return inputs, options, plan.checked, plan.wants_empty_final, plan.output_format


MESSAGES = st.builds(
    message,
    st.integers(0, 50),
    st.none() | st.lists(st.binary(max_size=200), max_size=3),
    st.lists(st.binary(max_size=5), max_size=2),
    id=st.text("ab", max_size=3),
    parameters=st.sampled_from([{}, {"priority": {"int64_param": 1}}, {"k": {"string_param": "v"}}]),
    outputs=st.sampled_from([[], [{"name": "Y"}]]),
)


@given(data=MESSAGES, draw=st.data())
@settings(max_examples=150)
def test_any_cuts_give_the_same_request(signature, data, draw):
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=6))
    wanted = facts(whole(data, signature))
    plans = PlanCache()
    assert facts(in_pieces(data, cuts, signature, plans)) == wanted
    assert facts(in_pieces(data, range(len(data)), signature, plans)) == wanted
    assert facts(whole(data, signature, plans)) == wanted, "both remember the same plans"


@given(data=MESSAGES, draw=st.data())
@settings(max_examples=150)
def test_a_broken_message_is_refused_or_means_the_same(signature, data, draw):
    broken = bytearray(data)
    broken[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    broken = bytes(broken[: draw.draw(st.integers(1, len(data)))])
    cuts = draw.draw(st.lists(st.integers(0, len(broken)), max_size=3))
    outcomes = []
    for read in (lambda: whole(broken, signature), lambda: in_pieces(broken, cuts, signature)):
        try:
            outcomes.append(facts(read()))
        except InferenceError as error:
            outcomes.append(error.code)
    # One that is well-formed as a whole, with fields in another order, is refused only if tensors have already arrived.
    assert outcomes[0] == outcomes[1] or isinstance(outcomes[1], ErrorCode)


def test_a_tensor_gets_its_room_when_its_length_has_arrived(signature):
    data, rooms = message(1000, [b"abc"]), []
    cut = data.index(np.arange(1000, dtype=np.float32).tobytes())
    with pytest.raises(InferenceError, match="a tensor is longer than the message"):
        in_pieces(data[: cut + 10], [cut - 1, cut], signature, rooms=rooms)
    assert rooms == []  # the message is shorter than its tensor: no room is made for bytes that cannot arrive
    in_pieces(data, [cut], signature, rooms=rooms)
    assert rooms == [("X", 4000), ("T", 7)]


@pytest.mark.parametrize(
    "data",
    [
        message(2, raw_input_contents=[b"1234"], id="5"),
        message(2, raw_input_contents=[b"1" * 12]),
        message(2, [b"a"], raw_input_contents=[b"1" * 8]),
        message(2, inputs=[{"name": "X", "datatype": "FP32", "shape": [-2]}]),
        message(2, inputs=[{"name": "X", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1, 2]}}]),
        message(2, inputs=[{"name": "Q", "datatype": "FP32", "shape": [2]}]),
        message(2, raw_input_contents=[]),
        message(2, parameters={"triton_x": {"bool_param": True}}),
    ],
    ids=["too small", "too large", "missing", "dimension", "contents", "name", "no tensor", "parameter"],
)
def test_mistakes_have_the_same_text(signature, refusal, data):
    assert refusal(in_pieces, data, [5, 9], signature) == refusal(whole, data, signature)


def test_fields_in_another_order(signature, refusal):
    data = message(1)
    name = service_pb2.ModelInferRequest(id="late").SerializeToString()
    assert facts(in_pieces(name + data, range(20), signature)) == facts(whole(name + data, signature))
    assert refusal(in_pieces, data + name, [], signature) == (
        ErrorCode.INVALID_ARG,
        "other fields follow raw_input_contents: write the fields of large requests in their order",
    )


def test_an_unknown_field_before_the_tensors(signature):
    head, tensors = message(1, raw_input_contents=[]), service_pb2.ModelInferRequest(raw_input_contents=[b"1234"])
    data = head + b"\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + tensors.SerializeToString()
    assert facts(in_pieces(data, range(len(data)), signature)) == facts(whole(data, signature))


@pytest.mark.parametrize("tag", [0x2A, 0x3A], ids=["inputs", "raw tensors"])
def test_fields_are_counted_before_they_are_read(signature, refusal, tag):
    prefix = message(1) if tag == 0x3A else b""
    code, text = refusal(in_pieces, prefix + bytes((tag, 0)) * (MOST_FIELDS + 1), [], signature)
    assert (code, text) == (
        ErrorCode.INVALID_ARG,
        "the request has more than 16384 inputs, outputs, parameters and tensors",
    )


def test_what_precedes_the_tensors_is_bounded_while_it_arrives(signature, refusal):
    data = message(1, id="a" * 1000)
    code, text = refusal(in_pieces, data, range(0, len(data), 10), signature, limits=BodyLimits(100))
    assert code is ErrorCode.INVALID_ARG
    assert text.startswith("request message size of 110 bytes without raw_input_contents exceeds")
