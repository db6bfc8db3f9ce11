"""A large JSON document read in steps gives what it gives in one go: the same tensors, and the same errors."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.inference.validation import validate_header
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.protocol.json import large_request as json_slices
from pybackend.protocol.json import outline as json_outline
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.json.large_request import parse_large
from pybackend.protocol.json.outline import LARGEST_SKELETON_BYTES
from pybackend.protocol.limits import BodyLimits
from pybackend_wire.dtypes import DATATYPES
from tests.support.fuzzing import examples

NAN = float("nan")


def signature_of(*datatypes):
    inputs = {name: TensorSignature(name, name, (-1,), optional=True) for name in datatypes}
    return ModelSignature("model", 0, inputs, {"OUT": TensorSignature("OUT", "FP32", (-1,))})


EVERY = signature_of(*DATATYPES)


def at_once(text, signature=EVERY, *, binary_bytes=0):
    plan = parse_infer(
        text,
        header_length=len(text),
        signature=signature,
        model_version="1",
        limits=BodyLimits(),
        available_bytes=binary_bytes,
    )
    validate_header(plan.request, signature, plan.binary_inputs)
    return plan


def in_steps(text, signature=EVERY, *, binary_bytes=0):
    work = parse_large(
        bytearray(text),
        header_length=len(text),
        signature=signature,
        model_version="1",
        limits=BodyLimits(),
        available_bytes=binary_bytes,
        room_for=allocate,
    )
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def outcome(parse, text, **options):
    """What there is to see of a plan, or the error."""
    try:
        plan = parse(text, **options)
    except InferenceError as error:
        return error.code, error.message
    tensors = [
        (each.name, each.datatype, tuple(each.shape), None if each.data is None else bytes(each.data))
        for each in plan.request.inputs
    ]
    sizes = [(tensor.name, size) for tensor, size in plan.binary_inputs]
    return tensors, sizes, plan.request.id, plan.request.parameters, plan.request.requested_outputs


@pytest.fixture
def slices(monkeypatch):
    """Slices of a few bytes, so that small documents have many."""

    def slices(outline_bytes, data_bytes):
        monkeypatch.setattr(json_outline, "SLICE_BYTES", outline_bytes)
        monkeypatch.setattr(json_slices, "SLICE_BYTES", data_bytes)

    return slices


def tensor(datatype, shape, data, **members):
    return {"name": datatype, "datatype": datatype, "shape": shape, "data": data, **members}


DOCUMENTS = {
    "flat": {"id": "7", "inputs": [tensor("INT32", [6], [1, -2, 3, 40, 500, 6000])]},
    "nested": {"inputs": [tensor("INT64", [12], [[[1, 2], [3]], [[4, 5, 6]], [[7], [8], [9, 10], [11, 12]]])]},
    "floats": {"inputs": [tensor("FP32", [5], [1.5, NAN, float("inf"), -0.0, 3])]},
    "texts": {"inputs": [tensor("BYTES", [7], ["a,b", '"', "\\", '\\",[', "]", "é\n", ""])]},
    "nested texts": {"inputs": [tensor("BYTES", [4], [["],[", '","'], ["[[", '\\\\"']])]},
    "one of each": {
        "parameters": {"data": "x", "custom": 1},
        "inputs": [tensor("BOOL", [2], [True, False]), tensor("UINT8", [0], []), tensor("FP64", [1], [2.5])],
        "outputs": [{"name": "OUT"}],
    },
    "binary between": {
        "inputs": [
            tensor("INT8", [3], [1, 2, 3]),
            {"name": "FP16", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}},
            tensor("UINT64", [2], [2**64 - 1, 0]),
        ]
    },
    "too few": {"inputs": [tensor("INT32", [6], [1, 2])]},
    "too many": {"inputs": [tensor("INT32", [2], [1, 2, 3, 4, 5])]},
    "too many texts": {"inputs": [tensor("BYTES", [1], ["x", "y"])]},
    "wrong type": {"inputs": [tensor("INT32", [3], [1, 2.5, 3])]},
    "wrong type of texts": {"inputs": [tensor("BYTES", [3], ["a", "b", 3])]},
    "mixed": {"inputs": [tensor("INT32", [4], [1, 2, [3], 4])]},
    "no array": {"inputs": [tensor("INT32", [4], 5)]},
    "no data": {"inputs": [{"name": "INT32", "datatype": "INT32", "shape": [1]}]},
    "two sources": {"inputs": [tensor("INT32", [1], [1], parameters={"binary_data_size": 4})]},
    "too large": {"inputs": [tensor("INT32", [2**40], [1])]},
    "unknown input": {"inputs": [{**tensor("INT32", [1], [1]), "name": "OTHER"}]},
    "twice": {"inputs": [tensor("INT32", [1], [1]), tensor("INT32", [1], [2])]},
    "other places": {"inputs": [tensor("INT32", [1], [1])], "x": {"y": {"data": [1, 2]}}, "data": [[[["data"]]]]},
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_same_as_at_once(slices, name):
    text = json.dumps(DOCUMENTS[name]).encode()
    binary_bytes = 4 if name == "binary between" else 0
    expected = outcome(at_once, text, binary_bytes=binary_bytes)
    for outline_bytes in (1, 2, 7, 1000):
        for data_bytes in (1, 3, 8, 1000):
            slices(outline_bytes, data_bytes)
            assert outcome(in_steps, text, binary_bytes=binary_bytes) == expected, (outline_bytes, data_bytes)


BROKEN = {
    "empty element": ('"data":[1,2]', '"data":[1,,2]'),
    "comma at the end": ('"data":[1,2]', '"data":[1,2,]'),
    "comma at first": ('"data":[1,2]', '"data":[,1,2]'),
    "wrong bracket": ('"data":[1,2]', '"data":[1,2}'),
    "no comma": ('"data":[1,2]', '"data":[1 2]'),
    "open": ('"data":[1,2]', '"data":[1,2'),
    "nested wrongly": ('"data":[1,2]', '"data":[[1],2]]'),
    "words": ('"data":[1,2]', '"data":[1,two]'),
    "open text": ('"data":[1,2]', '"data":[1,"2]'),
    "behind": ('"data":[1,2]', '"data":[1,2] 5'),
    "before": ('"name"', '"name" 5'),
    "no JSON": ('{"inputs"', "(inputs"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_refused(slices, name):
    text = json.dumps({"inputs": [tensor("INT32", [2], [1, 2])]}, separators=(",", ":"))
    assert BROKEN[name][0] in text
    broken = text.replace(*BROKEN[name], 1).encode()
    for data_bytes in (1, 2, 5, 1000):
        slices(4, data_bytes)
        with pytest.raises(InferenceError, match=r"parse|additional"):
            in_steps(broken)


SPACES = " " * 100
WRITTEN_ODDLY = {
    "escaped key": '{"inputs":[{"name":"INT8","datatype":"INT8","shape":[2],"d\\u0061ta":[7,8]}]}',
    "escaped key of what looks like a place": (
        '{"inputs":[{"name":"INT8","datatype":"INT8","shape":[1],"data":[5]},'
        '{"name":"INT64","datatype":"INT64","shape":[1],"d\\u0061ta":[0]}]}'
    ),
    "key far away": (
        '{"inputs":[{"name":"INT8","datatype":"INT8","shape":[1],"data":[5]},'
        f'{{"name":"INT64","datatype":"INT64","shape":[1],"data":{SPACES}[0]}}]}}'
    ),
    "spaces before a comma": (
        f'{{"inputs":[{{"name":"INT8","datatype":"INT8","shape":[4],"data":[[1,2]{SPACES},{SPACES}[3,4]]}}]}}'
    ),
    "data of an output": '{"inputs":[],"outputs":[{"name":"OUT","data":[1,{"a":[2]}]}]}',
    "broken data of an output": '{"inputs":[],"outputs":[{"name":"OUT","data":[1,,2]}]}',
    "broken data that counts no more": (
        '{"inputs":[{"name":"INT8","datatype":"INT8","shape":[1],"data":[x],"data":[5]}]}'
    ),
    "signed number of too many bits": '{"inputs":[{"name":"INT8","datatype":"INT8","shape":[1],"data":[9223372036854775808]}]}',
    "unsigned number of too many bits": (
        '{"inputs":[{"name":"UINT8","datatype":"UINT8","shape":[1],"data":[18446744073709551616]}]}'
    ),
}


@pytest.mark.parametrize("name", WRITTEN_ODDLY)
def test_what_is_written_oddly_means_the_same(slices, name):
    text = WRITTEN_ODDLY[name].encode()
    expected = outcome(at_once, text)
    for data_bytes in (1, 3, 1000):
        slices(7, data_bytes)
        assert outcome(in_steps, text) == expected


def test_texts_full_of_commas_are_cut_between_them():
    """However many lie within texts, a slice is no longer for it, and none is a whole tensor."""
    texts = ["," * 150] * 20_000
    text = bytearray(json.dumps(texts, separators=(",", ":")).encode())
    data = json_slices.SlicedData(text, (0, len(text)), "IN", "BYTES", len(texts))
    assert len(list(data.encode_in_steps(BodyLimits()))) >= len(text) // json_slices.SLICE_BYTES


def test_place_of_an_error(slices):
    """It is that in what the client sent, wherever in it the slices begin."""
    slices(10, 16)
    for broken in (b'"name":"INT32","data":[1,2,3,4,5,6,7,8,9,10,11,x]', b'"data":[1,2,3,4,5,6,7,8,9,10],"name":x'):
        text = b'{"inputs":[{"datatype":"INT32","shape":[20],' + broken + b"}]}"
        with pytest.raises(InferenceError, match=f"Invalid value. at {text.index(b'x')}$"):
            in_steps(text)


json_values = st.recursive(
    st.one_of(st.integers(-5, 5), st.booleans(), st.text('",[]{}\\:é x', max_size=4), st.none()),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@examples(300)
@given(
    st.lists(st.tuples(st.sampled_from(["INT32", "BYTES", "FP32", "BOOL"]), json_values), min_size=1, max_size=2),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_random_documents(inputs, outline_bytes, data_bytes):
    """What is taken at once is taken in steps, and means the same; what is refused is refused."""
    document = {"inputs": [tensor(datatype, [2], data) for datatype, data in inputs]}
    text = json.dumps(document, ensure_ascii=False).encode()
    expected = outcome(at_once, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_outline, "SLICE_BYTES", outline_bytes)
        patch.setattr(json_slices, "SLICE_BYTES", data_bytes)
        found = outcome(in_steps, text)
    assert (len(found) == 2) == (len(expected) == 2)
    if len(expected) != 2:
        assert found == expected


def test_megabytes():
    values = np.random.default_rng(3).standard_normal((500, 300))
    text = json.dumps({"inputs": [tensor("FP64", [values.size], values.tolist())]}).encode()
    assert bytes(in_steps(text).request.inputs[0].data) == values.tobytes()


def allocate(tensor, size):
    tensor.data = bytearray(size)
    return memoryview(tensor.data)


def steps_until_refused(text, message, signature=EVERY):
    work = parse_large(
        bytearray(text),
        header_length=None,
        signature=signature,
        model_version="",
        limits=BodyLimits(),
        available_bytes=0,
        room_for=allocate,
    )
    done: list[None] = []
    with pytest.raises(InferenceError, match=message):
        done.extend(work)
    return len(done)


MIB = 1 << 20
NESTED = b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":'
BESIDE = "more than 1048576 bytes beside its tensors' data"
REFUSED = {
    "dimensions": (b'{"inputs":[{"name":"FP32","datatype":"FP32","data":[1],"shape":[' + b"1," * 8 * MIB, BESIDE),
    "inputs": (b'{"inputs":[' + b"{}," * 4 * MIB, BESIDE),
    "parameters": (b'{"parameters":{' + b'"a":1,' * 2 * MIB, BESIDE),
    "nested parameters": (b'{"parameters":{"a":' + b"[" * 8 * MIB, "JSON nesting depth"),
    "nested data": (NESTED + b"[" * 8 * MIB, "Unable to parse 'data': JSON nesting depth"),
    "not JSON": (b'"' + b"x" * 8 * MIB, BESIDE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_it_is_converted(name):
    """Within the first slices, however much there is of it."""
    text, message = REFUSED[name]
    assert steps_until_refused(text, message) <= 2 * LARGEST_SKELETON_BYTES // json_outline.SLICE_BYTES


@pytest.mark.parametrize(
    ("shape", "message"), [([1 << 22, 1], "unexpected shape"), ([5], "does not match true shape"), ([2**50], "exceeds")]
)
def test_refused_by_its_shape(shape, message):
    """What the model does not take, or the data exceeds, is not converted."""
    text = json.dumps({"inputs": [tensor("INT8", shape, [1] * (1 << 22))]}).encode()
    outline_steps = -(-len(text) // json_outline.SLICE_BYTES)
    assert steps_until_refused(text, message, signature_of("INT8")) <= outline_steps + 1
