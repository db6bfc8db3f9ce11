"""Lists of values are read from a message's bytes: they mean what protobuf says, large or small."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from pybackend.errors import InferenceError
from pybackend.protocol.grpc.contents import cut_contents, encode_contents
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import at_once
from pybackend_wire.bytes_tensor import encode_elements

LISTS = {
    "BOOL": ("bool_contents", np.bool_),
    "INT8": ("int_contents", np.int8),
    "INT16": ("int_contents", np.int16),
    "INT32": ("int_contents", np.int32),
    "INT64": ("int64_contents", np.int64),
    "UINT8": ("uint_contents", np.uint8),
    "UINT16": ("uint_contents", np.uint16),
    "UINT32": ("uint_contents", np.uint32),
    "UINT64": ("uint64_contents", np.uint64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
}


def encode(contents, datatype, limits=None):
    return bytes(at_once(encode_contents("X", datatype, contents, "m", limits or BodyLimits())))


def contents(**lists):
    return service_pb2.ModelInferRequest.InferInputTensor(contents=lists).contents.SerializeToString()


@pytest.mark.parametrize("count", [0, 1, 100, 70_000])
@pytest.mark.parametrize(("datatype", "field", "dtype"), [(key, *value) for key, value in LISTS.items()], ids=LISTS)
def test_numbers_of_every_size(datatype, field, dtype, count):
    random = np.random.default_rng(count)
    width = np.dtype(dtype).itemsize
    values = random.integers(0, 256, count * width, np.uint8).view(np.uint8 if dtype is np.bool_ else dtype)
    if dtype is np.bool_:
        values = values > 100
    elif np.issubdtype(dtype, np.floating):
        values = np.nan_to_num(values)
    else:
        values = values >> random.integers(0, width * 8, count).astype(dtype)  # short and long ones
    assert encode(contents(**{field: values.tolist()}), datatype) == values.tobytes()


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_elements(count):
    texts = [bytes([number % 256]) * (number % 300) for number in range(count)]
    assert encode(contents(bytes_contents=texts), "BYTES") == encode_elements(texts)


def test_steps_are_small():
    numbers = contents(int_contents=list(range(300_000)))
    assert sum(1 for _ in encode_contents("X", "INT32", numbers, "m", BodyLimits())) > 10
    texts = contents(bytes_contents=[b"a"] * 50_000)
    assert sum(1 for _ in encode_contents("X", "BYTES", texts, "m", BodyLimits())) > 10


BROKEN = {
    "not packed": (b"\x10\x01", "INT32", "contents that are not packed lists of values"),
    "unknown list": (b"\x4a\x00", "INT32", "contents that are not packed lists of values"),
    "cut off": (b"\x12\x05\x01", "INT32", "a list of values is cut off"),
    "no length": (b"\x12", "INT32", "the length of a list of values is broken"),
    "half a float": (b"\x32\x03abc", "FP32", "a list of values is cut off"),
    "half a number": (b"\x12\x01\x80", "INT32", "a number in a list of values is cut off, or too long"),
    "a long number": (b"\x12\x0c" + b"\x80" * 11 + b"\x01", "INT32", "a number in a list of values is too long"),
    "two lists": (b"\x12\x01\x01\x1a\x01\x01", "INT32", "binary data was already supplied"),
    "another list": (b"\x1a\x01\x01", "INT32", "of type 'INT64', expected datatype 'INT32'"),
}


@pytest.mark.parametrize(("data", "datatype", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_contents(data, datatype, message):
    with pytest.raises(InferenceError, match=message):
        encode(data, datatype)


@pytest.mark.parametrize(
    ("data", "datatype"),
    [(contents(int_contents=[300] * 400_000), "INT32"), (contents(bytes_contents=[b"ab"] * 200_000), "BYTES")],
)
def test_a_limit_is_noticed_before_the_end(data, datatype):
    with pytest.raises(InferenceError, match="input 'X' with contents has a byte_size"):
        encode(data, datatype, BodyLimits(600_000))


def test_large_contents_are_cut_out_of_a_head():
    made = service_pb2.ModelInferRequest(model_name="m")
    for name, count in (("A", 3), ("B", 9_000), ("C", 20_000)):
        made.inputs.add(name=name, datatype="FP32", shape=[count]).contents.fp32_contents.extend([1.5] * count)
    made.outputs.add(name="Y")
    skeleton, cut = cut_contents(made.SerializeToString())
    assert {number: bytes(span) for number, span in cut.items()} == {
        number: made.inputs[number].contents.SerializeToString() for number in (1, 2)
    }
    for number in cut:
        made.inputs[number].contents.Clear()
    assert service_pb2.ModelInferRequest.FromString(skeleton) == made
    assert len(skeleton) < 200


@pytest.mark.parametrize("tail", [b"\x28\x01", b"\x2a\xff", b"\x2a\x05a"], ids=["number", "length", "cut off"])
def test_a_head_that_is_unusual_is_left_as_it_is(tail):
    made = service_pb2.ModelInferRequest(model_name="m")
    made.inputs.add(name="X").contents.fp32_contents.extend([1.5] * 9_000)
    head = made.SerializeToString() + tail
    assert cut_contents(head) == (head, {})
