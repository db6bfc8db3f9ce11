"""Plans that were made before: each request gets one of its own, and only those are kept that are worth it."""

import gc
import weakref

import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, OutputFormat
from pybackend.protocol.plan_cache import LARGEST_PREAMBLE_BYTES, PlanCache, PlanCaches

HEADER = b'{"inputs":[...]}'


def plan(output_format=ALL_BINARY, *, beside=(), **fields):
    tensor = InputTensor("A", "FP32", (1, 4))
    request = InferenceRequest("m", "3", inputs=[tensor, *beside], requested_outputs=("X",))
    request.batch_size = 1
    for name, value in fields.items():
        setattr(request, name, value)
    return InferPlan(request, [(tensor, 16)], 16, output_format)


def test_every_request_gets_tensors_of_its_own():
    cache = PlanCache()
    cache.put(HEADER, plan())
    first, second = cache.get(HEADER), cache.get(HEADER)
    first.request.inputs[0].data = b"x" * 16
    assert second.request.inputs[0].data is None
    assert cache.get(HEADER).request.inputs[0].data is None
    (tensor, size) = second.binary_inputs[0]
    assert tensor is second.request.inputs[0]
    assert (tensor.name, tensor.datatype, tensor.shape, size) == ("A", "FP32", (1, 4), 16)
    request = second.request
    assert (request.model_name, request.model_version, request.requested_outputs) == ("m", "3", ("X",))
    assert second.output_format is ALL_BINARY


def test_bytes_that_came_after_are_not_kept():
    cache, made = PlanCache(), plan()
    cache.put(HEADER, made)
    made.request.inputs[0].data = b"secret"
    assert cache.get(HEADER).request.inputs[0].data is None


@pytest.mark.parametrize(
    "made",
    [
        plan(id="1"),
        plan(parameters={"a": 1}),
        plan(correlation_id=1),
        plan(flags=1),
        plan(priority=1),
        plan(timeout_us=1),
        plan(beside=[InputTensor("B", "FP32", (1,), b"abcd")]),
        plan(OutputFormat(binary_default=True, classes={"X": object()})),
    ],
    ids=["id", "parameters", "sequence", "flags", "priority", "time-out", "data in JSON", "classes"],
)
def test_what_differs_each_time_is_not_kept(made):
    cache = PlanCache()
    cache.learn(HEADER, made)
    assert cache.get(HEADER) is None
    assert whole(cache, HEADER) is None


REST = b'"inputs":[...]}'


def whole(cache, header, tensors=bytes(16)):
    return cache.whole(header + tensors, 0, len(header))


def test_a_whole_message_gives_each_tensor_its_bytes():
    cache, first = PlanCache(), InputTensor("A", "FP32", (1, 4))
    large = InputTensor("B", "UINT8", (5000,))
    request = InferenceRequest("m", "3", inputs=[first, large], requested_outputs=("X",))
    cache.put(HEADER, InferPlan(request, [(first, 16), (large, 5000)], 5016, ALL_BINARY, Checked.ALL))
    tensors = bytes(range(16)) + bytes(5000)
    found = cache.whole(b"head" + HEADER + tensors, 4, 4 + len(HEADER))
    assert [bytes(each.data) for each in found.request.inputs] == [tensors[:16], tensors[16:]]
    assert (found.request.id, found.request.requested_outputs, found.output_format) == ("", ("X",), ALL_BINARY)
    assert found.checked is Checked.ALL
    assert whole(cache, HEADER, tensors[:-1]) is None
    assert whole(cache, HEADER, tensors + b"x") is None
    assert whole(cache, b"another", tensors) is None


@pytest.mark.parametrize("start", [b'{"id":"%b",', b'{"id": "%b", '])
def test_an_id_in_front_may_differ_each_time(start):
    cache = PlanCache()
    cache.learn(start % b"first" + REST, plan(id="first"))
    assert whole(cache, start % b"second one" + REST).request.id == "second one"
    assert whole(cache, start % b"first" + REST).request.id == "first"
    assert cache.get(start % b"first" + REST) is None
    assert whole(cache, b"{" + REST).request.id == ""
    assert whole(cache, REST) is None


