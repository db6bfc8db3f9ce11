"""Good infer requests: what the plan holds, whichever way the document was read."""

import json
import struct
from math import inf, isnan, nan

import numpy as np
import pytest

from pybackend.inference.request import RequestFlags
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, attach_blobs
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.limits import BodyLimits

FP32 = np.dtype("<f4")


def tensor(name="X", datatype="FP32", shape=(4,), **members):
    return {"name": name, "datatype": datatype, "shape": list(shape), **members}


def with_data(datatype, count, data):
    """A document whose ``data`` is given as JSON text."""
    return f'{{"inputs":[{{"name":"X","datatype":"{datatype}","shape":[{count}],"data":{data}}}]}}'.encode()


def parse(document, signature, header_length=None):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_infer(text, header_length=header_length, signature=signature, model_version="3", limits=BodyLimits())


@pytest.fixture(scope="module")
def one(make_signature):
    return make_signature(("X", "FP32", [-1]), outputs=(("Y", "FP32", [-1]), ("Z", "FP32", [-1])))


def test_json_inputs_are_encoded_at_once(one):
    plan = parse({"id": "a", "inputs": [tensor(data=[1, 2.5, -3, 4e3])]}, one)
    request = plan.request
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "a")
    (found,) = request.inputs
    assert (found.name, found.datatype, found.shape) == ("X", "FP32", [4])
    assert found.data == struct.pack("<4f", 1, 2.5, -3, 4e3)
    assert found.lease is None
    assert (plan.binary_inputs, plan.binary_bytes, plan.output_format) == ([], 0, ALL_JSON)
    assert request.requested_outputs == ()
    assert request.parameters is None


def test_binary_inputs_wait_for_their_bytes(make_signature):
    signature = make_signature(("A", "FP32", [4]), ("B", "FP32", [4]), ("C", "FP32", [4]))
    document = {
        "inputs": [
            tensor("A", parameters={"binary_data_size": 16}),
            tensor("B", data=[0, 0, 0, 0]),
            tensor("C", parameters={"binary_data_size": 16, "other": [1]}),
        ]
    }
    plan = parse(document, signature, header_length=1)
    a, b, c = plan.request.inputs
    assert plan.binary_inputs == [(a, 16), (c, 16)]
    assert plan.binary_bytes == 32
    assert a.data is None
    assert b.data == bytes(16)
    attach_blobs(plan, bytes(range(40)), 8)
    assert bytes(a.data) == bytes(range(8, 24))
    assert bytes(c.data) == bytes(range(24, 40))


def test_large_blobs_are_not_copied(make_signature):
    signature = make_signature(("A", "FP32", [2000]), ("B", "FP32", [2000]))
    large = [tensor(name, shape=[2000], parameters={"binary_data_size": 8000}) for name in "AB"]
    plan = parse({"inputs": large}, signature, header_length=1)
    body = bytearray(16_000)
    attach_blobs(plan, memoryview(body))
    body[7] = body[8007] = 1
    assert [found.data[7] for found in plan.request.inputs] == [1, 1]


def test_zero_size_tensors(one, infer):
    assert infer({"inputs": [tensor(shape=[0], data=[])]}, one).request.inputs[0].data == b""
    empty = {"inputs": [tensor(shape=[0], parameters={"binary_data_size": 0})]}
    assert infer(empty, one, b"").request.inputs[0].data == b""
    assert infer(empty, one).request.inputs[0].data == b""


def test_unknown_members_are_ignored(one, infer):
    document = {
        "model_name": 3,
        "model_version": {},
        "inputs": [tensor(data=[1, 2, 3, 4], extra=[{}], parameters={"custom": {"a": None}})],
        "outputs": [{"name": "Y", "extra": 1, "parameters": {"custom": []}}],
    }
    plan = infer(document, one)
    assert plan.request.requested_outputs == ("Y",)


