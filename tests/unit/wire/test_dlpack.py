"""DLPack both ways, against a producer and a consumer of the tests' own, NumPy's, and torch's where it is installed."""

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.tensor import Tensor
from pybackend_wire import dlpack, dlpack_capsule
from pybackend_wire.dtypes import DATATYPES
from tests.unit.sdk.dlpack_peer import (
    BFLOAT,
    BOOL,
    COMPLEX,
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    FLOAT,
    INT,
    METAL,
    UINT,
    Consumer,
    Producer,
    name_of,
    structure_of,
)

ROOT = Path(__file__).resolve().parents[3]
FIXED_SIZE = [row for row in DATATYPES.values() if row.itemsize and row.numpy is not None]
CODES = {"b": BOOL, "i": INT, "u": UINT, "f": FLOAT}
HAS_NUMPY_CAPSULES = dlpack._make_capsule is dlpack._make_capsule_by_numpy
needs_numpy_consumer = pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="NumPy before 1.23")


@pytest.fixture(params=["numpy", "ctypes"])
def exporter(request, monkeypatch):
    """Both ways in which capsules are made, wherever both exist."""
    if request.param == "numpy" and not HAS_NUMPY_CAPSULES:
        pytest.skip("NumPy before 1.24 makes no safe capsules")
    makers = {"numpy": dlpack._make_capsule_by_numpy, "ctypes": dlpack_capsule.make_capsule}
    monkeypatch.setattr(dlpack, "_make_capsule", makers[request.param])
    return request.param


def _array(dtype=np.float32, shape=(2, 3)):
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def _received(dtype=np.float32, datatype="FP32", shape=(2, 3)):
    data = _array(dtype, shape).tobytes()
    return Tensor._from_wire("X", datatype, shape, (ctypes.c_char * len(data)).from_buffer_copy(data))


# --- Tensor -> another library ---


