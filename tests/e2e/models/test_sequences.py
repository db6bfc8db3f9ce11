"""Sequences as clients and models see them: who executes what, with which control tensors, and what is refused."""

import json
import os
import signal
import time
from contextlib import ExitStack

import numpy as np
import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

TELLING = (
    GATE
    + """
import json

def plain(tensor):
    values = tensor.as_numpy().ravel().tolist()
    return [value.decode() if isinstance(value, bytes) else value for value in values]

class TritonPythonModel:
    def initialize(self, args):
        self.directory, self.instance = args["model_repository"], args["model_instance_name"]
        self.sums = {}

    def execute(self, requests):
        batch = [{tensor.name(): plain(tensor) for tensor in request.inputs()} for request in requests]
        for request in requests:
            if request.request_id().startswith("hold"):
                pass_gate(self.directory, request.request_id())
        responses = []
        for place, request in enumerate(requests):
            key, value = request.correlation_id(), pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.sums[key] = value.sum() + (0 if request.flags() & 1 else self.sums.get(key, 0))
            seen = {
                "id": request.request_id(), "instance": self.instance, "place": place, "batch": batch, "pid": os.getpid(),
                "correlation_id": key, "flags": request.flags(), "inputs": [t.name() for t in request.inputs()],
                "sum": float(self.sums[key]), "shapes": {t.name(): t.shape() for t in request.inputs()},
            }
            text = np.array([json.dumps(seen).encode()], object).reshape(value.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]))
        return responses
"""
)
"""Tells each request what it was executed with, by whom, and the sum of its sequence's numbers."""

CALLING = """
class TritonPythonModel:
    def execute(self, requests):
        count = int(requests[0].inputs()[0].as_numpy().ravel()[0])
        texts = []
        for number in range(count):
            call = pb_utils.InferenceRequest(
                model_name="bare", requested_output_names=["OUT"], correlation_id="from a model",
                flags=(number == 0) | (number == count - 1) << 1,
                inputs=[pb_utils.Tensor("IN", np.array([number + 1], np.float32))],
            )
            for response in call.exec(decoupled=True):
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                texts += [t.as_numpy()[0] for t in response.output_tensors()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([b"\\n".join(texts)], object))])]
"""

TENSORS = f"input [ {tensors(IN=('TYPE_FP32', [1]))} ] output [ {tensors(OUT=('TYPE_STRING', [1]))} ]"
ALL_CONTROLS = """control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2.5 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] }
]"""
CPU2 = "instance_group { count: 2 kind: KIND_CPU }"
LONG = "max_sequence_idle_microseconds: 60000000"

MODELS = {
    "direct": f"max_batch_size: 3 sequence_batching {{ {LONG} direct {{ }} {ALL_CONTROLS % 'TYPE_UINT64'} }} {CPU2}",
    "unbatched": f"sequence_batching {{ {LONG} {ALL_CONTROLS % 'TYPE_INT32'} }}",
    "oldest": f"""max_batch_size: 4 sequence_batching {{ {LONG} oldest {{ max_candidate_sequences: 3 }}
        {ALL_CONTROLS % 'TYPE_STRING'} }}""",
    "ordered": f"""max_batch_size: 4 sequence_batching {{ {LONG} oldest {{ max_candidate_sequences: 3
        preserve_ordering: true }} }}""",
    "bare": f"sequence_batching {{ {LONG} }}",
    "utilized": f"""max_batch_size: 2 sequence_batching {{ {LONG} direct {{ minimum_slot_utilization: 1.0
        max_queue_delay_microseconds: 1000000 }} }}""",
    "short": "sequence_batching { max_sequence_idle_microseconds: 100000 }",
    "one_slot": f"sequence_batching {{ {LONG} }}",
    "mortal": f"sequence_batching {{ {LONG} }}",
}  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    repository = tmp_path_factory.mktemp("sequences")
    write_model(repository, "calling", CALLING, f'backend: "python" {TENSORS}')
    return {
        name: write_model(repository, name, TELLING, f'backend: "python" {TENSORS} {text}')
        for name, text in MODELS.items()
    }


