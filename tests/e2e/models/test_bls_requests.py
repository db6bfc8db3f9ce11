"""What a model can say in a request of its own, and what of it reaches the other model, or comes back."""

import json

import pytest

from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.gates import Gate
from tests.support.repositories import write_model
from tests.support.server import serving

SIMPLE = f"""
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} ]
{ONE}
"""
GATED = (
    HELPERS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [pb_utils.InferenceResponse([tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
"""
)
QUEUE = """
max_batch_size: 1
dynamic_batching { default_queue_policy {
    timeout_action: REJECT default_timeout_microseconds: 3600000000 allow_timeout_override: true
} }
"""
REFUSES = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("not today", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse(error=error, parameters={"never": "seen"}) for _ in requests]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bls_requests")
    write_caller(repository)
    write_targets(repository, "double", "describe")
    write_model(repository, "gated", GATED, f'backend: "python"\n{SIMPLE}{QUEUE}')
    write_model(repository, "refuses", REFUSES, f'backend: "python"\n{SIMPLE}')
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        pids = server.stub_pids()
        yield server
        assert server.stub_pids() == pids, "a model's process died and was restarted"


@pytest.fixture(scope="module")
def lab(server):
    return caller(server)


# --- What cannot be said ---


@pytest.mark.spec("pb-Q01")
@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ("inputs=[], requested_output_names=[]", "TypeError", "'model_name' is required"),
        ("inputs=[], model_name='double'", "TypeError", "'requested_output_names' is required"),
        ("requested_output_names=[], model_name='double'", "TypeError", "'inputs' is required"),
        ("inputs=None, requested_output_names=[], model_name='double'", "TypeError", ""),
        ("inputs=[], requested_output_names=None, model_name='double'", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name=None", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', request_id=None", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', timeout=-1", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', flags=None", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', correlation_id=None", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', correlation_id=-1", "RuntimeError", ""),
        (
            "inputs=[], requested_output_names=[], model_name='double', correlation_id=1.5",
            "TritonModelException",
            "Correlation ID must be integer or string",
        ),
        ("inputs=[], requested_output_names=[], model_name='double', preferred_memory=None", "TypeError", ""),
        ("inputs=[], requested_output_names=[], model_name='double', trace=None", "TypeError", ""),
        (
            "inputs=[None], requested_output_names=[], model_name='double', request_id='7'",
            "TritonModelException",
            "Input tensor for request with id '7' and model name 'double' should not be empty.",
        ),
        (
            "inputs=[], requested_output_names=[''], model_name='double', request_id='7'",
            "TritonModelException",
            "Requested output name for request with id '7' and model name 'double' should not be empty.",
        ),
        (
            "inputs=[], requested_output_names=[], model_name='double', parameters={1: 'x'}",
            "TritonModelException",
            "Expect parameters keys to have type str, found type <class 'int'>",
        ),
        (
            "inputs=[], requested_output_names=[], model_name='double', parameters={'x': 1.5}",
            "TritonModelException",
            "Expect parameters values to have type bool/int/str, found type <class 'float'>",
        ),
        (
            "inputs=[], requested_output_names=[], model_name='double', parameters=[1]",
            "TritonModelException",
            "Expect ",
        ),
    ],
    ids=range(19),
)
def test_requests_that_cannot_be_made(lab, arguments, kind, text):
    found, message = lab(f"return raised(lambda: pb_utils.InferenceRequest({arguments}))")
    assert found == kind
    assert text in message


# --- What of a request reaches the other model ---


@pytest.mark.spec("pb-Q01", "pb-Q02", "pb-B12")
def test_everything_that_is_set_reaches_the_other_model(lab):
    code = """
    made = pb_utils.InferenceRequest(
        "an id", 42, [pb_utils.Tensor("IN", np.zeros(3, np.float32)), tensor("TEXT", ["a", "b"])], ["OUT1"], "describe",
        1, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, 5_000_000_000,
        pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU), request.trace(), {"yes": True, "n": -7, "t": "text"},
    )
    own = [
        type(made.inputs()) is list, made.request_id(), made.correlation_id(), made.flags(),
        made.timeout(), json.loads(made.parameters()), type(made.requested_output_names()) is set,
        made.is_cancelled(),
    ]
    return [own, json.loads(value(made.exec(), "OUT1")[0])]
    """
    parameters = {"yes": True, "n": -7, "t": "text"}
    assert lab(code) == [
        [True, "an id", 42, 1, 5_000_000_000, parameters, True, False],
        {
            "id": "an id",
            "correlation_id": 42,
            "flags": 1,
            "timeout": 5_000_000_000,
            "parameters": parameters,
            "requested": ["OUT1"],
            "inputs": {"IN": ["float32", [3]], "TEXT": ["object", [2]]},
        },
    ]


@pytest.mark.spec("pb-Q02", "pb-B12")
@pytest.mark.parametrize(
    ("options", "member", "expected"),
    [
        pytest.param("", "id", "", id="no_id"),
        pytest.param("", "correlation_id", 0, id="no_sequence"),
        pytest.param("", "parameters", {}, id="no_parameters"),
        pytest.param("parameters={}", "parameters", {}, id="empty_parameters"),
        pytest.param("correlation_id=2**64 - 1", "correlation_id", 2**64 - 1, id="largest_correlation_id"),
        pytest.param("correlation_id='a sequence'", "correlation_id", "a sequence", id="text_correlation_id"),
        pytest.param("correlation_id=True", "correlation_id", 1, id="true_as_correlation_id"),
        pytest.param("flags=3, correlation_id=1", "flags", 3, id="start_and_end"),
        pytest.param("timeout=2**64 - 1", "timeout", 2**64 - 1, id="largest_timeout"),
        pytest.param("request_id='\\u00e4' * 1000", "id", "\u00e4" * 1000, id="long_id"),
        pytest.param(
            "parameters={'n': 2**63 - 1, 'm': -2**63, '': ''}",
            "parameters",
            {"n": 2**63 - 1, "m": -(2**63), "": ""},
            id="largest_parameters",
        ),
    ],
)
def test_options_of_a_call(lab, options, member, expected):
    code = f"return json.loads(value(call('describe', **dict({options})).exec(), 'OUT0')[0])['{member}']"
    assert lab(code) == expected


def test_flags_that_are_set_later(lab):
    code = """
    request = call("describe", correlation_id="s", flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
    flags = []
    for new in (0, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END):
        flags.append(json.loads(value(request.exec(), "OUT0")[0])["flags"])
        request.set_flags(new)
    return flags + [json.loads(value(request.exec(), "OUT0")[0])["flags"]]
    """
    assert lab(code) == [1, 0, 2]


@pytest.mark.spec("pb-P01")
def test_response_parameters_come_back(server, lab):
    code = "return [call('describe').exec().parameters(), call('double', IN=[1]).exec().parameters()]"
    with_some, without = lab(code)
    assert json.loads(with_some) == {"answered": True, "count": 7, "by": "describe"}
    assert without == "{}"
    code = """
    response = call("describe").exec()
    return pb_utils.InferenceResponse([tensor("OUT", [1])], parameters=json.loads(response.parameters()))
    """
    assert sender(server)(code).document["parameters"] == {"answered": True, "count": 7, "by": "describe"}


def test_parameters_of_an_error(lab):
    code = "return [call('refuses', IN=[3]).exec().parameters(), call('nobody').exec().parameters()]"
    assert lab(code) == ["{}", "{}"]


@pytest.mark.parametrize(
    "options",
    [
        "parameters={'long': 'x' * 20_000_000}",
        "request_id='x' * 20_000_000",
        "correlation_id='x' * 20_000_000",
        "outputs=['OUT' + 'x' * 20_000_000]",
    ],
    ids=["parameters", "request_id", "correlation_id", "output_name"],
)
def test_a_call_that_is_too_long_to_be_sent(lab, options):
    code, message = lab(f"return failure(call('describe', **dict({options})).exec())")
    assert code == "INVALID_ARG"
    assert message.startswith("Model describe - Error when running inference: ")
    assert "too long" in message
    assert lab("return value(call('double', IN=[1]).exec())") == [2]


# --- Time-outs ---


def test_a_timeout_without_effect_is_told_once(server, lab):
    for _ in range(2):
        assert lab("return value(call('double', IN=[1], timeout=1000).exec())") == [2]
    server.wait_for(
        "model 'caller' calls '(double|describe)' with a timeout, which has no effect: "
    )  # whichever is first
    assert server.output.count("with a timeout, which has no effect") == 1


@pytest.mark.spec("pb-B12")
def test_timeout_in_the_other_models_queue(repository, lab):
    gate = Gate(repository / "gated", "execute")
    code = """
    def run(timeout):
        response = call("gated", IN=np.ones((1, 2), np.float32), timeout=timeout, request_id="r").exec()
        return seen(response)
    first = threading.Thread(target=run, args=[0])
    first.start()
    while not os.path.exists(GATE + ".reached"):
        time.sleep(0.005)
    expired = run(1000)
    open(GATE + ".open", "w").close()
    first.join()
    return [expired] + [run(timeout) for timeout in (5_000_000_000, 2**64 - 1)]
    """.replace("GATE", repr(str(repository / "gated/execute")))
    expired, *others = lab(code)
    assert expired == ["UNAVAILABLE", "[request id: r] Request timeout expired"]
    assert others == [{"OUT": [1, 1]}] * 2
    assert gate.arrivals == 3, "what has expired is not executed"
