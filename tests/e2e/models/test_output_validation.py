"""Outputs that are not as configured: passed on by default, refused for models that ask for it."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.log_lines import log_lines
from tests.support.repositories import write_model
from tests.support.served import served

# A request names the output to return by an index into these.
MODEL = """
OUTPUTS = [
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 4), np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 4), np.int16)),
    lambda: pb_utils.Tensor("OUT", np.zeros((1, 5), np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros(4, np.float32)),
    lambda: pb_utils.Tensor("OUT", np.zeros((2, 4), np.float32)),
    lambda: pb_utils.Tensor("OTU", np.zeros((1, 4), np.float32)),
    *[lambda value=value: pb_utils.Tensor("OUT", np.full((1, 4), value, np.float32)) for value in (1, 2, 3)],
]

class TritonPythonModel:
    def execute(self, requests):
        chosen = [int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0, 0]) for request in requests]
        # What follows the sixth one comes with it; behind the last one there is none.
        chosen_outputs = [OUTPUTS[6:] if number == 6 else OUTPUTS[number : number + 1] for number in chosen]
        return [pb_utils.InferenceResponse([output() for output in outputs]) for outputs in chosen_outputs]
"""

DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OTU", np.zeros((1, 4), np.float32))]))
            wrong = pb_utils.Tensor("OUT", np.zeros((1, 4), np.float64))
            sender.send(pb_utils.InferenceResponse([wrong]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name=TARGET, inputs=request.inputs(), requested_output_names=["OUT"])
            answers = [pb_utils.get_output_tensor_by_name(answer, "OUT") for answer in call.exec(decoupled=True)]
        value = pb_utils.Tensor("OUT", answers[-1].as_numpy().astype(np.float32))
        return [pb_utils.InferenceResponse([value]) for _ in requests]
"""

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling { step {
    model_name: "step" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} }
"""

CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }}
parameters {{ key: "VALIDATE_OUTPUTS" value: {{ string_value: "{switch}" }} }}
"""


# An ensemble's second step can do without SECOND, which the first one leaves out.
PAIR = """
class TritonPythonModel:
    def execute(self, requests):
        value = pb_utils.Tensor("FIRST", np.zeros((1, 4), np.float32))
        return [pb_utils.InferenceResponse([value]) for _ in requests]
"""

PAIR_CONFIG = (
    CONFIG.format(switch="yes").replace('name: "OUT"', 'name: "FIRST"')
    + 'output { name: "SECOND" data_type: TYPE_FP32 dims: [ 4 ] }'
)

READS = """
class TritonPythonModel:
    def execute(self, requests):
        value = pb_utils.Tensor("OUT", np.ones((1, 4), np.float32))
        return [pb_utils.InferenceResponse([value]) for _ in requests]
"""