@pytest.fixture(scope="module")
def server(directories):
    with serving(directories["direct"].parent) as server:
        yield server


def shape(model):
    return (1, 1) if "max_batch_size" in MODELS[model] else (1,)


def step(server, model, sequence_id, value=1, request_id="", **flags):
    parameters = {"sequence_id": sequence_id, **{f"sequence_{name}": flag for name, flag in flags.items()}}
    answer = infer(
        server, model, {"IN": np.full(shape(model), value, np.float32)}, id=request_id, parameters=parameters
    )
    return json.loads(answer["OUT"].ravel()[0]) if answer.status == 200 else answer


@pytest.fixture
def sending(server):
    """Sends requests without waiting for their replies, in an order that the server sees too."""
    with ExitStack() as stack:

        def send(model, sequence_id, value=1, request_id="", **flags):
            connection = stack.enter_context(connected(server.port))
            parameters = {"sequence_id": sequence_id, **{f"sequence_{name}": flag for name, flag in flags.items()}}
            timeout = parameters.pop("sequence_timeout", 0)
            if timeout:
                parameters["timeout"] = timeout
            tensor = {"name": "IN", "datatype": "FP32", "shape": list(shape(model)), "data": [value]}
            body = json.dumps({"id": request_id, "inputs": [tensor], "parameters": parameters}).encode()
            connection.send(post(f"/v2/models/{model}/infer", body))
            server.get("/v2/health/live")
            return connection

        yield send


@pytest.fixture
def held(server, sending, directories):
    """Holds a model's instance with the first request of a sequence; opens the gate in the end, whatever happens."""
    gates = []

    def hold(model, sequence_id, **flags):
        name = f"hold{time.monotonic_ns()}"
        gate = Gate(directories[model], name)
        gates.append(gate)
        connection = sending(model, sequence_id, request_id=name, start=True, **flags)
        gate.wait_reached()
        return gate, connection

    yield hold
    for gate in gates:
        gate.open()


def told(connection):
    reply = connection.reply()
    assert reply.status == 200, reply.body
    return json.loads(reply.json["outputs"][0]["data"][0])


# --- the direct strategy ---


@pytest.mark.spec("srv-S13", "srv-H21", "pb-C04", "pb-C05")
def test_a_sequence_stays_with_its_instance_and_its_model_is_told_where_it_is(server):
    first = step(server, "direct", 7, 2, start=True)
    others = [step(server, "direct", 100 + number, start=True) for number in range(4)]
    middle = step(server, "direct", 7, 3)
    last = step(server, "direct", 7, 5, end=True)
    assert {seen["instance"] for seen in (first, middle, last)} == {first["instance"]}
    assert [seen["sum"] for seen in (first, middle, last)] == [2, 5, 10]
    assert [seen["flags"] for seen in (first, middle, last)] == [1, 0, 2]
    assert {seen["correlation_id"] for seen in (first, middle, last)} == {7}
    assert first["inputs"] == ["IN", "START", "END", "READY", "CORRID"]
    assert set(map(tuple, first["shapes"].values())) == {(1, 1)}
    own = [seen["batch"][seen["place"]] for seen in (first, middle, last)]
    assert [batch["START"] for batch in own] == [[1], [0], [0]]
    assert [batch["END"] for batch in own] == [[-1.0], [-1.0], [2.5]]
    assert [batch["READY"] for batch in own] == [[True]] * 3
    assert [batch["CORRID"] for batch in own] == [[7]] * 3
    assert {seen["instance"] for seen in others} == {"direct_0_0", "direct_0_1"}, "sequences spread over instances"
    for number in range(4):
        step(server, "direct", 100 + number, end=True)


