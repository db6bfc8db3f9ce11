"""Bodies of infer requests that no client would send: whole and in pieces they mean the same, and nothing but an answer
comes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.frontend.http.infer_body import StreamedBody, decode_body
from pybackend.inference.region import no_region
from pybackend.inference.validation import Checked, validate_bytes_tensors, validate_header
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache
from tests.support.fuzzing import examples

LIMITS = BodyLimits(2000)


class Admission:
    """An admission to a model that keeps tensors in ordinary memory."""

    is_current = True
    model_version = ""
    find_region = staticmethod(no_region)

    def __init__(self, signature):
        self.signature = signature
        self.model_name = signature.model_name

    def allocate(self, *_, **__):
        return None

    def renew(self):
        pass

    def release(self):
        pass


def sized(name, datatype, shape, nbytes):
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": nbytes}}


def as_json(name, datatype, shape, data):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


NUMBERS = st.sampled_from([-1, 0, 1, 3, 4, 15, 16, 17, 2**31, 2**63, 1.0, "16", None, True, [16]])
SHAPES = st.sampled_from([[4], [0], [], [2, 2], [2**31, 2**33], [-4], [4.0], [True], "4", None, [4] * 100])
DATATYPES = st.sampled_from(["FP32", "INT64", "BYTES", "BF16", "FP33", "", 7, None])
NAMES = st.sampled_from(["INPUT0", "INPUT1", "", "ü\ud800", None])
INPUTS = (
    st.builds(sized, NAMES, DATATYPES, SHAPES, NUMBERS)
    | st.builds(as_json, NAMES, DATATYPES, SHAPES, st.lists(NUMBERS, max_size=5) | NUMBERS)
    | st.just(sized("INPUT0", "FP32", [4], 16))
    | st.just(sized("INPUT1", "FP32", [4], 16))
    | st.just(as_json("INPUT1", "FP32", [4], [1, 2, 3, 4]))
)
DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(INPUTS, max_size=3)},
    optional={
        "id": st.sampled_from(["", "a", 7, None]),
        "parameters": st.dictionaries(st.sampled_from(["binary_data_output", "priority", "x", "triton_x"]), NUMBERS),
        "outputs": st.lists(
            st.builds(lambda name, n: {"name": name, "parameters": {"classification": n}}, NAMES, NUMBERS)
        ),
    },
)


@st.composite
def bodies(draw):
    """A body, and the value of the header that says how much of it is JSON."""
    text = json.dumps(draw(DOCUMENTS)).encode()
    blob = draw(st.sampled_from([b"", bytes(16), bytes(32), bytes(31), b"\xff" * 40]))
    body = bytearray(text + blob)
    for _ in range(draw(st.integers(0, 2)) if draw(st.booleans()) else 0):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    exact = str(len(text)).encode()
    odd = st.sampled_from(
        [None, b"", b"0", b"-1", b"+5", b" 7", b"1e2", b"0x10", b"9" * 30, b"2147483648", b"\xb2", b"1_0"]
    )
    near = st.integers(-3, 3).map(lambda by: str(len(text) + by).encode())
    return bytes(body), draw(st.just(exact) | near | odd)


def outcome(read, signature):
    """A request in a form that compares, or its refusal; anything but InferenceError passes through."""
    try:
        plan = read()
        if plan.checked is Checked.NOTHING:
            validate_header(plan.request, signature, plan.binary_inputs)
        validate_bytes_tensors(plan.request, signature)
    except InferenceError as error:
        return error.code
    request = plan.request
    tensors = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs]
    return tensors, request.id, request.priority, repr(request.parameters), request.requested_outputs


def in_pieces(body, header_length, cuts, signature, *, length_known):
    streamed = StreamedBody(Admission(signature), header_length, len(body) if length_known else None, LIMITS)
    for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        streamed.feed(body[begin:end])
    streamed.complete()
    while streamed.step():
        pass
    return streamed.finish()


@given(bodies(), st.lists(st.integers(0, 400), max_size=3), st.booleans())
@examples(100)
def test_garbage_is_refused_or_read_in_whichever_pieces_it_comes(add_sub, sent, cuts, length_known):
    body, header_length = sent
    cuts = sorted(min(cut, len(body)) for cut in cuts)
    plans = PlanCache()
    whole = outcome(lambda: decode_body(body, header_length, Admission(add_sub), LIMITS, plans), add_sub)
    again = outcome(lambda: decode_body(body, header_length, Admission(add_sub), LIMITS, plans), add_sub)
    pieces = outcome(lambda: in_pieces(body, header_length, cuts, add_sub, length_known=length_known), add_sub)
    assert again == whole, "a header that was seen before means the same"
    assert isinstance(pieces, tuple) == isinstance(whole, tuple), "the first mistake that is met may differ"
    if isinstance(whole, tuple):
        assert pieces == whole


def test_requests_that_differ_only_in_their_id_are_parsed_once(add_sub):
    document = {"inputs": [sized(name, "FP32", [4], 16) for name in ("INPUT0", "INPUT1")]}
    plans, admission = PlanCache(), Admission(add_sub)
    for index, name in enumerate(["first", "second", "third"]):
        header = json.dumps({"id": name, **document}).encode()
        numbers = bytes([index] * 32)
        plan = decode_body(header + numbers, b"%d" % len(header), admission, LIMITS, plans)
        assert plan.request.id == name
        assert [bytes(tensor.data) for tensor in plan.request.inputs] == [numbers[:16], numbers[16:]]
    header = json.dumps({"id": "fourth", **document}).encode()
    assert plans.whole(header + bytes(32), 0, len(header)) is not None