@pytest.mark.parametrize("row", FIXED_SIZE, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(2, 3), (), (1,), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("received", [False, True], ids=["local", "received"])
def test_capsules_describe_the_tensor(exporter, row, shape, received):
    array = _array(row.numpy, shape)
    tensor = _received(row.numpy, row.name, shape) if received else Tensor("X", array)
    capsule = tensor.to_dlpack()
    assert name_of(capsule) == b"dltensor"
    managed = structure_of(capsule)
    assert (managed.device_type, managed.device_id, managed.byte_offset) == (CPU, 0, 0)
    assert (managed.code, managed.bits, managed.lanes) == (CODES[row.numpy.kind], row.itemsize * 8, 1)
    assert tuple(managed.shape[: managed.ndim]) == shape
    consumer = Consumer(capsule)
    np.testing.assert_array_equal(consumer.array(), array)
    consumer.release()


def test_memory_is_shared_not_copied(exporter):
    array = _array()
    consumer = Consumer(Tensor("X", array).to_dlpack())
    consumer.write(np.full(6, 5, np.float32).tobytes())
    assert array.tolist() == [[5] * 3] * 2
    consumer.release()


def test_memory_that_arrived_is_shared_not_copied(exporter):
    tensor = _received()
    consumer = Consumer(tensor.to_dlpack())
    consumer.write(np.full(6, 5, np.float32).tobytes())
    assert tensor.as_numpy().tolist() == [[5] * 3] * 2
    consumer.release()


def test_read_only_arrays_are_offered_too(exporter):
    array = _array()
    array.flags.writeable = False
    consumer = Consumer(Tensor("X", array).to_dlpack())
    np.testing.assert_array_equal(consumer.array(), array)
    consumer.release()


@pytest.mark.spec("pb-T12")
@pytest.mark.parametrize("make", [lambda: Tensor("X", _array()), _received], ids=["local", "received"])
def test_a_capsule_holds_one_reference_until_it_is_dropped(exporter, make):
    tensor = make()
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


@pytest.mark.spec("pb-T12")
@pytest.mark.parametrize("make", [lambda: Tensor("X", _array()), _received], ids=["local", "received"])
def test_a_consumed_capsule_holds_one_reference_until_the_deleter_is_called(exporter, make):
    tensor = make()
    before = sys.getrefcount(tensor)
    capsule = tensor.__dlpack__()
    consumer = Consumer(capsule)
    assert name_of(capsule) == b"used_dltensor"
    del capsule
    assert sys.getrefcount(tensor) == before + 1
    consumer.release()
    assert sys.getrefcount(tensor) == before


@pytest.mark.spec("pb-T12")
def test_each_capsule_holds_a_reference_of_its_own(exporter):
    tensor = Tensor("X", _array())
    before = sys.getrefcount(tensor)
    capsules = [tensor.to_dlpack() for _ in range(3)]
    consumers = [Consumer(capsule) for capsule in capsules[:2]]
    assert sys.getrefcount(tensor) == before + 3
    capsules.clear()
    assert sys.getrefcount(tensor) == before + 2
    for left in (1, 0):
        consumers.pop().release()
        assert sys.getrefcount(tensor) == before + left


def test_a_consumer_keeps_tensor_and_memory_alive(exporter):
    buffer = (ctypes.c_char * 16).from_buffer_copy(np.arange(4, dtype=np.int32).tobytes())
    freed = weakref.ref(buffer)
    tensor = Tensor._from_wire("X", "INT32", (4,), buffer)
    gone = weakref.ref(tensor)
    consumer = Consumer(tensor.to_dlpack())
    del tensor, buffer
    gc.collect()
    assert gone() is not None
    assert consumer.array().tolist() == [0, 1, 2, 3]
    consumer.release()
    assert gone() is None
    assert freed() is None


def test_deleters_may_be_called_from_any_thread_without_the_gil(exporter):
    tensor = Tensor("X", _array())
    before = sys.getrefcount(tensor)
    consumers = [Consumer(tensor.to_dlpack()) for _ in range(4)]
    threads = [threading.Thread(target=consumer.release) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getrefcount(tensor) == before


def test_nothing_of_ours_is_left_when_all_is_released(exporter):
    Consumer(Tensor("X", _array()).to_dlpack()).release()
    Tensor("X", _array()).to_dlpack()
    gc.collect()
    assert dlpack_capsule.exports == {}


def test_stream_is_ignored_and_device_is_host_memory():
    tensor = Tensor("X", _array())
    for capsule in (
        tensor.__dlpack__(),
        tensor.__dlpack__(stream=None),
        tensor.__dlpack__(stream=1),
        tensor.__dlpack__(2),
        tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False),
    ):
        assert name_of(capsule) == b"dltensor"
    assert tensor.__dlpack_device__() == (1, 0)
    assert [type(number) for number in tensor.__dlpack_device__()] == [int, int]


@pytest.mark.parametrize("make", [lambda: Tensor("X", _array()), _received], ids=["local", "received"])
def test_a_library_may_ask_for_a_copy(make):
    tensor = make()
    consumers = [Consumer(tensor.__dlpack__(copy=copy)) for copy in (True, False)]
    tensor.as_numpy()[...] = -1
    assert [consumer.array().tolist() for consumer in consumers] == [_array().tolist(), [[-1] * 3] * 2]
    for consumer in consumers:
        consumer.release()


def test_a_library_that_wants_it_on_a_gpu_is_told_how_to_get_it_there(snapshot):
    with pytest.raises(BufferError) as raised:
        Tensor("X", _array()).__dlpack__(dl_device=(CUDA, 1))
    assert str(raised.value) == snapshot


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize(
    "tensor",
    [Tensor("X", np.array([b"a"])), Tensor._from_wire("X", "BYTES", (1,), bytearray(b"\x01\0\0\0a"))],
    ids=["local", "received"],
)
def test_strings_are_not_offered(tensor):
    for offer in (tensor.to_dlpack, tensor.__dlpack__):
        with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\."):
            offer()


# --- Another library -> Tensor ---


@pytest.mark.parametrize("row", FIXED_SIZE, ids=lambda row: row.name)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("as_capsule", [False, True], ids=["object", "capsule"])
def test_memory_is_taken_over_without_a_copy(row, shape, as_capsule):
    array = _array(row.numpy, shape)
    producer = Producer(array)
    tensor = Tensor.from_dlpack("Y", producer.capsule() if as_capsule else producer)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype().name) == ("Y", list(shape), row.name)
    np.testing.assert_array_equal(tensor.as_numpy(), array)
    assert tensor.as_numpy().dtype == row.numpy
    assert tensor.as_numpy() is tensor.as_numpy()
    assert tensor.as_numpy().flags.writeable
    assert tensor.as_numpy().flags.c_contiguous
    assert tensor._payload().nbytes == array.nbytes
    if array.size:
        array[...] = 1
        np.testing.assert_array_equal(tensor.as_numpy(), array)


