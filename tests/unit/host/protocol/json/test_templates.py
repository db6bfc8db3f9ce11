"""Requests that are JSON only and differ in nothing but numbers: each means what the parser makes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.errors import InferenceError
from pybackend.inference.validation import validate_header
from pybackend.protocol.json import templates as templates_module
from pybackend.protocol.json.infer_request import parse_infer
from pybackend.protocol.json.outline import outline_in_steps
from pybackend.protocol.json.templates import JsonTemplates
from pybackend.protocol.limits import BodyLimits
from tests.support.fuzzing import examples

LIMITS = BodyLimits(1 << 20)


def parsed(document, signature):
    return parse_infer(
        document, header_length=None, signature=signature, model_version="3", limits=LIMITS, available_bytes=0
    )


def learned(signature, *documents):
    templates = JsonTemplates()
    for document in documents:
        for _ in range(2):
            if templates.filled(document) is None:
                templates.learn(document, parsed(document, signature), signature, LIMITS)
    return templates


def compared(plan):
    request = plan.request
    tensors = [(each.name, each.datatype, list(each.shape), each.data) for each in request.inputs]
    form = plan.output_format
    options = (request.requested_outputs, request.batch_size, request.has_options, form.binary_default, form.overrides)
    return request.model_name, request.model_version, request.id, tensors, options


def check(templates, document, signature):
    """True if a template fits; then it means what the parser and the checks make of it."""
    plan = templates.filled(document)
    if plan is None:
        return False
    expected = parsed(document, signature)
    validate_header(expected.request, signature)
    assert compared(plan) == compared(expected)
    return True


def add_sub_document(left=(1, 2.5, -3, 4e3), right=(0.1, 0, 7, 8), *, compact=True, **extra):
    inputs = [
        {"name": name, "shape": [4], "datatype": "FP32", "data": list(data)}
        for name, data in (("INPUT0", left), ("INPUT1", right))
    ]
    return json.dumps({**extra, "inputs": inputs}, separators=(",", ":") if compact else None).encode()


def test_documents_that_differ_in_their_numbers_are_parsed_once(add_sub):
    for compact in (True, False):
        templates = learned(add_sub, add_sub_document(compact=compact))
        assert check(templates, add_sub_document(compact=compact), add_sub)
        assert check(templates, add_sub_document((1e-7, 12345678, 0.5, -0.0), compact=compact), add_sub)
        assert check(templates, add_sub_document(compact=compact).replace(b"[1,", b"[ \n 1 ,"), add_sub)
        assert not check(templates, add_sub_document(compact=not compact), add_sub)


def test_a_document_that_came_once_is_not_kept(add_sub):
    templates, other = JsonTemplates(), add_sub_document(compact=False)
    for document in (add_sub_document(), other):
        templates.learn(document, parsed(document, add_sub), add_sub, LIMITS)
        assert not check(templates, document, add_sub)


@pytest.mark.parametrize("compact", [True, False])
def test_an_id_in_front_may_differ_each_time(add_sub, compact):
    templates = learned(add_sub, add_sub_document(id="first", compact=compact))
    for extra in ({"id": "another one"}, {"id": "x" * 128}, {}):
        assert check(templates, add_sub_document(compact=compact, **extra), add_sub)
    for extra in ({"id": "ü"}, {"id": 'a"b'}, {"id": "x" * 129}):
        assert not check(templates, add_sub_document(compact=compact, **extra), add_sub)
    start = add_sub_document(compact=compact)[1:]
    assert not check(templates, start, add_sub)
    assert not check(templates, b'{"id":"a",' + start[:-1] + b',"id":"b"}', add_sub)


def test_nested_arrays_and_other_orders_of_keys(make_signature):
    signature = make_signature(("X", "INT32", [-1, 2]), ("Y", "BOOL", [-1]))
    text = b'{"inputs":[{"data": %b,"name":"X","datatype":"INT32","shape":[%b,2]},{"name":"Y","datatype":"BOOL","data":%b,"shape":[1]}],"parameters":{"binary_data_output":true}}'
    first, second = text % (b"[[1,2]]", b"1", b"[true]"), text % (b"[[1, 2],[3,-4]]", b"2", b"[ false]")
    templates = learned(signature, first, second)
    for document in (first, second, first.replace(b"[true]", b"[false]"), second.replace(b"[3,-4]", b" [5,6] ")):
        assert check(templates, document, signature)
    for old, new in ((b"[[1, 2],[3,-4]]", b"[1,2,3,4]"), (b"[[1, 2],[3,-4]]", b"[[1,2,3],[4]]")):
        document = second.replace(old, new)
        parsed(document, signature)
        assert check(templates, document, signature) == (b"[[" in new)


@pytest.mark.parametrize(
    ("datatype", "good", "odd"),
    [
        ("INT8", b"[-128,127]", b"[-129,0]"),
        ("UINT64", b"[0,18446744073709551615]", b"[-1,1]"),
        ("FP16", b"[65504,-0.0]", b"[1e6,1]"),
        ("FP32", b"[3.4e38,1e-46]", b"[1e39,1]"),
        ("FP64", b"[1.7976931348623157e308,5e-324]", b"[NaN,1]"),
        ("BOOL", b"[true,false]", b"[1,0]"),
    ],
)
def test_numbers_at_the_limits_of_a_datatype(make_signature, datatype, good, odd):
    signature = make_signature(("X", datatype, [2]))
    text = b'{"inputs":[{"name":"X","datatype":"%b","shape":[2],"data":%%b}]}' % datatype.encode()
    templates = learned(signature, text % (b"[false,true]" if datatype == "BOOL" else b"[1,2]"))
    assert check(templates, text % good, signature)
    for unusual in (odd, b"[1]", b"[]", b"[1,2,3]", b"[1,2", b"[1,2],", b'["1",2]', b"[null,1]", b"2", b"{}", b""):
        assert not check(templates, text % unusual, signature)


def test_many_numbers_become_the_bytes_that_the_parser_makes(make_signature):
    signature = make_signature(("X", "FP16", [-1]))
    text = '{"inputs":[{"name":"X","datatype":"FP16","shape":[3000],"data":%s}]}'
    numbers = [number / 7 for number in range(3000)]
    templates = learned(signature, (text % numbers).encode())
    assert check(templates, (text % numbers[::-1]).encode(), signature)


TWO = [("X", "INT32", [1]), ("Y", "INT32", [1])]


@pytest.mark.parametrize(
    ("tensors", "document"),
    [
        ([("X", "BYTES", [1])], b'{"inputs":[{"name":"X","shape":[1],"datatype":"BYTES","data":["a"]}]}'),
        ([("X", "BF16", [1])], b'{"inputs":[{"name":"X","shape":[1],"datatype":"BF16","data":[1]}]}'),
        (TWO[:1], b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data" :[1]}]}'),
        (TWO[:1], b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1],"data":[2]}]}'),
        (TWO[:1], b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","a\\"data":[1],"data":[2]}]}'),
        (TWO[:1], b'{"x":{"data":[1]},"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[2]}]}'),
        (
            TWO[:1],
            b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1]}],"outputs":[{"name":"O","data":[1]}]}',
        ),
        (TWO[:1], b'{"parameters":{"a":1},"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1]}]}'),
        (TWO[:1], b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1]}],"id":"a"}'),
        (TWO[:1], b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[5000000000]}]}'),
        (
            TWO,
            b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1],"data":[1]},'
            b'{"name":"Y","shape":[1],"datatype":"INT32","data" : [1]}]}',
        ),
        (
            [("X", "INT32", [-1])],
            b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1]}], "x":"%b"}' % (b"x" * 8192),
        ),
    ],
)
def test_unusual_documents_are_left_to_the_parser(make_signature, tensors, document):
    signature = make_signature(*tensors)
    assert not check(learned(signature, document, document), document, signature)


def test_clients_that_send_only_text_cost_little(make_signature, monkeypatch):
    signature = make_signature(("X", "BYTES", [1]))
    tried = []

    def outline(text):
        tried.append(text)
        return outline_in_steps(text)

    monkeypatch.setattr(templates_module, "outline_in_steps", outline)
    document = b'{"inputs":[{"name":"X","shape":[1],"datatype":"BYTES","data":["a"]}]}'
    templates = learned(signature, *[document] * 500)
    assert 5 < len(tried) < 15
    signature = make_signature(("X", "INT32", [1]))
    document = document.replace(b"BYTES", b"INT32").replace(b'"a"', b"1")
    for _ in range(2 * templates_module.MOST_SKIPPED):
        templates.learn(document, parsed(document, signature), signature, LIMITS)
    assert check(templates, document, signature)


def test_requests_that_do_not_fit_the_model_are_left_to_the_parser(make_signature):
    document = b'{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[1]}]%b}'
    signature = make_signature(("X", "INT32", [2]))
    assert not check(learned(signature, document % b""), document % b"", signature)
    signature, classes = (
        make_signature(("X", "INT32", [1]), outputs=(("OUT", "INT32", [1]),)),
        b',"outputs":[{"name":"OUT","parameters":{"classification":1}}]',
    )
    assert check(learned(signature, document % b""), document % b"", signature)
    assert learned(signature, document % classes).filled(document % classes) is None


def test_the_number_of_templates_is_limited(make_signature, monkeypatch):
    monkeypatch.setattr(templates_module, "MOST_STARTS", 20)
    signature = make_signature(("X", "INT32", [-1]))

    def document(number, tail=b""):
        numbers = b"[%b]" % b",".join([b"1"] * number)
        return b'{"inputs":[{"name":"X","shape":[%d],"datatype":"INT32","data":%b}]%b}' % (number, numbers, tail)

    templates = learned(signature, *(document(number) for number in range(1, 20)))
    assert all(check(templates, document(number), signature) for number in range(1, 20))
    tails = [b',"x":%d' % number for number in range(12)]
    templates = learned(signature, *(document(1, tail) for tail in tails))
    assert [check(templates, document(1, tail), signature) for tail in tails] == [False] * 4 + [True] * 8
    templates = learned(signature, *(document(number) for number in range(1, 50)))
    assert sum(check(templates, document(number), signature) for number in range(1, 50)) == 20


def test_documents_whose_shapes_differ_each_time_push_out_nobodys(make_signature):
    signature = make_signature(("X", "INT32", [-1]))

    def document(size):
        return b'{"inputs":[{"name":"X","datatype":"INT32","data":[%b],"shape":[%d]}]}' % (
            b",".join([b"1"] * size),
            size,
        )

    templates = learned(signature, document(1))
    for size in range(2, 50):
        templates.learn(document(size), parsed(document(size), signature), signature, LIMITS)
    assert [check(templates, document(size), signature) for size in range(1, 50)] == [True] + [False] * 48


def test_clients_who_take_turns_are_both_remembered(make_signature):
    signature = make_signature(("X", "INT32", [-1]))
    documents = [
        b'{"inputs":[{"name":"X","shape":[%d],"datatype":"INT32","data":[%b]}]}' % (size, b",".join([b"1"] * size))
        for size in (1, 2)
    ]
    templates = JsonTemplates()
    for document in documents * 2:
        templates.learn(document, parsed(document, signature), signature, LIMITS)
    assert all(check(templates, document, signature) for document in documents)


@given(st.data())
@examples(150)
def test_a_document_that_was_changed_anywhere_means_what_the_parser_makes_of_it(add_sub, data):
    first = add_sub_document(id="a")
    templates = learned(add_sub, first, add_sub_document(compact=False))
    document = bytearray(data.draw(st.sampled_from([first, add_sub_document(), add_sub_document(compact=False)])))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(document)))
        pieces = st.binary(max_size=2) | st.sampled_from(
            [b'"', b"[", b"]", b",", b"1", b" ", b'"data":', b"}", b"{", b"1]"]
        )
        document[at : at + data.draw(st.integers(0, 2))] = data.draw(pieces)
    document = bytes(document)
    if templates.filled(document) is not None:
        try:
            check(templates, document, add_sub)
        except InferenceError as error:
            raise AssertionError(f"the parser refuses it: {error.message}") from None


def test_an_empty_id_at_the_end_counts_more_than_one_before_it(add_sub):
    end = add_sub_document()[1:-1] + b',"id":""}'
    templates = learned(add_sub, b"{" + end)
    assert not check(templates, b'{"id":"7",' + end, add_sub)