@pytest.mark.parametrize("name", [b"", b'a\\"', b"\xc3\xa9", b"x" * 129, b"a\n"])
def test_an_id_that_is_not_plain_is_read_by_the_parser(name):
    cache = PlanCache()
    cache.learn(b'{"id":"1",' + REST, plan(id="1"))
    assert whole(cache, b'{"id":"%b",%b' % (name, REST)) is None


@pytest.mark.parametrize("again", [b',"id":"2"}', b',"\\u0069d":"2"}'])
def test_of_two_ids_the_last_counts_so_neither_is_kept(again):
    cache = PlanCache()
    header = b'{"id":"2",' + REST[:-1] + again
    cache.learn(header, plan(id="2"))
    assert whole(cache, header) is None


def test_an_id_with_other_options_is_not_kept():
    cache = PlanCache()
    cache.learn(b'{"id":"1",' + REST, plan(id="1", priority=1))
    assert whole(cache, b'{"id":"1",' + REST) is None


SEQUENCE = b'{"inputs":[...],"parameters":{"sequence_id":%b,"sequence_start":true}}'


@pytest.mark.parametrize(
    ("written", "read"), [(b"5", 5), (b" 5", 5), (b"9" * 18, 10**18 - 1), (b'"5"', "5"), (b' "a-Z"', "a-Z")]
)
def test_each_request_has_the_id_of_its_own_sequence(written, read):
    cache = PlanCache()
    cache.learn(SEQUENCE % written, plan(correlation_id=read, flags=1))
    for other, other_read in ((b"77", 77), (b'"s"', "s"), (written, read)):
        request = whole(cache, SEQUENCE % other).request
        assert (request.id, request.correlation_id, request.flags) == ("", other_read, 1)
    with_id = whole(cache, b'{"id":"i",' + (SEQUENCE % b"8")[1:]).request
    assert (with_id.id, with_id.correlation_id, with_id.flags) == ("i", 8, 1)
    assert whole(cache, (SEQUENCE % written).replace(b"true", b"false")) is None


@pytest.mark.parametrize(
    "other", [b"0", b"05", b"-5", b"5.0", b"5e0", b"9" * 19, b'""', b'"\\u0041"', b'"\xc3\xa9"', b"true", b"null", b""]
)
def test_a_sequence_id_in_another_form_is_read_by_the_parser(other):
    cache = PlanCache()
    cache.learn(SEQUENCE % b"5", plan(correlation_id=5, flags=1))
    assert whole(cache, SEQUENCE % other) is None


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        (SEQUENCE % b"5", {"correlation_id": 7}),
        (SEQUENCE % b"5", {"correlation_id": "5"}),
        (SEQUENCE % b"5", {"correlation_id": 5, "priority": 1}),
        (SEQUENCE % b"5", {"correlation_id": 5, "timeout_us": 1}),
        (SEQUENCE % b"5", {"correlation_id": 5, "parameters": {"x": 1}}),
        ((SEQUENCE % b"5").replace(b"...", b'{"parameters":{"sequence_id":5}}'), {"correlation_id": 5}),
        ((SEQUENCE % b"5").replace(b"...", b'"sequence_id"'), {"correlation_id": 5}),
        ((SEQUENCE % b"5").replace(b"...", b'"\\u0041"'), {"correlation_id": 5}),
    ],
)
def test_a_sequence_id_that_could_be_mistaken_is_not_left_out(header, fields):
    cache = PlanCache()
    cache.learn(header, plan(**fields))
    assert whole(cache, header) is None


def test_sequences_of_strings_have_their_sizes():
    preamble = b'{"inputs":[{"name":"A","parameters":{"binary_data_size":%d}}],"parameters":{"sequence_id":%b}}'
    tensor = InputTensor("A", "BYTES", (1, 4))
    request = InferenceRequest("m", "3", inputs=[tensor], correlation_id=5)
    cache = PlanCache()
    cache.learn(preamble % (8, b"5"), InferPlan(request, [(tensor, 8)], 8, ALL_BINARY, Checked.HEADER))
    made = whole(cache, preamble % (20, b"6"), bytes(20))
    assert (len(made.request.inputs[0].data), made.request.correlation_id) == (20, 6)
    assert whole(cache, preamble % (20, b""), bytes(20)) is None
    assert whole(cache, (preamble % (20, b"6")).replace(b'"sequence_id":6', b""), bytes(20)) is None