def test_objects_on_the_host_are_asked_without_a_stream():
    producer = Producer(_array())
    Tensor.from_dlpack("Y", producer)
    assert producer.streams == [()]


@pytest.mark.parametrize("keep", ["tensor", "array", "slice"])
def test_the_deleter_is_called_once_when_nobody_needs_the_memory(keep):
    producer = Producer(_array())
    capsule = producer.capsule()
    tensor = Tensor.from_dlpack("Y", capsule)
    assert name_of(capsule) == b"used_dltensor"
    kept = {"tensor": tensor, "array": tensor.as_numpy(), "slice": tensor.as_numpy()[1:]}[keep]
    del tensor, capsule
    gc.collect()
    assert producer.deleted == 0
    del kept
    gc.collect()
    assert producer.deleted == 1


def test_memory_of_no_elements_is_given_back_at_once():
    producer = Producer(_array(shape=(0,)))
    tensor = Tensor.from_dlpack("Y", producer)
    assert producer.deleted == 1
    assert tensor.as_numpy().shape == (0,)


def test_memory_without_a_deleter_is_nobodys_to_free():
    producer = Producer(_array())
    producer.managed.deleter = None
    tensor = Tensor.from_dlpack("Y", producer)
    np.testing.assert_array_equal(tensor.as_numpy(), producer.array)
    del tensor
    assert producer.deleted == 0


def test_byte_offset_counts():
    memory = _array(np.int32, (6,))
    tensor = Tensor.from_dlpack("Y", Producer(memory[2:], byte_offset=8))
    assert tensor.as_numpy().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 3), (3, 1)), ((1, 3), (77, 1)), ((2, 1), (1, 5)), ((1,), (9,)), ((0, 3), (1, 1)), ((), ())],
)
def test_strides_of_c_order_are_contiguous(shape, strides):
    array = _array(shape=shape)
    np.testing.assert_array_equal(Tensor.from_dlpack("Y", Producer(array, strides=strides)).as_numpy(), array)


def _refused(producer, text, as_capsule=False):
    capsule = producer.capsule()
    with pytest.raises(TritonModelException, match="^" + text):
        Tensor.from_dlpack("Y", capsule if as_capsule else producer)
    assert producer.deleted == 0
    assert name_of(capsule) == b"dltensor"


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize(("shape", "strides"), [((2, 3), (1, 2)), ((3,), (2,)), ((3,), (-1,)), ((2, 3), (6, 1))])
def test_other_orders_are_refused_and_stay_with_their_owner(shape, strides):
    _refused(
        Producer(_array(shape=shape), strides=strides),
        r"DLPack tensor is not contiguous\. Only contiguous DLPack tensors that are stored in C-Order are supported\.",
        as_capsule=True,
    )


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize("as_capsule", [False, True], ids=["object", "capsule"])
@pytest.mark.parametrize("device", [METAL, CUDA_MANAGED, 99])
def test_other_devices_are_refused(device, as_capsule):
    _refused(
        Producer(_array(), device=(device, 0)),
        rf"DLDevice type {device} is not support by Python backend\.",
        as_capsule,
    )


@pytest.mark.parametrize("as_capsule", [False, True], ids=["object", "capsule"])
def test_gpu_memory_is_refused_before_it_is_asked_for(as_capsule):
    producer = Producer(_array(), device=(CUDA, 0))
    _refused(producer, "GPU tensors are not supported yet", as_capsule)
    assert producer.streams == []


def test_pinned_memory_counts_as_host_memory():
    producer = Producer(_array(), device=(CUDA_HOST, 1))
    tensor = Tensor.from_dlpack("Y", producer)
    assert tensor.is_cpu()
    assert tensor.__dlpack_device__() == (CPU, 0)
    np.testing.assert_array_equal(tensor.as_numpy(), producer.array)


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize(
    "dtype",
    [
        (COMPLEX, 64, 1),
        (FLOAT, 128, 1),
        (FLOAT, 8, 1),
        (INT, 4, 1),
        (FLOAT, 32, 4),
        (BOOL, 1, 1),
        (3, 64, 1),
        (99, 8, 1),
    ],
)
def test_other_types_are_refused(dtype):
    _refused(Producer(_array(), dtype=dtype), r"Dtype is invalid\.")