@pytest.mark.spec("srv-S13")
def test_a_sequence_keeps_its_place_in_the_batch_and_empty_slots_are_not_ready(server):
    seen = [step(server, "direct", 200 + number, 9, start=True) for number in range(5)]
    third = next(each for each in seen if each["place"] == 2)
    again = step(server, "direct", third["correlation_id"], 9)
    assert again["place"] == 2
    filled = again["batch"][:2]
    assert [batch["READY"] for batch in filled] == [[False]] * 2
    assert [batch["IN"] for batch in filled] == [[0.0]] * 2
    assert [(batch["START"], batch["END"], batch["CORRID"]) for batch in filled] == [([0], [-1.0], [0])] * 2
    for number in range(5):
        step(server, "direct", 200 + number, end=True)


@pytest.mark.spec("srv-S13")
def test_sequences_beyond_the_slots_wait_in_the_order_of_their_arrival(server, sending, held):
    gate, holder = held("one_slot", 1)
    waiting = [sending("one_slot", number, request_id=str(number), start=True, end=True) for number in (3, 2, 4)]
    ending = sending("one_slot", 1, request_id="1", end=True)
    gate.open()
    assert told(holder)["correlation_id"] == 1
    assert told(ending)["sum"] == 2, "the sequence that has the slot goes on although others wait"
    assert [told(connection)["correlation_id"] for connection in waiting] == [3, 2, 4]


def test_a_batch_waits_for_the_share_of_slots_that_it_is_to_have(server, sending):
    began = time.monotonic()
    alone = step(server, "utilized", 1, start=True)
    assert len(alone["batch"]) == 1
    assert time.monotonic() - began >= 1
    first, second = sending("utilized", 1, end=True), sending("utilized", 2, start=True)
    assert [len(told(connection)["batch"]) for connection in (first, second)] == [2, 2]
    assert len(step(server, "utilized", 2, end=True)["batch"]) == 2, "the first slot is empty"
    (found,) = server.get("/v2/models/utilized/stats").json["model_stats"]
    sizes = [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]]
    assert (sizes, found["inference_count"]) == ([(1, 1), (2, 2)], 4), "what was executed, and what clients have asked"


# --- the oldest strategy ---


@pytest.mark.spec("srv-S14", "srv-S16")
def test_sequences_share_batches_and_the_oldest_request_goes_first(server, sending, held):
    gate, holder = held("oldest", "a", end=True)
    waiting = [
        sending("oldest", key, request_id=key + str(number), start=number == 0, end=number == 1)
        for number in range(2)
        for key in ("b", "c")
    ]
    late = sending("oldest", "d", request_id="d", start=True, end=True)
    gate.open()
    assert told(holder)["batch"][0]["CORRID"] == ["a"]
    batches = [[inputs["CORRID"] for inputs in told(connection)["batch"]] for connection in waiting]
    assert batches[0] == batches[1] == [["b"], ["c"], ["d"]], "each gives its oldest, and the slot of the first is free"
    assert batches[2] == batches[3] == [["b"], ["c"]]
    assert told(late)["correlation_id"] == "d"


@pytest.mark.spec("srv-S14")
def test_only_so_many_sequences_are_candidates(server, sending, held):
    gate, holder = held("oldest", "a")
    starts = [sending("oldest", key, start=True) for key in "bcd"]
    gate.open()
    told(holder)
    assert [told(connection)["correlation_id"] for connection in starts[:2]] == ["b", "c"]
    ends = [sending("oldest", key, end=True) for key in "abc"]
    for connection in ends:
        told(connection)
    assert told(starts[2])["correlation_id"] == "d", "it had to wait until a slot was free"
    step(server, "oldest", "d", end=True)


def test_responses_leave_in_order_where_that_is_wanted(server, sending, held):
    gate, holder = held("ordered", 1)
    more = [sending("ordered", number, value=number, start=True, end=True) for number in (2, 3)]
    again = sending("ordered", 1, end=True)
    gate.open()
    assert told(holder)["sum"] == 1
    assert [told(connection)["sum"] for connection in more] == [2, 3]
    assert told(again)["sum"] == 2


# --- ids ---


