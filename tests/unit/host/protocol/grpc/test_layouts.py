"""Messages whose beginning is known are cut as any other message is."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pybackend.errors import InferenceError
from pybackend.protocol.grpc import layouts as layouts_module
from pybackend.protocol.grpc.layouts import MessageLayouts
from pybackend.protocol.grpc.message import InferMessage, split_message
from pybackend.protocol.limits import BodyLimits

LIMITS = BodyLimits()


def request(*raw: bytes, **fields: object) -> bytes:
    made = service_pb2.ModelInferRequest(model_name="m", inputs=[{"name": "A"}], raw_input_contents=raw, **fields)
    return made.SerializeToString()


def parts_of(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in ("model_name", "model_version", "id", "parameters", "head", "raw")}


def known_parts(layouts: MessageLayouts, data: bytes, limits: BodyLimits) -> InferMessage:
    return layouts.split(data, limits)[0]


def outcome(split, data: bytes) -> object:
    try:
        return parts_of(split(data, LIMITS))
    except InferenceError as error:
        return error.message


SIZES = st.lists(st.sampled_from([0, 1, 4, 5, 127, 128, 4096, 4097]), max_size=3)


PARAMETERS = st.sampled_from(
    [
        {},
        {"sequence_id": {"int64_param": 5}, "sequence_start": {"bool_param": True}},
        {"sequence_id": {"string_param": "s" * 120}},
        {str(number): {"int64_param": number} for number in range(9)},
    ]
)


@given(
    sizes=st.lists(
        st.tuples(SIZES, st.sampled_from(["", "7"]), PARAMETERS, st.binary(max_size=3)), min_size=1, max_size=6
    ),
    data=st.data(),
)
@settings(max_examples=80)
def test_any_messages_after_each_other_are_cut_as_without_memory(sizes, data):
    layouts = MessageLayouts()
    for lengths, request_id, parameters, filling in sizes:
        message = bytearray(request(*(bytes(size) for size in lengths), id=request_id, parameters=parameters) + filling)
        for _ in range(2):
            assert outcome(partial(known_parts, layouts), bytes(message)) == outcome(split_message, bytes(message))
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))


def test_a_message_of_the_same_length_with_other_tensors_is_another_message():
    layouts = MessageLayouts()
    for sizes in ((4, 8), (8, 4), (4, 8), (12 + 2,)):
        message = request(*(bytes([size]) * size for size in sizes))
        for _ in range(2):
            assert [len(raw) for raw in known_parts(layouts, message, LIMITS).raw] == list(sizes)


def test_the_head_of_a_known_message_is_one_object():
    layouts = MessageLayouts()
    first, second, third = (known_parts(layouts, request(bytes([n]) * 4), LIMITS) for n in range(3))
    assert second.head is third.head
    assert first.head == second.head
    assert third.raw == [bytes([2]) * 4]


def test_a_message_is_known_whatever_its_id_and_parameters_are():
    layouts = MessageLayouts()
    first = request(b"1234", id="a", parameters={"sequence_id": {"int64_param": 1}})
    layouts.split(first, LIMITS)
    for fields in ({}, {"id": "b"}, {"parameters": {"x": {"string_param": "y"}}}):
        message = request(b"5678", **fields)
        assert layouts.find(message, 0, len(message)) is not None
        assert parts_of(known_parts(layouts, message, LIMITS)) == parts_of(split_message(message, LIMITS))


@pytest.mark.parametrize("varied", ["name", "size"])
def test_the_memory_is_bounded(varied):
    layouts = MessageLayouts()
    for number in range(layouts_module.MOST_LAYOUTS * 2 + 1):
        message = (
            request(bytes(number % 4000), model_version=str(number))
            if varied == "size"
            else request(b"1234", model_version=f"{number:05}")
        )
        layouts.split(message, LIMITS)
        assert len(layouts) <= layouts_module.MOST_LAYOUTS


def test_clients_who_take_turns_are_all_known():
    layouts = MessageLayouts()
    messages = [request(bytes(40 - number), model_version="v" * number) for number in range(1, 5)]
    assert len({len(message) for message in messages}) == 1
    for message in messages:
        layouts.split(message, LIMITS)
    assert all(layouts.split(message, LIMITS)[1] for message in messages)


def test_most_layouts_stay_when_there_are_too_many():
    layouts = MessageLayouts()
    messages = [request(b"1234", model_version=f"{number:05}") for number in range(layouts_module.MOST_LAYOUTS + 1)]
    for message in messages:
        layouts.split(message, LIMITS)
    assert (
        len([message for message in messages if layouts.find(message, 0, len(message))]) >= layouts_module.MOST_LAYOUTS
    )