@pytest.mark.parametrize(
    ("default", "outputs", "requested", "forms"),
    [
        (None, None, (), "JJ"),
        (True, None, (), "BB"),
        (False, None, (), "JJ"),
        (None, [], (), "JJ"),
        (True, [], (), "BB"),
        (True, [{"name": "Y"}], ("Y",), "JJ"),
        (None, [{"name": "Z"}, {"name": "Y"}], ("Z", "Y"), "JJ"),
        (True, [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z"}], ("Y", "Z"), "BJ"),
        (None, [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z"}], ("Y", "Z"), "BJ"),
        (
            False,
            [{"name": name, "parameters": {"binary_data": True, "classification": 0}} for name in "YZ"],
            ("Y", "Z"),
            "BB",
        ),
    ],
)
def test_output_selection_and_format(default, outputs, requested, forms, one, infer):
    document = {"inputs": [tensor(data=[1, 2, 3, 4])]}
    if default is not None:
        document["parameters"] = {"binary_data_output": default}
    if outputs is not None:
        document["outputs"] = outputs
    plan = infer(document, one)
    assert plan.request.requested_outputs == requested
    assert "".join("B" if plan.output_format.is_binary(name) else "J" for name in "YZ") == forms
    if len(set(forms)) == 1:
        assert plan.output_format is (ALL_BINARY if forms == "BB" else ALL_JSON)


def test_request_parameters(one, infer):
    parameters = {
        "sequence_id": 2**64 - 1,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout": 1500,
        "text": "é",
        "whole": -(2**63),
        "yes": True,
        "real": 1.5,
        "binary_data_output": True,
    }
    request = infer({"inputs": [tensor(data=[1, 2, 3, 4])], "parameters": parameters}, one).request
    assert request.correlation_id == 2**64 - 1
    assert request.flags == RequestFlags.SEQUENCE_START | RequestFlags.SEQUENCE_END
    assert (request.priority, request.timeout_us) == (3, 1500)
    assert request.parameters == {"text": "é", "whole": -(2**63), "yes": True, "real": 1.5}
    assert request.parameters["yes"] is True


def test_sequence_id_may_be_a_string(one, infer):
    document = {"inputs": [tensor(data=[1, 2, 3, 4])], "parameters": {"sequence_id": "s", "sequence_start": False}}
    request = infer(document, one).request
    assert (request.correlation_id, request.flags, request.parameters) == ("s", 0, None)


@pytest.mark.parametrize("literal", ["NaN", "Inf", "Infinity", "-Infinity", "-Inf"])
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_literals_that_json_does_not_have(literal, datatype, make_signature, infer):
    plan = infer(with_data(datatype, 2, f"[1.5,{literal}]"), make_signature(("X", datatype, [2])))
    data = plan.request.inputs[0].data
    if datatype == "BF16":
        values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view(FP32)
    else:
        values = np.frombuffer(data, {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}[datatype])
    assert values[0] == 1.5
    expected = {"N": nan, "I": inf, "-": -inf}[literal[0]]
    assert isnan(values[1]) if isnan(expected) else values[1] == expected


def test_nan_parameter(one, infer):
    text = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"k":NaN}}'
    assert isnan(infer(text, one).request.parameters["k"])


@pytest.mark.parametrize("depth", [1, 2, 3, 8, 9, 99])
@pytest.mark.parametrize(("datatype", "value", "data"), [("FP32", "1.5", b"\0\0\xc0?"), ("BYTES", '"a"', b"\1\0\0\0a")])
def test_nesting_is_flattened(depth, datatype, value, data, make_signature, infer):
    text = with_data(datatype, 2, "[" * depth + f"{value},{value}" + "]" * depth)
    plan = infer(text, make_signature(("X", datatype, [2])))
    assert plan.request.inputs[0].data == data * 2


@pytest.mark.parametrize(
    "data", ["[[1,2],[3,4]]", " [ [1 , 2]\n, [3,4] ] ", "[[1],[[2]],[3,4]]", "[[[1,2],[3]],[[4]]]", "[[],[1,2,3,4]]"]
)
def test_nesting_need_not_agree_with_the_shape(data, one, infer):
    assert infer(with_data("FP32", 4, data), one).request.inputs[0].data == struct.pack("<4f", 1, 2, 3, 4)


def test_large_flat_and_nested_data_with_nan(make_signature, infer):
    signature = make_signature(("X", "FP64", [-1, -1]))
    values = np.arange(20_000, dtype="<f8").reshape(100, 200)
    values[3, 4] = nan
    document = {"inputs": [tensor(datatype="FP64", shape=[100, 200], data=values.tolist())]}
    assert infer(document, signature).request.inputs[0].data == values.tobytes()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(form, one):
    text = form(json.dumps({"inputs": [tensor(data=[1, 2, 3, nan])]}).encode())
    plan = parse_infer(text, header_length=None, signature=one, model_version="", limits=BodyLimits())
    assert len(plan.request.inputs[0].data) == 16


def test_shapes_of_many_dimensions_cost_only_their_text(one, refusal):
    _, message = refusal(parse, {"inputs": [tensor(shape=[2**62] * 50_000, data=[1])]}, one)
    assert message == "invalid shape for input 'X': it has 50000 dimensions, at most 64 can be"
    _, message = refusal(parse, {"inputs": [tensor(shape=[2**62] * 64, data=[1])]}, one)
    assert message.startswith("invalid shape for input 'X': shape [4611686018427387904,")
    ones = parse({"inputs": [tensor(shape=[1] * 60, data=[1])]}, one)
    assert ones.request.inputs[0].shape == [1] * 60
