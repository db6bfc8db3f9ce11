"""What a request carries beside its tensors, as the model sees it; and what a response carries, as its client sees it."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.served import served
from tests.support.streams import function, write_streams

FIELDS = """
request_id, correlation_id, flags = request.request_id(), request.correlation_id(), request.flags()
told = {
    "request_id": request_id, "correlation_id": correlation_id, "flags": flags, "timeout": request.timeout(),
    "priority": request.priority(), "parameters": json.loads(request.parameters()),
    "outputs": sorted(request.requested_output_names()), "inputs": [tensor.name() for tensor in request.inputs()],
}
return [text(json.dumps(told))]
"""
DEFAULTS = {
    "request_id": "",
    "correlation_id": 0,
    "flags": 0,
    "timeout": 0,
    "priority": 0,
    "parameters": {},
    "outputs": ["OUT", "TEXT"],
    "inputs": ["CODE"],
}


@served()
def server(repository):
    write_streams(repository, "single", "")


@pytest.fixture(scope="module")
def run(server):
    """A function that runs code in the model, with members and inputs of the request."""

    def run(code, /, inputs: Mapping[str, np.ndarray] | None = None, **members: Any):
        return infer(server, "single", {"CODE": function(code), **(inputs or {})}, **members)

    return run


@pytest.fixture(scope="module")
def fields(run):
    """A function that sends a request and returns what the model has seen of it, less what is at its default."""

    def fields(**members):
        seen = json.loads(run(FIELDS, **members)["TEXT"][0])
        assert seen.keys() == DEFAULTS.keys()
        return {name: value for name, value in seen.items() if value != DEFAULTS[name]}

    return fields


def test_defaults(fields):
    assert fields() == {}


@pytest.mark.spec("pb-Q02")
def test_types_of_what_a_request_tells(run):
    answer = run(
        """
        inputs = request.inputs()
        assert type(inputs) is list and [type(tensor) for tensor in inputs] == [pb_utils.Tensor] * 2
        assert request.inputs() is not inputs, "the model may change the list"
        inputs.clear()
        assert [tensor.name() for tensor in request.inputs()] == ["CODE", "IN"]
        assert request.request_id() == "an id" and type(request.request_id()) is str
        assert request.correlation_id() == 7 and type(request.correlation_id()) is int
        names = request.requested_output_names()
        assert type(names) is set and names == {"TEXT"}
        names.clear()
        assert request.requested_output_names() == {"TEXT"}
        assert (request.flags(), request.timeout(), request.priority()) == (3, 12, 5)
        assert {type(value) for value in (request.flags(), request.timeout(), request.priority())} == {int}
        assert type(request.parameters()) is str and request.parameters() == '{"mine": "value"}'
        assert type(request.is_cancelled()) is bool
        assert type(request.trace()).__name__ == "InferenceTrace" and request.trace().get_context() is None
        tensor = inputs_by_name = pb_utils.get_input_tensor_by_name(request, "IN")
        assert type(tensor.name()) is str and type(tensor.is_cpu()) is bool and tensor.is_cpu()
        assert tensor.shape() == [2] and type(tensor.shape()) is list and {type(n) for n in tensor.shape()} == {int}
        assert tensor.triton_dtype().name == "INT32" and int(tensor.triton_dtype()) == 8
        assert type(tensor.as_numpy()) is np.ndarray
        assert pb_utils.get_input_tensor_by_name(request, "absent") is None
        request.set_flags(0)
        assert request.flags() == 0
        for name in ("model_name", "model_version", "preferred_memory"):
            assert not hasattr(request, name), name
        return [text("fine")]
        """,
        {"IN": np.ones(2, np.int32)},
        id="an id",
        outputs=[{"name": "TEXT"}],
        parameters={
            "sequence_id": 7,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 5,
            "timeout": 12,
            "mine": "value",
        },
    )
    assert answer["TEXT"].tolist() == [b"fine"]


@pytest.mark.spec("pb-Q02")
def test_types_of_what_a_response_tells(run):
    answer = run("""
        plain = out(1, 2)
        assert type(plain.output_tensors()) is list and plain.has_error() is False and plain.error() is None
        assert plain.parameters() == "{}"
        plain.output_tensors().clear()
        assert len(plain.output_tensors()) == 1
        found = pb_utils.get_output_tensor_by_name(plain, "OUT")
        assert found.as_numpy().tolist() == [1, 2] and pb_utils.get_output_tensor_by_name(plain, "X") is None
        wrong = failed("no", pb_utils.TritonError.NOT_FOUND)
        assert wrong.has_error() is True
        assert (wrong.error().message(), wrong.error().code(), int(wrong.error().code())) == (
            "no", pb_utils.TritonError.NOT_FOUND, 2
        )
        return [text("fine")]
    """)
    assert answer["TEXT"].tolist() == [b"fine"]


@pytest.mark.parametrize("request_id", ["1", "x" * 10_000, "w\u00f6rter", "a b/c?d"])
def test_request_id(fields, run, request_id):
    assert fields(id=request_id) == {"request_id": request_id}
    assert run("return [out(1)]", id=request_id).document["id"] == request_id


@pytest.mark.spec("pb-C04")
@pytest.mark.parametrize("correlation_id", [1, 2**64 - 1, "a sequence", "7", "\u00fc" * 128])
def test_correlation_id(fields, correlation_id):
    seen = fields(parameters={"sequence_id": correlation_id})
    assert seen == {"correlation_id": correlation_id}
    assert type(seen["correlation_id"]) is type(correlation_id)


@pytest.mark.spec("pb-C04")
@pytest.mark.parametrize(
    ("start", "end", "flags"), [(True, False, 1), (False, True, 2), (True, True, 3), (False, False, 0)]
)
def test_sequence_flags(fields, start, end, flags):
    seen = fields(parameters={"sequence_id": 5, "sequence_start": start, "sequence_end": end})
    assert seen == {"correlation_id": 5, "flags": flags} if flags else {"correlation_id": 5}


@pytest.mark.spec("pb-C07")
@pytest.mark.parametrize("priority", [1, 7, 2**32 - 1])
def test_priority(fields, priority):
    assert fields(parameters={"priority": priority}) == {"priority": priority}


@pytest.mark.parametrize("timeout_us", [1, 10_000_000, 2**63])
def test_timeout(fields, timeout_us):
    assert fields(parameters={"timeout": timeout_us}) == {"timeout": timeout_us}


@pytest.mark.spec("pb-C06")
@pytest.mark.parametrize(
    "parameters",
    [
        {"word": "w\u00f6rd", "empty": "", "quote": '"\\\n', "sequence": "no reserved name"},
        {"yes": True, "no": False},
        {"least": -(2**63), "most": 2**63 - 1, "zero": 0},
        {"half": 0.5, "large": 1e300, "whole": 2.0},
        {"": "without a name", "name with spaces": 1, "unicode \u00fc": True},
        {f"p{number}": number for number in range(500)},
        {"long": "x" * 100_000},
    ],
    ids=["str", "bool", "int", "float", "names", "many", "long"],
)
def test_parameters(fields, parameters):
    seen = fields(parameters=parameters)
    assert seen == {"parameters": parameters}
    assert [type(value) for value in seen["parameters"].values()] == [type(value) for value in parameters.values()]


@pytest.mark.spec("pb-C06")
def test_reserved_parameters_are_not_seen(fields):
    reserved = {
        "sequence_id": 3, "sequence_start": True, "sequence_end": True, "priority": 2, "timeout": 9,
        "binary_data_output": True,
    }  # fmt: skip
    seen = fields(parameters={**reserved, "mine": 1})
    assert seen == {"correlation_id": 3, "flags": 3, "priority": 2, "timeout": 9, "parameters": {"mine": 1}}


@pytest.mark.spec("pb-C06")
def test_parameters_of_one_request_are_not_seen_by_the_next(fields):
    assert fields(parameters={"mine": 1, "sequence_id": 4, "priority": 3}, id="x") != {}
    assert fields() == {}
    assert fields(parameters={"other": 2}) == {"parameters": {"other": 2}}


@pytest.mark.spec("pb-C06")
def test_a_request_that_the_model_passes_on_keeps_its_parameters(run):
    answer = run(
        """
        again = pb_utils.InferenceRequest(
            model_name="x", inputs=[], requested_output_names=[], parameters=json.loads(request.parameters())
        )
        return [text(again.parameters() == request.parameters())]
        """,
        parameters={"word": "w\u00f6rd", "yes": True, "many": 2**62},
    )
    assert answer["TEXT"].tolist() == [b"True"]


# Response parameters

PARAMETERS = [
    {"word": "w\u00f6rd", "empty": "", "quote": '"\\\n'},
    {"yes": True, "no": False},
    {"least": -(2**63), "most": 2**63 - 1},
    {"mixed": 1, "of": "all", "kinds": True},
    {f"p{number}": number for number in range(300)},
]


@pytest.mark.spec("pb-P01")
@pytest.mark.parametrize("parameters", PARAMETERS, ids=["str", "bool", "int", "mixed", "many"])
@pytest.mark.parametrize("way", ["return [response]", "sender.send(response, FINAL)"], ids=["return", "sender"])
def test_response_parameters(run, parameters, way):
    code = f"""
        parameters = {parameters!r}
        response = out(1, **parameters)
        assert json.loads(response.parameters()) == parameters
        {way}
    """
    answer = run(code)
    assert answer["OUT"].tolist() == [1]
    assert answer.document["parameters"] == parameters
    assert [type(value) for value in answer.document["parameters"].values()] == [type(v) for v in parameters.values()]


@pytest.mark.spec("pb-P01")
def test_no_response_parameters(run):
    for code in ("return [out(1)]", "return [pb_utils.InferenceResponse(out(1).output_tensors(), None, {})]"):
        assert "parameters" not in run(code).document
    # Nor do they come with an error.
    code = 'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no"), parameters={"a": 1})]'
    assert run(code).document == {"error": "no"}


@pytest.mark.spec("pb-P01")
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("{1: 'x'}", "Expect parameters keys to have type str, found type <class 'int'>"),
        ("{None: 'x'}", "Expect parameters keys to have type str, found type <class 'NoneType'>"),
        ("{'a': None}", "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
        ("{'a': 1.5}", "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ("{'a': [1]}", "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        ("{'a': b'x'}", "Expect parameters values to have type bool/int/str, found type <class 'bytes'>"),
        ("{'a': np.int64(1)}", "Expect parameters values to have type bool/int/str, found type <class 'numpy.int64'>"),
        ("{'a': {}}", "Expect parameters values to have type bool/int/str, found type <class 'dict'>"),
        ("['a']", "Expect dict, got <class 'list'>"),
        ("'{}'", "Expect dict, got <class 'str'>"),
        ("{'a': 2**63}", "Parameter 'a' is 9223372036854775808, which does not fit into 64 bits"),
        ("{'a': -2**63 - 1}", "Parameter 'a' is -9223372036854775809, which does not fit into 64 bits"),
    ],
)
def test_what_is_no_parameter(run, parameters, text):
    code = f"""
        for make in (pb_utils.InferenceResponse, lambda **kw: pb_utils.InferenceRequest(
            model_name="x", inputs=[], requested_output_names=[], **kw
        )):
            try:
                make(parameters={parameters})
                return [failed("nothing is raised")]
            except pb_utils.TritonModelException as error:
                told = str(error)
        return [text(told)]
    """
    assert run(code)["TEXT"][0].decode().startswith(text)


@pytest.mark.spec("pb-P01")
def test_parameters_in_json_responses(server):
    """Also where the outputs are no binary tensors."""
    body = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [
        function('return [out(4, answer=42, text="\u00e4", yes=True)]')[0].decode()
    ]}]}  # fmt: skip
    reply = server.infer("single", body)
    assert reply.json["parameters"] == {"answer": 42, "text": "\u00e4", "yes": True}
    assert reply.json["outputs"][0]["data"] == [4]


# Release flags


@pytest.mark.spec("pb-R02")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_rescheduling_where_it_is_not_configured(server, asynchronous):
    """The request is answered, and the log says what the model did."""
    text = (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )
    before = server.output.count(text)
    code = "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn [None]"
    answer = infer(server, "single", {"CODE": function(code, asynchronous=asynchronous)})
    assert answer.status == 500
    assert answer.error.startswith(text)
    wait_until(lambda: server.output.count(text) > before, "it is logged")
    assert infer(server, "single", {"CODE": function("return [out(1)]")})["OUT"].tolist() == [1]


@pytest.mark.spec("pb-R02")
def test_release_flags(run):
    answer = run("""
        assert (pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) == (1, 2)
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        refused = []
        for call in (
            lambda: request.set_release_flags(flags=1),
            lambda: request.set_release_flags("1"),
            lambda: request.set_release_flags(),
        ):
            try:
                call()
            except TypeError:
                refused.append(True)
        return [out(len(refused))]
    """)
    assert answer["OUT"].tolist() == [3]
