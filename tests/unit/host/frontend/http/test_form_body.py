"""Forms that no client would send: whole and in pieces they are the same parts, and nothing but a refusal comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.frontend.http.body import RouteLimit
from pybackend.frontend.http.form_body import SLICE_BYTES, FormBody
from pybackend.protocol.generate import FormPart, parse_form
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import at_once
from tests.support.fuzzing import examples

NAMES = ["TEXTS", "X", "FLAG", "id", "parameters", "a", "", "ü"]
LIMIT = RouteLimit(100_000)


@pytest.fixture(scope="module")
def signature(make_signature):
    return make_signature(
        ("TEXTS", "BYTES", [-1]), ("X", "FP32", [-1], True), ("FLAG", "BOOL", [1], True), outputs=(("Y", "FP32", [1]),)
    )


def part(name, more, headers, data):
    return b'Content-Disposition: form-data; name="%b"%b\r\n%b\r\n%b' % (name.encode(), more, headers, data)


@st.composite
def forms(draw):
    """A boundary and a form, which may be broken."""
    boundary = draw(st.sampled_from([b"b", b"-", b"----x", b"b" * 70]))
    data = st.binary(max_size=40) | st.sampled_from(
        [
            b"1",
            b"[1, 2",
            b"true",
            b"{}",
            b'{"X": [1]}',
            b"[" * 3000,
            b"\r\n--" + boundary,
            b"--" + boundary + b"--",
            b"\r\n-",
        ]
    )
    more = st.sampled_from(
        [
            b"",
            b'; filename="x"',
            b'; filename=""',
            b"; filename",
            b'; name="b"',
            b"; name*=utf-8''c",
            b";;=;",
            b'; a="',
            b"\\",
        ]
    )
    headers = st.sampled_from([b"", b"Content-Type: text/plain\r\n", b"A: \r\n", b": x\r\n", b"A:b\nC:d\r\n", b"A\r\n"])
    parts = draw(st.lists(st.builds(part, st.sampled_from(NAMES), more, headers, data), max_size=4))
    body = bytearray(b"".join(b"--%b\r\n%b\r\n" % (boundary, each) for each in parts) + b"--%b--\r\n" % boundary)
    for _ in range(draw(st.integers(0, 2)) if draw(st.booleans()) else 0):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return boundary, bytes(body)


def parts_in(boundary, body, cuts, limit=LIMIT):
    """The parts; None if the form is refused."""
    try:
        form = FormBody("multipart/form-data; boundary=" + boundary.decode(), limit)
        for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            form.feed(body[begin:end])
            while form.step():
                pass
        assert form.private_bytes == len(body)
        form.complete()
        return form.finish()
    except InferenceError:
        return None


@given(forms(), st.lists(st.integers(0, 400), max_size=3))
@examples(200)
def test_garbage_is_refused_or_means_the_same_in_whichever_pieces_it_comes(signature, sent, cuts):
    boundary, body = sent
    cuts = sorted(min(cut, len(body)) for cut in cuts)
    parts = parts_in(boundary, body, [])
    assert parts_in(boundary, body, cuts) == parts
    assert parts_in(boundary, body, list(range(1, len(body)))) == parts
    if parts is not None:
        try:
            request = at_once(parse_form(parts, signature, "1", BodyLimits()))
        except InferenceError:
            return
        assert {tensor.name for tensor in request.inputs} <= {"TEXTS", "X", "FLAG"}


def test_the_bound_holds_for_all_bytes_also_those_behind_the_end():
    part_bytes = b'--b\r\nContent-Disposition: form-data; name="X"\r\n\r\n1\r\n--b--'
    assert parts_in(b"b", part_bytes + bytes(1000), []) == [FormPart("X", b"1")]
    assert parts_in(b"b", part_bytes + bytes(1000), [], RouteLimit(1000)) is None


HEAD = b'--b\r\nContent-Disposition: form-data; name="X"\r\n\r\n'


def test_a_large_form_is_parsed_in_slices():
    data = b"\r\n--bX" * 1000 + b"\r\n--" * 100_000
    form = FormBody("multipart/form-data; boundary=b", RouteLimit(1 << 20))
    form.feed(HEAD + data + b"\r\n--b--")
    count = 1
    while form.step():
        count += 1
    assert count == form.private_bytes // SLICE_BYTES + 2, "and one that finds no more"
    assert form.finish() == [FormPart("X", data)]
    form.release()
    assert form.private_bytes == 0


@pytest.mark.parametrize("filler", [b"\r\n--bX", b"\r\n--b-", b"\r\n--b\r\n\r\n"])
def test_no_more_ends_of_parts_are_looked_at_than_parts_can_be(filler):
    assert parts_in(b"b", HEAD + filler * 2000 + b"\r\n--b--", []) is None