def test_long_headers_are_not_kept():
    cache = PlanCache()
    for nbytes, is_kept in ((LARGEST_PREAMBLE_BYTES, True), (LARGEST_PREAMBLE_BYTES + 1, False)):
        cache.put(b"x" * nbytes, plan())
        assert (cache.get(b"x" * nbytes) is not None) == is_kept


def test_plans_belong_to_a_signature_and_go_with_it():
    caches = PlanCaches()
    one, other = ModelSignature("m", 0, {}, {}), ModelSignature("m", 0, {}, {})
    caches.of(one).put(HEADER, plan())
    assert caches.of(one).get(HEADER) is not None
    assert caches.of(other).get(HEADER) is None
    kept = weakref.ref(caches.of(one))
    del one
    gc.collect()
    assert kept() is None


def test_plans_that_something_still_leads_to_are_forgotten_with_their_signature():
    caches = PlanCaches()
    one = ModelSignature("m", 0, {}, {})
    kept = caches.of(one)
    kept.put(HEADER, plan())
    del one
    gc.collect()
    assert kept.get(HEADER) is None


def strings(preamble, *sizes, datatypes=("BYTES", "BYTES")):
    inputs = [InputTensor(name, datatype, (1, 4)) for name, datatype, _ in zip("AB", datatypes, sizes, strict=False)]
    request = InferenceRequest("m", "3", inputs=inputs)
    made = InferPlan(request, [*zip(inputs, sizes, strict=True)], sum(sizes), ALL_BINARY, Checked.HEADER)
    cache = PlanCache()
    cache.put(preamble, made)
    return cache


def found(cache, preamble, nbytes):
    plan = cache.whole(preamble + bytes(nbytes), 0, len(preamble))
    return None if plan is None else [len(each.data) for each in plan.request.inputs]


SIZED = (
    b'{"inputs":[{"name":"A","parameters":{"binary_data_size":%d}},{"name":"B","parameters":{"binary_data_size": %d}}]}'
)


def test_strings_may_have_other_sizes():
    cache = strings(SIZED % (8, 20), 8, 20)
    assert found(cache, SIZED % (5, 0), 5) == [5, 0]
    assert found(cache, SIZED % (30, 5000), 5030) == [30, 5000]
    assert found(cache, b'{"id":"7",' + (SIZED % (3, 4))[1:], 7) == [3, 4]
    assert cache.whole(SIZED % (3, 4) + bytes(7), 0, len(SIZED % (3, 4))).checked is Checked.HEADER
    assert found(cache, SIZED % (3, 4), 8) is None
    for other in (b"03", b"3.0", b"-3", b"3e0", b"", b'"3"', b"33333333"):
        assert found(cache, SIZED.replace(b"%d", other, 1).replace(b"%d", b"4"), 7) is None


@pytest.mark.parametrize(
    "preamble",
    [
        SIZED.replace(b"}},", b',"binary_data_size" :8}},') % (8, 8),
        SIZED.replace(b'{"name":"A"', b'{"name":"\\u0041"') % (8, 8),
        SIZED.replace(b"]}", b'],"outputs":[{"name":"X","parameters":{"binary_data_size":8}}]}') % (8, 8),
        SIZED.replace(b"}},", b',"binary\\u005fdata_size":8}},') % (8, 8),
    ],
)
def test_sizes_that_could_be_mistaken_are_not_left_out(preamble):
    cache = strings(preamble, 8, 8)
    assert found(cache, preamble, 16) == [8, 8]
    assert found(cache, preamble.replace(b":8", b":4").replace(b": 8", b": 4"), 8) is None


def test_numbers_have_their_sizes():
    cache, preamble = PlanCache(), b'{"inputs":[{"name":"A","parameters":{"binary_data_size":16}}]}'
    cache.put(preamble, plan())
    assert found(cache, preamble, 16) == [16]
    assert found(cache, preamble.replace(b"16", b"20"), 20) is None


def test_numbers_beside_strings_have_their_sizes():
    cache = strings(SIZED % (16, 20), 16, 20, datatypes=("INT32", "BYTES"))
    assert found(cache, SIZED % (16, 7), 23) == [16, 7]
    assert found(cache, SIZED % (20, 7), 27) is None
    assert found(cache, SIZED % (8, 7), 15) is None
