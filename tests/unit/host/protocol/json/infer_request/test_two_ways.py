"""The fast and the careful way of reading a request agree, and no bytes make either raise anything but its error."""

import contextlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.protocol.json.infer_document import DocumentReader
from pybackend.protocol.json.infer_request import parse_infer, parse_raw
from pybackend.protocol.limits import BodyLimits
from pybackend_wire.dtypes import DATATYPES
from tests.support.fuzzing import examples

GOOD = {
    "id": "42",
    "parameters": {"binary_data_output": True, "timeout": 5, "custom": "x"},
    "inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1.5, 2, 3, 4]},
        {"name": "INPUT1", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}},
    ],
    "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False}}, {"name": "OUTPUT1"}],
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["X", "INPUT0", "INPUT1", "OUTPUT0", *DATATYPES]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)  # fmt: skip
members = {
    "id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data", "binary_data_size", "binary_data",
    "classification", "shared_memory_region", "sequence_id", "sequence_start", "priority", "timeout", "triton_x", "k",
}  # fmt: skip


def outcome(call, *args, **kwargs) -> tuple[Any, ...]:
    """What a reader made of a document, in a form that compares; anything but InferenceError passes through."""
    try:
        plan = call(*args, **kwargs)
    except InferenceError as error:
        return (error.code, error.message)
    request = plan.request
    return (
        [(t.name, t.datatype, t.shape, t.data) for t in request.inputs],
        [(t.name, size) for t, size in plan.binary_inputs],
        plan.binary_bytes,
        [plan.output_format.is_binary(name) for name in ("OUTPUT0", "OUTPUT1", "X")],
        (request.id, request.requested_outputs, repr(request.parameters), request.correlation_id, request.flags),
        (request.priority, request.timeout_us),
    )


def both_ways(text: bytes, signature, *, has_length: bool, available: int | None) -> None:
    limits = BodyLimits(1000)
    careful = DocumentReader(signature, "", limits, has_length, available)
    fast = outcome(
        parse_infer,
        text,
        header_length=len(text) if has_length else None,
        signature=signature,
        model_version="",
        limits=limits,
        available_bytes=available,
    )
    if len(text) <= limits.max_input_size_bytes:
        assert fast == outcome(careful.read, text)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The good document with a few members replaced, added, removed or repeated anywhere."""
    document = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(0, 3))):
        node = document
        while True:
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = draw(st.sampled_from(keys)) if keys else None
            child = node[key] if key is not None else None
            if not isinstance(child, dict | list) or draw(st.integers(0, 3)) == 0:
                break
            node = child
        action = draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
        if isinstance(node, dict) and action == "add":
            node[draw(st.sampled_from(sorted(members)))] = draw(values)
        elif key is None or (isinstance(node, list) and action == "add"):
            if isinstance(node, list):
                node.append(draw(values))
        elif action == "remove":
            del node[key]
        elif action == "repeat" and isinstance(node, list):
            node.append(node[key])
        else:
            node[key] = draw(values)
    return document


@given(mutated(), st.booleans(), st.sampled_from([None, 0, 15, 16, 17, 32]))
@examples(600)
def test_mutated_documents(add_sub, document, has_length, available):
    text = json.dumps(document).encode()
    both_ways(text, add_sub, has_length=has_length, available=available)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_texts(add_sub, infer, seed):
    chance = random.Random(seed)
    good = json.dumps(GOOD).encode()
    pieces = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"NaN",
        b"-",
        b"1e999",
        b"\\ud800",
        b"\xff",
        b"\0",
        b"null",
        b"9",
    ]
    for _ in range(1500):
        text = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(text))
            text[at : at + chance.choice([0, 1, 1, 5, 60])] = chance.choice([b"", *pieces])
        with contextlib.suppress(InferenceError):
            infer(bytes(text), add_sub, bytes(16), size_known=chance.random() < 0.5)


@given(st.binary(max_size=60))
@examples(300)
def test_any_bytes(add_sub, text):
    outcome(
        parse_infer,
        text,
        header_length=None,
        signature=add_sub,
        model_version="",
        limits=BodyLimits(),
        available_bytes=0,
    )


@pytest.mark.parametrize("datatype", DATATYPES)
@given(data=values, shape=st.lists(st.integers(0, 3), max_size=3))
@examples(60)
def test_any_data_for_any_datatype(make_signature, datatype, data, shape):
    document = {"inputs": [{"name": "X", "datatype": datatype, "shape": shape, "data": data}]}
    text = json.dumps(document).encode()
    both_ways(text, make_signature(("X", datatype, [-1])), has_length=False, available=None)


@given(st.binary(max_size=40), st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-1, 3), max_size=3))
@examples(200)
def test_any_raw_body(make_signature, body, datatype, dims):
    signature = make_signature(("X", datatype, dims))
    outcome(parse_raw, body, signature, model_version="", limits=BodyLimits())