@pytest.mark.spec("srv-S16", "srv-H21")
def test_string_ids_where_the_model_takes_them(server):
    seen = step(server, "oldest", "ä text", start=True, end=True)
    assert (seen["correlation_id"], seen["batch"][0]["CORRID"]) == ("ä text", ["ä text"])
    answer = step(server, "direct", "text", request_id="r1", start=True)
    assert (answer.status, answer.error) == (
        400,
        "[request id: r1] sequence batching control 'CORRID' data-type is 'BYTES', but model 'direct' expects 'UINT64'",
    )
    answer = step(server, "oldest", 5, start=True)
    assert answer.error == (
        "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'UINT64', but model 'oldest' expects "
        "'BYTES'"
    )
    assert step(server, "bare", "any", start=True, end=True)["correlation_id"] == "any"


@pytest.mark.spec("srv-S16", "srv-H21")
def test_numbers_and_strings_name_different_sequences(server):
    step(server, "bare", 5, start=True)
    answer = step(server, "bare", "5")
    assert answer.status == 400
    assert step(server, "bare", 5, end=True)["sum"] == 2


def test_ids_are_cut_to_the_type_in_which_the_model_wants_them(server):
    big = 2**63 + 5
    seen = step(server, "unbatched", big, start=True, end=True)
    assert (seen["correlation_id"], seen["batch"][0]["CORRID"]) == (big, [5])
    assert seen["shapes"]["CORRID"] == [1]
    seen = step(server, "direct", big, start=True, end=True)
    assert seen["batch"][seen["place"]]["CORRID"] == [big]


@pytest.mark.spec("pb-B05", "pb-B12")
def test_a_model_that_runs_a_sequence(server):
    answer = infer(server, "calling", {"IN": np.array([3], np.float32)})
    seen = [json.loads(text) for text in answer["OUT"][0].split(b"\n")]
    assert [each["sum"] for each in seen] == [1, 3, 6]
    assert [each["flags"] for each in seen] == [1, 0, 2]
    assert {each["correlation_id"] for each in seen} == {"from a model"}


# --- what is refused ---


@pytest.mark.spec("srv-S15")
def test_requests_that_belong_to_no_sequence(server):
    for nobody in (0, ""):
        answer = step(server, "direct", nobody, start=True)
        assert (answer.status, answer.error) == (
            400,
            "inference request to model 'direct' must specify a non-zero or non-empty correlation ID",
        )
    answer = infer(server, "direct", {"IN": np.ones((1, 1), np.float32)})
    assert answer.status == 400


@pytest.mark.spec("srv-S15")
def test_a_sequence_that_has_not_begun_or_has_ended(server):
    text = (
        "inference request for sequence {} to model 'direct' must specify the START flag on the first request of the "
        "sequence"
    )
    answer = step(server, "direct", 42)
    assert (answer.status, answer.error) == (400, text.format(42))
    step(server, "direct", 43, start=True, end=True)
    answer = step(server, "direct", 43)
    assert (answer.status, answer.error) == (400, text.format(43))


@pytest.mark.spec("srv-S15")
def test_a_request_with_several_items(server):
    answer = infer(
        server, "direct", {"IN": np.ones((2, 1), np.float32)}, parameters={"sequence_id": 1, "sequence_start": True}
    )
    assert (answer.status, answer.error) == (
        400,
        "inference request to model 'direct' must specify batch-size 1 due to requirements of sequence batcher",
    )


@pytest.mark.spec("srv-S15")
def test_a_sequence_that_is_silent_for_too_long_is_over(server, sending):
    assert step(server, "short", 1, start=True)["sum"] == 1
    waiting = sending("short", 2, value=3, start=True)
    assert told(waiting)["sum"] == 3, "the slot was free again"
    answer = step(server, "short", 1)
    assert answer.status == 400
    assert "must specify the START flag" in answer.error


def test_a_request_that_starts_a_sequence_again(server):
    assert step(server, "bare", 77, 5, start=True)["sum"] == 5
    assert step(server, "bare", 77, 3, start=True)["sum"] == 3
    server.wait_for("sequence 77 of model 'bare' starts again although it has not ended")
    assert step(server, "bare", 77, 1, end=True)["sum"] == 4


