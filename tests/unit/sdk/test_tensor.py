"""Tensors that a model makes of its own arrays."""

import sys

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor
from pybackend_wire.dtypes import DATATYPES

FIXED_SIZE = [row for row in DATATYPES.values() if row.itemsize and row.numpy is not None]


def _array(dtype=np.float32, shape=(2, 3)):
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.spec("pb-T01")
@pytest.mark.parametrize(
    "arguments",
    [
        ("X", [1, 2]),
        ("X", None),
        ("X", 1.5),
        ("X", np.float32(1.5)),
        ("X", memoryview(b"ab")),
        ("", None),
        (None, _array()),
        (1, _array()),
        (["X"], _array()),
        ("X",),
        (),
        ("X", _array(), 1),
    ],
)
def test_arguments_of_another_type_are_type_errors(arguments):
    with pytest.raises(TypeError):
        Tensor(*arguments)


@pytest.mark.spec("pb-T01")
def test_a_list_is_told_from_an_array():
    with pytest.raises(TypeError, match=r"incompatible constructor arguments: 'numpy_array' must be a numpy\.ndarray"):
        Tensor("X", [1.0])


@pytest.mark.spec("pb-T01")
@pytest.mark.parametrize("keywords", [{"name": "X", "numpy_array": _array()}, {"numpy_array": _array()}])
def test_arguments_are_positional_only(keywords):
    positional = () if "name" in keywords else ("X",)
    with pytest.raises(TypeError):
        Tensor(*positional, **keywords)


@pytest.mark.spec("pb-T01")
def test_empty_name_is_refused():
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\."):
        Tensor("", _array())
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\."):
        Tensor.from_dlpack("", _array())


@pytest.mark.spec("pb-T01")
def test_from_dlpack_wants_a_name_and_a_producer():
    with pytest.raises(TypeError):
        Tensor.from_dlpack(None, _array())
    with pytest.raises(TypeError):
        Tensor.from_dlpack(name="X", obj=_array())
    with pytest.raises(
        TritonModelException, match=r"^Provided tensor is not supported\. Tensor must be a DLPack capsule "
    ):
        Tensor.from_dlpack("X", None)


def test_names_may_be_bytes_as_they_come_out_of_a_bytes_tensor():
    assert Tensor("Größe".encode(), _array()).name() == "Größe"


@pytest.mark.parametrize("name", [b"\xff", "\ud800"])
def test_names_that_utf8_cannot_express_are_refused(name):
    with pytest.raises(TypeError, match="'name'"):
        Tensor(name, _array())


@pytest.mark.spec("pb-T02", "pb-T03")
@pytest.mark.parametrize("row", FIXED_SIZE, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(2, 3), (), (1,), (0,), (3, 0, 2)], ids=str)
def test_numeric_arrays_are_aliased(row, shape):
    array = _array(row.numpy, shape)
    tensor = Tensor("X", array)
    assert tensor.as_numpy() is array
    assert tensor._payload() is array
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("X", list(shape), True)
    assert tensor._datatype == row.name
    assert [type(dimension) for dimension in tensor.shape()] == [int] * len(shape)


@pytest.mark.spec("pb-T02")
@pytest.mark.parametrize("row", FIXED_SIZE, ids=lambda row: row.name)
def test_triton_dtype_is_the_code_and_shows_its_name(row):
    datatype = Tensor("X", _array(row.numpy)).triton_dtype()
    assert int(datatype) == row.code
    assert datatype.name == row.name
    assert row.name in repr(datatype)


def test_bytes_tensors_have_a_triton_dtype_too():
    assert int(Tensor("X", np.array([b"a"])).triton_dtype()) == 13


@pytest.mark.spec("pb-T02")
@pytest.mark.parametrize("alias", [np.longlong, np.intc, np.ulonglong, np.byte, "<f4", "=i8", "|b1"])
def test_other_spellings_of_native_types_are_mapped(alias):
    array = np.zeros(2, np.dtype(alias))
    assert DATATYPES[Tensor("X", array)._datatype].numpy == array.dtype


@pytest.mark.spec("pb-T02")
@pytest.mark.parametrize(
    "dtype",
    [
        "U3",
        "complex64",
        "complex128",
        "datetime64[s]",
        "timedelta64[s]",
        ">f4" if sys.byteorder == "little" else "<f4",
        ">i8" if sys.byteorder == "little" else "<i8",
        [("a", "f4"), ("b", "i4")],
        "V2",
        "longdouble",
    ],
    ids=str,
)
def test_dtypes_without_a_datatype_are_refused(dtype):
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\."):
        Tensor("X", np.zeros(2, dtype))