@pytest.mark.spec("pb-T08", "pb-T09")
def test_bf16_of_another_size_is_refused():
    _refused(Producer(_array(), dtype=(BFLOAT, 32, 1)), "Expected BF16 tensor to have 16 bits, but had: 32")


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize("value", [None, "text", [1.0], 5, object()], ids=lambda value: type(value).__name__)
def test_what_is_no_dlpack_is_refused(value):
    with pytest.raises(
        TritonModelException, match=r"^Provided tensor is not supported\. Tensor must be a DLPack capsule "
    ):
        Tensor.from_dlpack("Y", value)


@pytest.mark.spec("pb-T08")
def test_an_object_with_half_the_protocol_is_refused():
    class Half:
        def __dlpack__(self):
            raise AssertionError("must not be called")

    with pytest.raises(
        TritonModelException, match=r"^Provided tensor is not supported\. Tensor must be a DLPack capsule "
    ):
        Tensor.from_dlpack("Y", Half())


@pytest.mark.spec("pb-T08")
def test_a_capsule_can_be_used_once():
    producer = Producer(_array())
    capsule = producer.capsule()
    Tensor.from_dlpack("Y", capsule)
    with pytest.raises(TritonModelException, match=r"^Provided tensor is not supported\..* can be used only once\.$"):
        Tensor.from_dlpack("Y", capsule)
    assert producer.deleted == 1


def test_capsules_of_another_kind_are_refused():
    producer = Producer(_array(), name=b"dltensor_versioned")
    with pytest.raises(TritonModelException, match=r"^Provided tensor is not supported\."):
        Tensor.from_dlpack("Y", producer.capsule())
    assert producer.deleted == 0


def test_a_producers_own_refusal_reaches_the_model():
    class Reluctant(Producer):
        def __dlpack__(self, *streams):
            raise BufferError("it requires grad")

    with pytest.raises(BufferError, match="it requires grad"):
        Tensor.from_dlpack("Y", Reluctant(_array()))


# --- BF16 ---


@pytest.mark.spec("pb-T09")
def test_bf16_goes_through_dlpack_only(exporter):
    bits = np.array([0x3F80, 0xC000, 0x7FC0, 0x0001], np.uint16)  # 1.0, -2.0, NaN, the smallest
    producer = Producer(bits, dtype=(BFLOAT, 16, 1))
    tensor = Tensor.from_dlpack("Y", producer)
    assert (tensor.triton_dtype().name, int(tensor.triton_dtype()), tensor.shape()) == ("BF16", 14, [4])
    with pytest.raises(TritonModelException, match=r"^Tensor dtype is BF16 and cannot be converted to NumPy\."):
        tensor.as_numpy()
    assert bytes(memoryview(tensor._payload())) == bits.tobytes()
    consumer = Consumer(tensor.to_dlpack())
    assert (consumer.managed.code, consumer.managed.bits, consumer.managed.lanes) == (BFLOAT, 16, 1)
    np.testing.assert_array_equal(consumer.array(), bits)
    del tensor
    assert producer.deleted == 0
    consumer.release()
    assert producer.deleted == 1


@pytest.mark.spec("pb-T09")
def test_bf16_that_arrived_is_handed_on_unchanged(exporter):
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    received = Tensor._from_wire("X", "BF16", (1, 2), bytearray(bits.tobytes()))
    forwarded = Tensor.from_dlpack("Y", received)
    assert forwarded.triton_dtype().name == "BF16"
    assert forwarded.shape() == [1, 2]
    assert bytes(memoryview(forwarded._payload())) == bits.tobytes()


# --- Tensor -> Tensor, NumPy, torch ---


def test_tensors_take_each_others_memory(exporter):
    first = _received()
    before = sys.getrefcount(first)
    second = Tensor.from_dlpack("Y", first)
    third = Tensor.from_dlpack("Z", second.to_dlpack())
    third.as_numpy()[0, 0] = 42
    assert first.as_numpy()[0, 0] == 42
    assert sys.getrefcount(first) == before + 1
    del second
    assert sys.getrefcount(first) == before + 1
    del third
    assert sys.getrefcount(first) == before