READS_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ]
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
"""

OF_PAIR = """
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "SECOND" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [ {
    model_name: "pair" model_version: -1
    input_map { key: "IN" value: "IN" }
    output_map [ { key: "FIRST" value: "first" }, { key: "SECOND" value: "SECOND" } ]
  }, {
    model_name: "reads" model_version: -1
    input_map [ { key: "A" value: "first" }, { key: "B" value: "SECOND" } ] output_map { key: "OUT" value: "OUT" }
} ] }
"""


@served()
def server(repository):
    write_model(repository, "refusing", MODEL, CONFIG.format(switch="yes"))
    for switch in ("yes", "no"):
        write_model(repository, f"validates_{switch}", MODEL, CONFIG.format(switch=switch))
    config = CONFIG.format(switch="no")
    for name in ("warned", "step", "twins", "rankless", "several", "misnames"):
        write_model(repository, name, MODEL, config + ("instance_group { count: 2 }" if name == "twins" else ""))
    write_model(repository, "decoupled", DECOUPLED, config + "model_transaction_policy { decoupled: true }")
    write_model(repository, "calls", f'TARGET = "decoupled"\n{CALLS}', config)
    write_model(repository, "calls_several", f'TARGET = "several"\n{CALLS}', config)
    write_model(repository, "ensemble", None, ENSEMBLE)
    write_model(repository, "pair", PAIR, PAIR_CONFIG)
    for name in ("lacks", "half"):
        write_model(repository, name, PAIR, PAIR_CONFIG.replace('"yes"', '"no"'))
    write_model(repository, "of_half", None, OF_PAIR.replace('"pair"', '"half"'))
    write_model(repository, "reads", READS, READS_CONFIG)
    write_model(repository, "of_pair", None, OF_PAIR)


def ask(server, model, number, *outputs):
    document = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [number]}]}
    return server.infer(model, document | ({"outputs": [{"name": name} for name in outputs]} if outputs else {}))


@pytest.mark.spec("pb-E08")
@pytest.mark.parametrize(
    ("number", "datatype", "shape", "complaint"),
    [
        (
            1,
            "INT16",
            [1, 4],
            "returned output 'OUT' as INT16, but its configuration says FP32: `.astype(np.float32)` makes it",
        ),
        (2, "FP32", [1, 5], "returned output 'OUT' with shape [1, 5], but its configuration says [1, 4]"),
        (3, "FP32", [4], "returned output 'OUT' with shape [4], but its configuration says [1, 4]"),
        (4, "FP32", [2, 4], "returned output 'OUT' with shape [2, 4], but its configuration says [1, 4]"),
    ],
)
def test_what_is_not_as_configured(server, number, datatype, shape, complaint):
    (passed_on,) = ask(server, "validates_no", number).json["outputs"]
    assert (passed_on["datatype"], passed_on["shape"]) == (datatype, shape)
    refused = ask(server, "validates_yes", number)
    assert (refused.status, refused.error) == (500, f"model 'validates_yes' {complaint}")


def test_a_refused_output_is_in_the_log(server):
    """Once a second at most, and then with the number of those like it that were not written."""
    refused = "refused a response: model 'refusing' returned output 'OUT' as INT16, but its configuration says FP32"
    for _ in range(20):
        assert ask(server, "refusing", 1).status == 500
    server.wait_for(refused)
    written = [line for line in log_lines(server.output) if line.text.startswith(refused)]
    more = sum(int(re.search(r"(\d+) more like it before", line.text)[1]) for line in written if "more" in line.text)
    assert len(written) + more <= 20
    assert len(written) < 20


@pytest.mark.spec("pb-E08")
def test_what_is_as_configured(server):
    (output,) = ask(server, "validates_yes", 0).json["outputs"]
    assert (output["datatype"], output["shape"]) == ("FP32", [1, 4])


def warnings_of(server, model, last):
    """The warnings about outputs of a model, once the log has one that contains ``last``."""
    server.wait_for(f"model '{model}' returned output [^\n]*{re.escape(last)}")
    begin = f"model '{model}' returned output "
    return [line.text.removeprefix(begin) for line in log_lines(server.output) if line.text.startswith(begin)]


ADVICE = "The log says this once. VALIDATE_OUTPUTS in the model's parameters turns such responses into errors"
MISNAMED = (f"'OTU', which its configuration does not have: clients never get it. Did you mean OUT? {ADVICE}",)
WRONG_TYPE = (
    f"'OUT' as FP64, but its configuration says FP32: `.astype(np.float32)` makes it. Clients get it as it is. {ADVICE}"
)


@pytest.mark.spec("pb-E08")
def test_an_unknown_output_is_dropped_or_refused(server, snapshot):
    assert ask(server, "validates_no", 5).json["outputs"] == []
    refused = ask(server, "validates_yes", 5)
    assert refused.status == 500
    assert refused.error == snapshot


@pytest.mark.spec("pb-E08")
def test_a_response_without_outputs_is_passed_on_or_refused(server):
    assert ask(server, "validates_no", 9).json["outputs"] == []
    refused = ask(server, "validates_yes", 9)
    assert (refused.status, refused.error) == (
        500,
        "model 'validates_yes' returned no output 'OUT', which its configuration has",
    )


@pytest.mark.spec("pb-E08")
@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        ((), "returned no output 'SECOND', which its configuration has. It returned FIRST"),
        (("SECOND",), "returned no output 'SECOND', which the request wants"),
        (("FIRST", "SECOND"), "returned no output 'SECOND', which the request wants. It returned FIRST"),
        (("FIRST",), ""),
    ],
)
def test_an_output_that_is_missing(server, outputs, complaint):
    reply = ask(server, "pair", 0, *outputs)
    if complaint:
        assert (reply.status, reply.error) == (500, f"model 'pair' {complaint}")
    else:
        assert [output["name"] for output in reply.json["outputs"]] == ["FIRST"]


@pytest.mark.spec("srv-R33")
def test_an_output_that_only_optional_inputs_read_may_be_missing(server, snapshot):
    assert [output["name"] for output in ask(server, "of_pair", 0, "OUT").json["outputs"]] == ["OUT"]
    refused = ask(server, "of_pair", 0, "OUT", "SECOND")
    assert refused.error == snapshot


@pytest.mark.spec("pb-E08")
def test_each_wrong_output_is_warned_of_once(server):
    for _ in range(3):
        for number in (0, 5, 2, 1):
            ask(server, "warned", number)
    shape = f"'OUT' with shape [1, 5], but its configuration says [-1, 4]. Clients get it as it is. {ADVICE}"
    assert warnings_of(server, "warned", "[1, 5]") == [*MISNAMED, shape]
    for number in (3, 5):
        ask(server, "rankless", number)
    assert warnings_of(server, "rankless", "OTU")[0].startswith(
        "'OUT' with shape [4], but its configuration says [-1, 4]."
    )


@pytest.mark.spec("pb-E08")
def test_a_missing_output_is_warned_of_once(server):
    """Not if only optional inputs read it, if the request does not want it, or if it has another name that is warned
    of."""
    assert ask(server, "of_half", 0, "OUT").status == 200
    assert ask(server, "lacks", 0, "FIRST").status == 200
    for number in (5, 0, 9):
        ask(server, "misnames", number)
    for outputs in ((), ("SECOND",), ()):
        assert ask(server, "lacks", 0, *outputs).status == 200
    server.wait_for("model 'lacks' returned no output")
    assert [
        line.text for line in log_lines(server.output) if re.search("'(lacks|half|misnames)' returned no", line.text)
    ] == [
        "model 'lacks' returned no output 'SECOND', which its configuration has. It returned FIRST. Clients get a response without it. "
        + ADVICE
    ]


def test_instances_share_a_warning(server):
    bodies = [{"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [5]}]}] * 40
    with ThreadPoolExecutor(8) as pool:
        assert {reply.status for reply in pool.map(lambda body: server.infer("twins", body), bodies)} == {200}
    assert warnings_of(server, "twins", "OTU") == list(MISNAMED)


def test_outputs_of_streams_and_calls_are_warned_of(server):
    assert ask(server, "calls", 0).status == 200
    assert warnings_of(server, "decoupled", "FP64") == [*MISNAMED, WRONG_TYPE]


def test_outputs_of_ensembles_steps_are_warned_of(server):
    ask(server, "ensemble", 5)
    assert warnings_of(server, "step", "OTU") == list(MISNAMED)


@pytest.mark.spec("pb-E08")
def test_several_outputs_of_one_name(server):
    """Clients of infer get all of them, as from the reference; everything that takes one takes the first."""
    for _ in range(3):
        outputs = ask(server, "several", 6).json["outputs"]
        assert [(output["name"], output["data"]) for output in outputs] == [("OUT", [value] * 4) for value in (1, 2, 3)]
    text = "'OUT' 3 times in one response. Clients of infer get all of them, and whatever takes one output takes the first. "
    assert warnings_of(server, "several", "3 times") == [text + ADVICE]
    refused = ask(server, "validates_yes", 6)
    assert (refused.status, refused.error) == (
        500,
        "model 'validates_yes' returned output 'OUT' 3 times in one response",
    )
    for model in ("ensemble", "calls_several"):
        assert [output["data"] for output in ask(server, model, 6).json["outputs"]] == [[1] * 4]
    assert server.request("POST", "/v2/models/several/generate", {"IN": 6}).json["OUT"] == [1] * 4
