"""gRPC requests: what the plan holds, what is recognised, and what each mistake is answered with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pybackend.errors import ErrorCode
from pybackend.inference.request import RequestFlags
from pybackend.inference.validation import Checked
from pybackend.protocol.classification import ClassRequest
from pybackend.protocol.grpc.message import split_message
from pybackend.protocol.grpc.request import decode_message, sequence_of
from pybackend.protocol.infer_plan import ALL_BINARY
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES
from tests.support.fuzzing import examples

LIMITS = BodyLimits()
INVALID, INTERNAL, NOT_FOUND = ErrorCode.INVALID_ARG, ErrorCode.INTERNAL, ErrorCode.NOT_FOUND


def tensor(name="X", datatype="FP32", shape=(2,), **fields):
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def message(*inputs, raw=(), **fields):
    return service_pb2.ModelInferRequest(
        model_name="m", inputs=inputs, raw_input_contents=raw, **fields
    ).SerializeToString()


def decode(data, signature, plans=None, limits=LIMITS):
    plans = PlanCache() if plans is None else plans
    return decode_message(split_message(data, limits), signature, "3", limits, plans)


@pytest.fixture(scope="module")
def one(make_signature):
    return make_signature(
        ("X", "FP32", [-1]), outputs=(("Y", "FP32", [-1], False, None, (b"a", b"b")), ("Z", "FP32", [-1]))
    )


EIGHT = b"12345678"


def test_raw_tensors(one):
    plan = decode(message(tensor(), raw=[EIGHT], id="7", outputs=[{"name": "Z"}, {"name": "Y"}]), one)
    request = plan.request
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "7")
    assert request.requested_outputs == ("Z", "Y")
    (found,) = request.inputs
    assert (found.name, found.datatype, found.shape, found.data) == ("X", "FP32", [2], EIGHT)
    assert (plan.output_format, plan.checked, plan.wants_empty_final) == (ALL_BINARY, Checked.ALL, False)


def test_surplus_tensors_are_ignored(one):
    assert decode(message(tensor(), raw=[EIGHT, b"more"]), one).request.inputs[0].data == EIGHT


def test_a_request_that_differs_in_id_parameters_and_tensors_is_recognised(one):
    plans = PlanCache()
    first = decode(message(tensor(), raw=[EIGHT]), one, plans)
    # The plan is found by the head alone: a signature that would refuse the request is not consulted.
    unfit = type(one)("m", 0, {}, {})
    parameters = {"sequence_id": {"int64_param": 5}, "triton_enable_empty_final_response": {"bool_param": True}}
    again = decode(message(tensor(), raw=[b"abcdefgh"], id="8", parameters=parameters), unfit, plans)
    assert (again.request.id, again.request.correlation_id, again.request.inputs[0].data) == ("8", 5, b"abcdefgh")
    assert again.wants_empty_final
    assert again.checked is Checked.ALL
    assert (first.request.id, first.request.correlation_id, first.request.inputs[0].data) == ("", 0, EIGHT)
    plain = decode(message(tensor(), raw=[EIGHT]), unfit, plans)
    assert (plain.request.id, plain.request.correlation_id, plain.wants_empty_final) == ("", 0, False)


def test_a_recognised_request_whose_tensors_have_another_size_is_read_again(one, refusal):
    plans = PlanCache()
    decode(message(tensor(), raw=[EIGHT]), one, plans)
    assert refusal(decode, message(tensor(), raw=[b"1234"], id="9"), one, plans) == (
        INVALID,
        "[request id: 9] input byte size mismatch for input 'X' for model 'm'. Expected 8, got 4",
    )
    assert refusal(decode, message(tensor()), one, plans)[1].startswith("unable to find data for input tensor 'X'")


def test_texts_of_any_length_are_recognised(make_signature):
    signature, plans = make_signature(("X", "BYTES", [1])), PlanCache()
    for text in (b"a", b"much longer"):
        (found,) = decode(
            message(tensor("X", "BYTES", [1]), raw=[encode_elements([text])]), signature, plans
        ).request.inputs
        assert found.data == encode_elements([text])
        signature = type(signature)("m", 0, {}, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"contents": {"fp32_contents": [1, 2]}},
        {"outputs": [{"name": "Y", "parameters": {"classification": {"int64_param": 1}}}]},
    ],
    ids=["contents", "classes"],
)
def test_what_cannot_be_a_template_is_not_kept(one, refusal, fields):
    plans, outputs = PlanCache(), fields.pop("outputs", ())
    data = message(tensor(**fields), raw=[] if fields else [EIGHT], outputs=outputs)
    decode(data, one, plans)
    assert refusal(decode, data, type(one)("m", 0, {}, {}), plans)[0] is INVALID


# --- Tensors of all datatypes, raw and as contents --------------------------------------------------------------------

LISTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def values_of(datatype):
    if datatype == "BYTES":
        return st.lists(st.binary(max_size=8), max_size=4)
    if datatype == "BOOL":
        return st.lists(st.booleans(), max_size=4)
    if datatype.startswith("FP"):
        return st.lists(st.floats(width=32), max_size=4)
    limits = np.iinfo(DATATYPES[datatype].numpy)
    return st.lists(st.integers(int(limits.min), int(limits.max)), max_size=4)


TENSORS = st.sampled_from(sorted(LISTS)).flatmap(lambda name: st.tuples(st.just(name), values_of(name)))


@given(
    tensors=st.lists(TENSORS, min_size=1, max_size=4),
    raw=st.booleans(),
    request_id=st.text(st.characters(exclude_categories=["Cs"])),
)
@examples(150)
def test_any_request_of_the_client_is_read(make_signature, tensors, raw, request_id):
    names = [f"T{number}" for number in range(len(tensors))]
    blobs = [
        encode_elements(values) if datatype == "BYTES" else np.array(values, DATATYPES[datatype].numpy).tobytes()
        for datatype, values in tensors
    ]
    signature = make_signature(*((name, datatype, [-1]) for name, (datatype, _) in zip(names, tensors, strict=True)))
    inputs = [
        tensor(name, datatype, [len(values)], **({} if raw else {"contents": {LISTS[datatype]: values}}))
        for name, (datatype, values) in zip(names, tensors, strict=True)
    ]
    data = message(*inputs, raw=blobs if raw else [], id=request_id)
    plans = PlanCache()
    for _ in range(2):  # the second time from the cache, if it is raw
        request = decode(data, signature, plans).request
        found = [(each.name, each.datatype, list(each.shape), each.data) for each in request.inputs]
        assert found == [
            (name, datatype, [len(values)], blob)
            for name, (datatype, values), blob in zip(names, tensors, blobs, strict=True)
        ]
        assert request.id == request_id


def test_integers_that_are_too_large_lose_their_upper_bits(make_signature):
    signature = make_signature(("X", "INT8", [3]), ("U", "UINT16", [1]))
    data = message(
        tensor("X", "INT8", [3], contents={"int_contents": [128, -129, 256]}),
        tensor("U", "UINT16", [1], contents={"uint_contents": [65537]}),
    )
    first, second = decode(data, signature).request.inputs
    assert np.frombuffer(first.data, np.int8).tolist() == [-128, 127, 0]
    assert np.frombuffer(second.data, np.uint16).tolist() == [1]


def test_contents_are_bounded(one, make_signature, refusal):
    limits = BodyLimits(max_input_size_bytes=100)
    for datatype, shape, contents in (
        ("INT64", [13], {"int64_contents": [0] * 13}),
        ("BYTES", [21], {"bytes_contents": [b"a"] * 21}),
    ):
        signature = make_signature(("X", datatype, [-1]))
        data = message(tensor("X", datatype, shape, contents=contents))
        code, text = refusal(decode, data, signature, limits=limits)
        assert code is INVALID
        assert "that exceeds the maximum allowed value of 100 bytes" in text


# --- Parameters -------------------------------------------------------------------------------------------------------


def test_parameters(one):
    parameters = {
        "sequence_id": {"string_param": "s"},
        "sequence_start": {"bool_param": True},
        "sequence_end": {"bool_param": True},
        "priority": {"uint64_param": 2},
        "timeout": {"int64_param": 30},
        "whole": {"int64_param": -1},
        "real": {"double_param": 0.5},
        "text": {"string_param": "é"},
        "truth": {"bool_param": False},
    }
    request = decode(message(tensor(), raw=[EIGHT], parameters=parameters), one).request
    assert (request.correlation_id, request.priority, request.timeout_us) == ("s", 2, 30)
    assert request.flags == RequestFlags.SEQUENCE_START | RequestFlags.SEQUENCE_END
    assert request.parameters == {"whole": -1, "real": 0.5, "text": "é", "truth": False}


def test_a_negative_sequence_id_is_a_large_number(one):
    parameters = {"sequence_id": {"int64_param": -1}}
    assert decode(message(tensor(), raw=[EIGHT], parameters=parameters), one).request.correlation_id == 2**64 - 1


ENTRIES = st.one_of(
    st.tuples(st.sampled_from(["sequence_start", "sequence_end"]), st.just("bool_param"), st.booleans()),
    st.tuples(st.just("sequence_id"), st.just("int64_param"), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)),
    st.tuples(st.just("sequence_id"), st.just("string_param"), st.text(max_size=25)),
    st.tuples(st.sampled_from(["sequence_id", "x"]), st.sampled_from(["int64_param", "uint64_param"]), st.just(1)),
)


@given(entries=st.lists(ENTRIES, max_size=5), data=st.data(), is_changed=st.booleans())
@examples(200)
def test_a_sequence_is_read_from_its_parameters_as_protobuf_reads_it(one, entries, data, is_changed):
    text = bytearray()
    for name, kind, value in entries:
        text += service_pb2.ModelInferRequest(parameters={name: {kind: value}}).SerializeToString()
    if text and is_changed:
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    found = sequence_of(bytes(text))
    names = [name for name, *_ in entries]
    is_usual = len(set(names)) == len(names) and "sequence_id" in names and "x" not in names
    if (
        is_usual
        and not is_changed
        and not any(kind == "uint64_param" or value < 0 for _, kind, value in entries if kind != "string_param")
    ):
        assert found is not None
    if found is not None:
        request = decode(message() + bytes(text) + message(tensor(), raw=[EIGHT])[3:], one).request
        assert found == (request.correlation_id, request.flags)
        assert not request.parameters


WRONG_PARAMETERS = [
    ("sequence_id", {"uint64_param": 1}, "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    ("sequence_start", {"int64_param": 1}, "invalid value type for 'sequence_start' parameter, expected bool_param."),
    ("sequence_end", {"string_param": "x"}, "invalid value type for 'sequence_end' parameter, expected bool_param."),
    ("priority", {"string_param": "1"}, "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
    ("priority", {"int64_param": -1}, "invalid value for 'priority', expected value >= 0."),
    ("timeout", {"uint64_param": 1}, "invalid value type for 'timeout' parameter, expected int64_param."),
    ("timeout", {"int64_param": -1}, "invalid value for 'timeout', expected value >= 0."),
    ("k", {"uint64_param": 1}, "invalid value type for 'k' parameter, expected int64_param, bool_param, or string_param."),
    ("k", {}, "invalid value type for 'k' parameter, expected int64_param, bool_param, or string_param."),
    (
        "triton_x",
        {"bool_param": True},
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response",
    ),
    (
        "triton_enable_empty_final_response",
        {"int64_param": 1},
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text"), WRONG_PARAMETERS)
@pytest.mark.parametrize("is_known", [False, True], ids=["new head", "known head"])
def test_a_wrong_parameter(one, refusal, is_known, name, value, text):
    plans = PlanCache()
    if is_known:
        decode(message(tensor(), raw=[EIGHT]), one, plans)
    data = message(tensor(), raw=[EIGHT], parameters={name: value})
    assert refusal(decode, data, one, plans) == (INVALID, text)


# --- Mistakes ---------------------------------------------------------------------------------------------------------

REGION = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 8}}
CONTENTS = {"fp32_contents": [1, 2]}
ABOUT = "for input tensor 'X' for model 'm'"

WRONG_INPUTS = [
    ([tensor(contents=CONTENTS)], [EIGHT], "contents field must not be specified when using raw_input_contents for 'X' for model 'm'"),
    ([tensor()], [], f"unable to find data {ABOUT} in request."),
    ([tensor(contents={"bool_contents": [True]})], [], f"unexpected explicit tensor data {ABOUT} of type 'BOOL', expected datatype 'FP32'"),
    ([tensor(contents={"int_contents": [1]})], [], f"unexpected explicit tensor data {ABOUT} of type 'INT32', expected datatype 'FP32'"),
    ([tensor(datatype="FP16", contents=CONTENTS)], [], f"unexpected explicit tensor data {ABOUT} of type 'FP32', expected datatype 'FP16'"),
    ([tensor(datatype="BYTES", contents=CONTENTS)], [], f"unexpected explicit tensor data {ABOUT} of type 'FP32', expected datatype 'BYTES'"),
    ([tensor(contents=CONTENTS | {"fp64_contents": [1]})], [], f"unexpected explicit tensor data {ABOUT}, binary data was already supplied."),
    ([tensor(contents=CONTENTS, parameters=REGION)], [], f"unexpected 'content' provided when using shared memory {ABOUT}"),
    ([tensor(contents={"fp32_contents": [1]})], [], "[request id: <id_unknown>] input byte size mismatch for input 'X' for model 'm'. Expected 8, got 4"),
    ([tensor(contents={})], [], "[request id: <id_unknown>] input byte size mismatch for input 'X' for model 'm'. Expected 8, got 0"),
    ([tensor(), tensor()], [EIGHT, EIGHT], "[request id: <id_unknown>] input 'X' already exists in request"),
    ([tensor(datatype="FLOAT")], [EIGHT], "invalid datatype for input X: did you mean FP32? it must be one of "),
    ([tensor(shape=[1] * 65)], [EIGHT], "invalid shape for input 'X': it has 65 dimensions, at most 64 can be"),
    ([tensor(shape=[-2])], [EIGHT], "[request id: <id_unknown>] All input dimensions should be specified for input 'X' for model 'm', got [-2]"),
    ([tensor("A")], [EIGHT], "unexpected inference input 'A' for model 'm'"),
    ([tensor(parameters={"shared_memory_offset": {"int64_param": 1}})], [EIGHT], "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'X'"),
    ([tensor(parameters={"shared_memory_byte_size": {"int64_param": 1}})], [EIGHT], "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'X'"),
    ([tensor(parameters={"shared_memory_region": {"string_param": "r"}})], [EIGHT], "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'X'"),
    ([tensor(parameters={"shared_memory_region": {"int64_param": 1}})], [EIGHT], "invalid value type for 'shared_memory_region' parameter for tensor 'X', expected string_param."),
    ([tensor(parameters=REGION | {"shared_memory_byte_size": {"string_param": "1"}})], [EIGHT], "invalid value type for 'shared_memory_byte_size' parameter for tensor 'X', expected int64_param."),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "raw", "text"), WRONG_INPUTS, ids=[text[:70] for *_, text in WRONG_INPUTS])
def test_a_wrong_input(one, refusal, inputs, raw, text):
    code, found = refusal(decode, message(*inputs, raw=raw), one)
    assert code is INVALID
    assert found.startswith(text)


def test_too_few_raw_tensors(make_signature, refusal):
    signature = make_signature(("X", "FP32", [2]), ("B", "FP32", [2]))
    assert refusal(decode, message(tensor(), tensor("B"), raw=[EIGHT]), signature) == (
        INVALID,
        "unable to find data for input tensor 'B' for model 'm' in request.",
    )


def test_regions_are_unknown(one, refusal):
    text = (NOT_FOUND, "Unable to find shared memory region: 'r'")
    assert refusal(decode, message(tensor(parameters=REGION)), one) == text
    outputs = [{"name": "Y", "parameters": REGION}]
    assert refusal(decode, message(tensor(), raw=[EIGHT], outputs=outputs), one) == text


WRONG_OUTPUTS = [
    ([{"name": "Y"}, {"name": "Y"}], "[request id: <id_unknown>] output 'Y' already exists in request"),
    ([{"name": "A"}], "unexpected inference output 'A' for model 'm'. Its outputs are ['Y','Z']"),
    ([{"name": "A", "parameters": {"classification": {"int64_param": 1}}}], "unexpected inference output 'A' for model 'm'. Its outputs are ['Y','Z']"),
    ([{"name": "Y", "parameters": {"classification": {"uint64_param": 1}}}], "invalid value type for 'classification' parameter, expected int64_param"),
    ([{"name": "Y", "parameters": {"classification": {"int64_param": 0}}}], "invalid value for 'classification' parameter, expected >= 0"),
    ([{"name": "Y", "parameters": {"classification": {"int64_param": 1}, **REGION}}], "Output can't set both 'shared_memory_region' and 'classification'"),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "text"), WRONG_OUTPUTS)
def test_a_wrong_output(one, refusal, outputs, text):
    assert refusal(decode, message(tensor(), raw=[EIGHT], outputs=outputs), one) == (INVALID, text)


def test_classes(one):
    outputs = [{"name": "Y", "parameters": {"classification": {"int64_param": 2}}}, {"name": "Z"}]
    plan = decode(message(tensor(), raw=[EIGHT], outputs=outputs), one)
    assert plan.request.requested_outputs == ("Y", "Z")
    assert plan.output_format.classes == {"Y": ClassRequest(2, batches=False, labels=(b"a", b"b"))}


@pytest.mark.parametrize(
    "data",
    [b"\n\x05m", b"*\x02\x0a\x05", b'\n\x01m"\x02\x0a\x05', b"\n\x01\xff", b"*\x03\x0a\x01\xff", b"\xff", b"\x0b"],
    ids=["cut off", "in an input", "in a parameter", "name", "name of an input", "number", "group"],
)
def test_bytes_that_are_no_message(one, refusal, data):
    code, text = refusal(decode, data, one)
    assert code is INTERNAL
    assert text.startswith("the request cannot be read as an inference.ModelInferRequest message: ")