@pytest.mark.spec("pb-T02")
@pytest.mark.skipif(not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"), reason="NumPy before 2.0")
def test_variable_width_strings_are_refused():
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\."):
        Tensor("X", np.array(["a"], np.dtypes.StringDType()))


@pytest.mark.spec("pb-T03")
@pytest.mark.parametrize(
    "view",
    [
        _array(shape=(4, 6))[:, ::2],
        _array(shape=(4, 6)).T,
        np.asfortranarray(_array(shape=(4, 6))),
        _array(shape=(6,))[::-1],
        np.broadcast_to(np.float32(3), (2, 2)),
    ],
    ids=["strided", "transposed", "fortran", "reversed", "broadcast"],
)
def test_non_contiguous_arrays_are_copied_in_c_order(view):
    tensor = Tensor("X", view)
    assert tensor.as_numpy().flags.c_contiguous
    np.testing.assert_array_equal(tensor.as_numpy(), view)
    assert tensor.as_numpy() is tensor.as_numpy() is tensor._payload()
    assert tensor.shape() == list(view.shape)
    assert bytes(memoryview(tensor._payload())) == view.tobytes()


@pytest.mark.spec("pb-T03")
def test_edits_of_a_contiguous_array_count_until_it_is_sent():
    array = _array()
    tensor = Tensor("X", array)
    array[0, 0] = 99
    assert bytes(memoryview(tensor._payload())) == array.tobytes()


def test_read_only_arrays_are_taken():
    array = _array()
    array.flags.writeable = False
    assert Tensor("X", array)._payload() is array


SERIALISED = b"".join([b"\x01\0\0\0a", b"\x03\0\0\0b\0c", b"\0\0\0\0", b"\x04\0\0\0None", b"\x01\0\0\x005"])


def test_object_arrays_are_serialised_when_the_tensor_is_made():
    array = np.array([b"a", b"b\0c", "", None, 5], np.object_)
    tensor = Tensor("X", array)
    array[0] = b"changed"
    assert tensor._payload() == SERIALISED
    assert tensor._datatype == "BYTES"
    assert tensor.as_numpy() is array


def test_text_is_serialised_as_utf8():
    assert Tensor("X", np.array(["ä"], np.object_))._payload() == b"\x02\0\0\0" + "ä".encode()


def test_arrays_of_fixed_width_bytes_are_serialised():
    array = np.array([b"a", b"bcd"])
    tensor = Tensor("X", array)
    assert tensor._payload() == b"\x01\0\0\0a\x03\0\0\0bcd"
    assert tensor.as_numpy() is array


def test_elements_are_serialised_in_c_order():
    array = np.array([[b"a", b"b"], [b"c", b"d"]], np.object_)
    transposed = Tensor("X", array.T)
    assert transposed._payload() == b"".join(b"\x01\0\0\0" + element for element in (b"a", b"c", b"b", b"d"))
    assert transposed.shape() == [2, 2]


@pytest.mark.parametrize("shape", [(0,), (2, 0), ()], ids=str)
def test_bytes_of_odd_shapes(shape):
    tensor = Tensor("X", np.full(shape, b"z", np.object_))
    assert tensor._payload() == b"\x01\0\0\0z" * int(np.prod(shape))
    assert tensor.shape() == list(shape)


def test_repr_is_the_native_modules():
    assert repr(Tensor("X", _array())).startswith("<c_python_backend_utils.Tensor object at 0x")


@pytest.mark.parametrize("dtype", ["bool", "uint8", np.float16, np.dtype("int64")], ids=str)
def test_an_empty_tensor_without_a_server_is_an_ordinary_array(dtype):
    tensor = Tensor.empty("X", (2, 3), dtype)
    assert tensor.shape() == [2, 3]
    assert tensor.as_numpy().dtype == np.dtype(dtype)
    tensor.as_numpy()[...] = 1
    assert bytes(memoryview(tensor._payload())) == np.ones((2, 3), dtype).tobytes()


def test_an_empty_tensor_takes_the_runtimes_memory(runtime):
    memory = bytearray(24)
    runtime.output_buffer = lambda nbytes: memoryview(memory) if nbytes == len(memory) else None
    Tensor.empty("X", [2, 3], np.float32).as_numpy()[...] = 1
    assert memory == np.ones(6, np.float32).tobytes()
