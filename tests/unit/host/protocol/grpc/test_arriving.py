"""A message that arrives in pieces means what it means as a whole, wherever it is cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.validation import validate_bytes_tensors
from pybackend.protocol.grpc.arriving import ArrivingMessage
from pybackend.protocol.grpc.message import MOST_FIELDS, split_message
from pybackend.protocol.grpc.request import decode_in_steps, decode_message, plan_arriving
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from pybackend.protocol.steps import at_once
from pybackend_wire.bytes_tensor import encode_elements
from tests.support.fuzzing import examples

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
        if arriving:
            return plan_arriving(parts, signature, "3", limits, plans)
        return (yield from decode_in_steps(parts, signature, "3", limits, plans))

    def allocate(size, name):
        if rooms is not None:
            rooms.append((name, size))

    reader = ArrivingMessage(len(data), limits, plan_of, allocate)
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(edges):
        reader.feed(data[begin:end])
    return at_once(reader.finish())


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
@examples(150)
def test_any_cuts_give_the_same_request(signature, data, draw):
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=6))
    wanted = facts(whole(data, signature))
    plans = PlanCache()
    assert facts(in_pieces(data, cuts, signature, plans)) == wanted
    assert facts(in_pieces(data, range(len(data)), signature, plans)) == wanted
    assert facts(whole(data, signature, plans)) == wanted, "both remember the same plans"


@given(data=MESSAGES, draw=st.data())
@examples(150)
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


def test_what_precedes_the_tensors_is_bounded_while_it_arrives(signature, refusal, snapshot):
    data = message(1, id="a" * 1000)
    code, text = refusal(in_pieces, data, range(0, len(data), 10), signature, limits=BodyLimits(100))
    assert code is ErrorCode.INVALID_ARG
    assert text == snapshot


# --- messages that no client would write ---

NUMBERS = st.sampled_from([0, 1, -1, 2, 5, 2**31, 2**62, 2**63 - 1, -(2**63)])
PARAMETER_VALUES = st.sampled_from(
    [{}, {"int64_param": -1}, {"int64_param": 3}, {"uint64_param": 2**64 - 1}, {"string_param": "ü"}, {"bool_param": True},
     {"double_param": float("nan")}]
)  # fmt: skip
PARAMETERS = st.dictionaries(
    st.sampled_from(
        ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "k", "triton_x", "classification",
         "triton_enable_empty_final_response", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"]
    ),
    PARAMETER_VALUES,
    max_size=3,
)  # fmt: skip
CONTENTS = st.fixed_dictionaries(
    {},
    optional={
        "fp32_contents": st.lists(st.floats(width=32), max_size=3),
        "int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "bytes_contents": st.lists(st.binary(max_size=9), max_size=3),
    },
)
INPUTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["X", "T", "", "ü"]),
        "datatype": st.sampled_from(["FP32", "BYTES", "INT8", "BF16", "FP33", ""]),
        "shape": st.lists(NUMBERS, max_size=3) | st.just([1]) | st.just([1] * 70),
    },
    optional={"parameters": PARAMETERS, "contents": CONTENTS},
)
STRANGE = st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, max_size=3)},
    optional={
        "model_version": st.sampled_from(["", "1", "-1", "x"]),
        "id": st.text("aü\0", max_size=3),
        "parameters": PARAMETERS,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.sampled_from(["Y", "Z", ""])}, optional={"parameters": PARAMETERS}),
            max_size=2,
        ),
        "raw_input_contents": st.lists(
            st.sampled_from([b"", bytes(4), bytes(5), b"\1\0\0\0a", b"\xff" * 8]), max_size=3
        ),
    },
).map(lambda fields: service_pb2.ModelInferRequest(**fields).SerializeToString())


@st.composite
def mutated(draw):
    """A message, strange or not, of which a few bytes are others, too many or missing."""
    data = bytearray(draw(STRANGE | MESSAGES))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.sampled_from([0, 1, 1, 2, 9]))] = draw(st.binary(max_size=4))
    return bytes(data)


@given(data=mutated() | st.binary(max_size=60), cuts=st.lists(st.integers(0, 200), max_size=3))
@examples(300)
def test_garbage_is_refused_or_read_in_whichever_pieces_it_comes(signature, data, cuts):
    outcomes = []
    plans = PlanCache()
    cuts = [min(cut, len(data)) for cut in cuts]
    for read in (
        lambda: whole(data, signature, plans),
        lambda: whole(data, signature, plans),
        lambda: in_pieces(data, cuts, signature),
    ):
        try:
            plan = read()
            validate_bytes_tensors(plan.request, signature)
            outcomes.append(repr(facts(plan)))
        except InferenceError as error:
            outcomes.append(error.code)
    first, again, pieces = outcomes
    assert again == first, "a head that was seen before means the same"
    # Large messages are read in the order of their fields only; else pieces differ in which mistake is met first.
    assert isinstance(first, str) or not isinstance(pieces, str)
    if isinstance(pieces, str):
        assert pieces == first
