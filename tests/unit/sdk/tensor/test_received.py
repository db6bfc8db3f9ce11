"""Tensors that arrive: views of the memory they arrived in, decoded when a model looks."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES

FIXED_SIZE = [row for row in DATATYPES.values() if row.itemsize and row.numpy is not None]


def _shared(data):
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def _slice_of_a_frame(data):
    frame = bytearray(b"head" + data + b"tail")
    return memoryview(frame)[4 : 4 + len(data)]


BUFFERS = pytest.mark.parametrize("buffer", [_shared, _slice_of_a_frame, bytearray], ids=lambda make: make.__name__)


@BUFFERS
@pytest.mark.parametrize("row", FIXED_SIZE, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(2, 3), (), [3, 2], (0,), (2, 0)], ids=str)
def test_numeric_tensors_are_writable_views(buffer, row, shape):
    sent = np.arange(int(np.prod(shape))).reshape(shape).astype(row.numpy)
    wire = buffer(sent.tobytes())
    tensor = Tensor._from_wire("X", row.name, shape, wire)
    array = tensor.as_numpy()
    assert array.dtype == row.numpy
    assert array.shape == tuple(shape)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert tensor.as_numpy() is array
    np.testing.assert_array_equal(array, sent)
    array[...] = 1
    assert bytes(wire) == np.ones(shape, row.numpy).tobytes()


def test_accessors():
    tensor = Tensor._from_wire("X", "INT32", (1, 2), bytearray(8))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype().name, tensor.is_cpu()) == ("X", [1, 2], "INT32", True)


@BUFFERS
def test_forwarding_sends_the_buffer_itself_with_edits_in_place(buffer):
    wire = buffer(np.zeros(4, np.int32).tobytes())
    tensor = Tensor._from_wire("X", "INT32", (4,), wire)
    tensor.as_numpy()[1] = 7
    assert tensor._payload() is wire
    assert np.frombuffer(bytes(wire), np.int32).tolist() == [0, 7, 0, 0]


@BUFFERS
def test_a_private_copy_leaves_the_wire_form_alone(buffer):
    wire = buffer(np.zeros(4, np.int32).tobytes())
    tensor = Tensor._from_wire("X", "INT32", (4,), wire, copy=True)
    array = tensor.as_numpy()
    array[:] = 7
    assert tensor.as_numpy() is array
    assert tensor._payload() is wire
    assert bytes(wire) == bytes(16)


def test_read_only_memory_gives_a_read_only_view():
    array = Tensor._from_wire("X", "UINT8", (2,), memoryview(b"ab")).as_numpy()
    assert not array.flags.writeable
    assert Tensor._from_wire("X", "UINT8", (2,), memoryview(b"ab"), copy=True).as_numpy().flags.writeable


def test_an_array_keeps_the_memory_after_the_tensor_is_gone():
    buffer = _shared(np.arange(4, dtype=np.int64).tobytes())
    freed = weakref.ref(buffer)
    tensor = Tensor._from_wire("X", "INT64", (4,), buffer)
    part = tensor.as_numpy()[2:]
    del buffer, tensor
    gc.collect()
    assert freed() is not None
    assert part.tolist() == [2, 3]
    del part
    assert freed() is None


def test_a_view_of_a_slice_keeps_the_slices_memory():
    owner = _shared(bytes(64))
    freed = weakref.ref(owner)
    array = Tensor._from_wire("X", "UINT8", (8,), memoryview(owner)[8:16]).as_numpy()
    del owner
    assert freed() is not None
    assert array.tolist() == [0] * 8
    del array
    assert freed() is None


def test_memory_is_freed_with_a_tensor_that_nobody_looked_at():
    buffer = _shared(bytes(8))
    freed = weakref.ref(buffer)
    tensor = Tensor._from_wire("X", "INT64", (1,), buffer)
    del buffer
    assert freed() is not None
    del tensor
    assert freed() is None


def test_a_private_copy_does_not_keep_the_memory():
    buffer = _shared(bytes(8))
    freed = weakref.ref(buffer)
    array = Tensor._from_wire("X", "INT64", (1,), buffer, copy=True).as_numpy()
    del buffer
    assert freed() is None
    assert array.tolist() == [0]


ELEMENTS = [b"plain", b"", b"nul\0inside\0", "ä".encode(), bytes(range(256)), b"x" * 70000]


@BUFFERS
@pytest.mark.parametrize("copy", [False, True])
def test_bytes_are_decoded_into_the_tensors_shape(buffer, copy):
    wire = buffer(encode_elements(ELEMENTS))
    tensor = Tensor._from_wire("X", "BYTES", (2, 3), wire, copy=copy)
    array = tensor.as_numpy()
    assert (array.dtype, array.shape) == (np.object_, (2, 3))
    assert array.ravel().tolist() == ELEMENTS
    assert {type(element) for element in array.flat} == {bytes}
    assert tensor.as_numpy() is array
    array[0, 0] = b"edited"
    assert bytes(tensor._payload()) == encode_elements(ELEMENTS)


@pytest.mark.parametrize(("shape", "count"), [((0,), 0), ((), 1), ((1, 1), 1), ((2, 0), 0)])
def test_bytes_of_odd_shapes(shape, count):
    array = Tensor._from_wire("X", "BYTES", shape, bytearray(encode_elements([b"a"] * count))).as_numpy()
    assert array.shape == shape
    assert array.size == count


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\x01\0", "Invalid bytes tensor data: incomplete length field"),
        (b"\x05\0\0\0abc", "Invalid bytes tensor data: string extends beyond buffer"),
        (
            b"\x01\0\0\0a",
            r"Invalid bytes tensor data: the number of elements in tensor 'X' does not match its shape \[2\]",
        ),
    ],
)
def test_malformed_bytes_are_refused(wire, text):
    with pytest.raises(TritonModelException, match="^" + text):
        Tensor._from_wire("X", "BYTES", (2,), bytearray(wire)).as_numpy()


@pytest.mark.spec("pb-T09")
def test_bf16_is_no_numpy_array():
    tensor = Tensor._from_wire("X", "BF16", (2,), bytearray(4))
    with pytest.raises(
        TritonModelException,
        match=r"^Tensor dtype is BF16 and cannot be converted to NumPy\. Use to_dlpack\(\) and from_dlpack\(\) instead\.",
    ):
        tensor.as_numpy()
    assert tensor._payload() == bytes(4)
    assert tensor.triton_dtype().name == "BF16"
