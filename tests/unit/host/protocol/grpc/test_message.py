"""Messages are cut where protobuf would cut them, whatever order their fields have, and garbage is refused."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.grpc.message import MOST_FIELDS, parse_part, split_message
from pybackend.protocol.limits import BodyLimits
from tests.support.fuzzing import examples
from tests.support.protobuf_messages import contents_of

Request = service_pb2.ModelInferRequest
ANY = contents_of(Request.DESCRIPTOR)
LIMITS = BodyLimits()


def put_together(message):
    """The request that the parts of a message describe."""
    assert parse_part(message.head).id == ""
    assert not parse_part(message.head).parameters
    assert not parse_part(message.head).raw_input_contents
    whole = Request.FromString(message.head)
    assert (whole.model_name, whole.model_version) == (message.model_name, message.model_version)
    assert Request.FromString(message.parameters) == Request(
        parameters=Request.FromString(message.parameters).parameters
    )
    whole.MergeFromString(message.parameters)
    whole.id = message.id
    whole.raw_input_contents.extend(map(bytes, message.raw))
    return whole.SerializeToString(deterministic=True)


def in_other_order(fields, order):
    """A message whose fields come one after the other in any order; each list of values stays in its own."""
    shuffled = [fields[place] for place in order]
    singular = [name for name, _ in shuffled]
    parts = [Request(**{name: value}).SerializeToString() for name, value in shuffled]
    assert len(singular) == len(set(singular))
    return b"".join(parts)


@given(contents=ANY)
@examples(150)
def test_the_parts_of_any_message_are_the_message(contents):
    theirs = Request(**contents)
    assert put_together(split_message(theirs.SerializeToString(), LIMITS)) == theirs.SerializeToString(
        deterministic=True
    )


@given(contents=ANY, data=st.data())
@examples(80)
def test_the_order_of_fields_makes_no_difference(contents, data):
    order = data.draw(st.permutations(range(len(contents))))
    written = in_other_order(list(contents.items()), order)
    theirs = Request.FromString(written)
    assert put_together(split_message(written, LIMITS)) == theirs.SerializeToString(deterministic=True)


@given(contents=ANY, data=st.data())
@examples(150)
def test_a_broken_message_is_refused_where_protobuf_refuses_it(contents, data):
    written = bytearray(Request(**contents).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    written = bytes(written[: data.draw(st.integers(0, len(written)))])
    try:
        theirs = Request.FromString(written)
    except DecodeError:
        theirs = None
    ours = refused = None
    try:
        ours = put_together(split_message(written, LIMITS))
    except InferenceError as error:
        refused = error
    except DecodeError:
        pass  # the parameters, which are read later
    if refused is not None:
        assert refused.code is ErrorCode.INTERNAL
        assert refused.message.startswith("the request cannot be read as an inference.ModelInferRequest message: ")
    if theirs is None:
        assert ours is None
    else:
        assert ours is not None
        theirs.DiscardUnknownFields()
        mine = Request.FromString(ours)
        mine.DiscardUnknownFields()
        assert mine.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def request(**fields):
    return Request(model_name="m", inputs=[{"name": "A"}], outputs=[{"name": "B"}], **fields).SerializeToString()


def test_what_differs_each_time_is_not_in_the_head():
    plain = split_message(request(raw_input_contents=[b"1234"]), LIMITS)
    other = split_message(
        request(id="7", parameters={"sequence_id": {"int64_param": 7}}, raw_input_contents=[b"5678"]), LIMITS
    )
    assert plain.head == other.head == request()
    assert (plain.id, plain.parameters, plain.raw) == ("", b"", [b"1234"])
    assert (other.id, other.raw) == ("7", [b"5678"])
    assert parse_part(other.parameters).parameters["sequence_id"].int64_param == 7


def test_large_tensors_are_views_of_the_message():
    data = request(raw_input_contents=[b"a" * 4096, b"b" * 4097])
    small, large = split_message(data, LIMITS).raw
    assert type(small) is bytes
    assert large.obj is data
    assert large == b"b" * 4097


@pytest.mark.parametrize("tag", [0x22, 0x2A, 0x32, 0x3A], ids=["parameters", "inputs", "outputs", "raw tensors"])
def test_a_field_that_comes_too_often_is_refused(tag, refusal):
    most, more = (bytes((tag, 0)) * count for count in (MOST_FIELDS, MOST_FIELDS + 1))
    split_message(most, LIMITS)
    for data in (more, more + b"\n\x00"):
        assert refusal(split_message, data, LIMITS) == (
            ErrorCode.INVALID_ARG,
            "the request has more than 16384 inputs, outputs, parameters and tensors",
        )


@pytest.mark.parametrize("data", [request(id="a" * 9), request(id="a" * 9) + b"\n\x01m"], ids=["usual", "other order"])
def test_what_is_no_tensor_is_bounded(data, refusal):
    split_message(data, BodyLimits(max_input_size_bytes=len(data)))
    code, text = refusal(split_message, data + request(id="b" * 9), BodyLimits(max_input_size_bytes=10))
    assert code is ErrorCode.INVALID_ARG
    assert "without raw_input_contents exceeds the maximum allowed input size of 10 bytes" in text


def test_tensors_are_not_counted_among_what_is_bounded():
    data = request(raw_input_contents=[b"a" * 10_000])
    assert len(split_message(data, BodyLimits(max_input_size_bytes=20)).raw[0]) == 10_000