def test_a_sequence_that_gets_no_slot_in_time(server, sending, held):
    gate, holder = held("one_slot", 1)
    impatient = sending("one_slot", 2, start=True, timeout=50_000)
    reply = impatient.reply()
    assert (reply.status, reply.error) == (503, "timeout of the corresponding sequence has been expired")
    patient = sending("one_slot", 1, end=True, timeout=1)
    gate.open()
    told(holder)
    assert told(patient)["sum"] == 2, "the time-out is that of sequences without a slot"
    assert step(server, "one_slot", 2).status == 400


# --- cancellation, death ---


@pytest.mark.spec("srv-S26")
def test_with_one_request_of_a_sequence_all_that_wait_are_cancelled(server, sending, held):
    """In a slot, behind a request that runs, and in the queue for a slot. A sequence does not begin in the middle."""
    before = server.metrics().get('nv_inference_request_failure{model="one_slot",reason="CANCELED",version="1"}', 0)
    gate, holder = held("one_slot", 1)
    for sequence, start in ((1, False), (2, True)):
        first = sending("one_slot", sequence, start=start)
        others = [sending("one_slot", sequence) for _ in range(2)]
        first.socket.close()
        for other in others:
            reply = other.reply()
            assert (reply.status, reply.error) == (400, "a client cancelled another request of the same sequence")
    sample = 'nv_inference_request_failure{model="one_slot",reason="CANCELED",version="1"}'
    wait_until(lambda: server.metrics()[sample] == before + 6, "cancelled requests are not counted")
    reply = sending("one_slot", 2).reply()
    assert reply.status == 503
    assert reply.error.startswith("sequence 2 of model 'one_slot' is ended: its first request was not executed.")
    ending = sending("one_slot", 1, end=True)
    gate.open()
    told(holder)
    told(ending)
    assert step(server, "one_slot", 2, 4, start=True, end=True)["sum"] == 4


@pytest.mark.faults
def test_a_sequence_whose_process_died_is_not_continued_by_another_one(server, sending, snapshot):
    pid = step(server, "mortal", 1, start=True)["pid"]
    never_begun = sending("mortal", 2, value=8, start=True, end=True)
    os.kill(pid, signal.SIGKILL)
    server.wait_for("instance 'mortal_0' is restarted")
    answer = step(server, "mortal", 1)
    assert answer.status == 503
    assert answer.error.startswith("sequence 1 of model 'mortal' is ended: Stub process 'mortal_0' is not healthy")
    assert answer.error == snapshot
    assert answer.error.endswith(". The model's state for it is lost: start it again with the START flag")
    assert told(never_begun)["sum"] == 8, "nothing of it was lost"
    again = step(server, "mortal", 1, 3, start=True, end=True)
    assert (again["sum"], again["pid"] == pid) == (3, False)


@pytest.mark.faults
def test_requests_that_wait_behind_one_that_kills_its_process(server, sending, held):
    pid = step(server, "mortal", 4, start=True, end=True)["pid"]
    gate, holder = held("mortal", 5)
    behind = sending("mortal", 5)
    os.kill(pid, signal.SIGKILL)
    assert holder.reply().status == 500
    reply = behind.reply()
    assert (reply.status, reply.error.startswith("sequence 5 of model 'mortal' is ended: ")) == (503, True)
    wait_until(lambda: server.get("/v2/models/mortal/ready").status == 200, "the model never came back")
    gate.open()


# --- configuration ---


@pytest.mark.spec("srv-H04")
def test_control_inputs_are_not_in_the_metadata(server):
    metadata = server.get("/v2/models/direct").json
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["IN"]
    config = server.get("/v2/models/oldest/config").json["sequence_batching"]
    assert config["oldest"]["preferred_batch_size"] == [4]
    assert (
        server.get("/v2/models/direct/config").json["sequence_batching"]["max_sequence_idle_microseconds"] == 60000000
    )


def test_a_control_input_cannot_be_given_by_a_client(server):
    answer = infer(
        server,
        "direct",
        {"IN": np.ones((1, 1), np.float32), "START": np.ones((1, 1), np.int32)},
        parameters={"sequence_id": 1, "sequence_start": True},
    )
    assert answer.status == 400