@needs_numpy_consumer
@pytest.mark.parametrize("row", [row for row in FIXED_SIZE if row.name != "BOOL"], ids=lambda row: row.name)
def test_numpy_consumes_tensors(exporter, row):
    array = _array(row.numpy)
    tensor = Tensor("X", array)
    before = sys.getrefcount(tensor)
    taken = np.from_dlpack(tensor)
    np.testing.assert_array_equal(taken, array)
    assert taken.dtype == row.numpy
    assert np.shares_memory(taken, array)
    assert sys.getrefcount(tensor) == before + 1
    del taken
    assert sys.getrefcount(tensor) == before


@pytest.mark.skipif(not hasattr(np.ndarray, "__dlpack__"), reason="NumPy before 1.22")
def test_numpy_arrays_are_producers():
    array = _array()
    tensor = Tensor.from_dlpack("Y", array)
    assert np.shares_memory(tensor.as_numpy(), array)
    before = sys.getrefcount(array)
    del tensor
    assert sys.getrefcount(array) == before - 1


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_torch_tensors_go_both_ways(exporter):
    torch = pytest.importorskip("torch")
    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensor = Tensor.from_dlpack("Y", source)
    source[0, 0] = 9
    assert tensor.as_numpy()[0, 0] == 9
    back = torch.from_dlpack(tensor)
    assert back.data_ptr() == source.data_ptr()
    assert torch.equal(torch.utils.dlpack.from_dlpack(tensor.to_dlpack()), source)
    with pytest.raises(TritonModelException, match=r"^DLPack tensor is not contiguous\."):
        Tensor.from_dlpack("Y", source.t())


@pytest.mark.torch
@pytest.mark.spec("pb-T09")
@pytest.mark.filterwarnings("default")
def test_torch_bf16_and_bool_go_both_ways(exporter):
    torch = pytest.importorskip("torch")
    for source in (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), torch.tensor([True, False])):
        tensor = Tensor.from_dlpack("Y", source)
        back = torch.from_dlpack(tensor)
        assert back.dtype == source.dtype
        assert torch.equal(back, source)


# --- Where a mistake would end the process ---


def _run(code):
    done = subprocess.run(
        [sys.executable, "-I", "-X", "faulthandler", "-c", code, str(ROOT / "stub"), str(ROOT / "sdk")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


PREAMBLE = """
import sys; sys.path[:0] = sys.argv[1:]
import numpy as np
from pybackend_wire import dlpack, dlpack_capsule
from pybackend_sdk.tensor import Tensor
tensor = Tensor("X", np.arange(4, dtype=np.float32))
"""


@pytest.mark.skipif(not HAS_NUMPY_CAPSULES, reason="NumPy before 1.24: see dlpack_capsule")
def test_a_capsule_may_die_while_an_exception_is_under_way():
    printed = _run(
        PREAMBLE
        + """
before = sys.getrefcount(tensor)
def ignore(*values): pass
for _ in range(3):
    try:
        ignore(tensor.to_dlpack(), 1 / 0)
    except ZeroDivisionError:
        print("ZeroDivisionError")
    try:
        ignore(np.from_dlpack(tensor), 1 / 0)
    except ZeroDivisionError:
        print("ZeroDivisionError")
    try:
        np.from_dlpack(Tensor._from_wire("X", "BF16", (2,), bytearray(4)))
    except Exception as error:
        print(type(error).__name__)
print(sys.getrefcount(tensor) - before)
"""
    )
    assert printed[-1] == "0"
    assert printed.count("ZeroDivisionError") == 6
    assert "SystemError" not in printed


@pytest.mark.parametrize("maker", ["dlpack._make_capsule", "dlpack_capsule.make_capsule"])
def test_capsules_and_tensors_may_outlive_the_interpreter(maker):
    _run(
        PREAMBLE
        + f"""
dlpack._make_capsule = {maker}
never_used = tensor.to_dlpack()
taken = Tensor.from_dlpack("Y", tensor)
array = taken.as_numpy()
cycle = [tensor.to_dlpack()]; cycle.append(cycle)
"""
    )
