"""Models with a PROCESS_GROUP: they share a process, and come, go and die in it without losing a request."""

import os
import signal
import sys
import threading

import numpy as np
import pytest

from tests.support.callers import ONE, caller, write_caller
from tests.support.gates import wait_until
from tests.support.inference import infer, strings
from tests.support.repositories import identity_config, write_model
from tests.support.server import serving

CONFIG = identity_config("TYPE_INT32", extra="instance_group { kind: KIND_CPU }")
IN = {"IN": np.zeros(1, np.int32)}
PID = """
import os
import time
import helper


class TritonPythonModel:
    def execute(self, requests):
        wait = int(requests[0].inputs()[0].as_numpy()[0])
        if wait:
            open(os.path.join(pb_utils.get_model_dir(), "executes"), "w").close()
            time.sleep(wait)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([os.getpid(), helper.NUMBER], np.int32))])]
"""

DANGLING = """
import threading


class TritonPythonModel:
    # Answers at once; a thread of it waits for another model, which is slow.
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="alone", inputs=[pb_utils.Tensor("IN", np.full(1, 3, np.int32))], requested_output_names=["OUT"]
        )
        threading.Thread(target=call.exec, daemon=True).start()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))])]
"""


def in_group(name="ocr", extra=""):
    return f'{CONFIG} parameters {{ key: "PROCESS_GROUP" value {{ string_value: "{name}" }} }} {extra}'


def write_member(repository, name, number, config=None):
    directory = write_model(repository, name, PID, in_group() if config is None else config)
    (directory / "1" / "helper.py").write_text(f"NUMBER = {number}\n")
    return directory


def pid_of(server, model, number):
    answer = infer(server, model, IN)
    assert answer.status == 200, answer.document
    pid, helper = answer["OUT"]
    assert helper == number  # of its own helper.py, though the other one is imported under the same name
    return int(pid)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("groups")
    write_member(repository, "detect", 1)
    write_member(repository, "read", 2)
    write_member(repository, "alone", 3, CONFIG)
    write_model(repository, "dangling", DANGLING, in_group())
    write_member(repository, "differs", 4, in_group(extra='parameters { key: "ZYGOTE" value { string_value: "no" } }'))
    write_member(repository, "misnamed", 5, in_group("o c r"))
    environment = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{sys.prefix}" }} }}'
    write_member(repository, "elsewhere", 6, in_group(extra=environment))
    return repository


@pytest.fixture(scope="module")
def server(repository):
    flags = ("--model-control-mode=explicit", "--load-model=detect", "--load-model=read", "--load-model=alone")
    with serving(repository, flags=flags) as server:
        yield server


def load(server, model, document=None):
    return server.request("POST", f"/v2/repository/models/{model}/load", "{}" if document is None else document)


def test_members_share_a_process(server):
    pids = {pid_of(server, "detect", 1), pid_of(server, "read", 2)}
    assert len(pids) == 1
    assert pid_of(server, "alone", 3) not in pids


def test_what_contradicts_the_others_is_refused(server):
    refused = load(server, "differs")
    assert refused.status == 400
    assert "cannot join PROCESS_GROUP 'ocr'" in refused.error
    assert "other ZYGOTE or PRELOAD parameters than the others: give all of them the same" in refused.error
    assert "parameters PROCESS_GROUP must be a name of letters" in load(server, "misnamed").error
    refused = load(server, "elsewhere")
    assert refused.status == 400
    assert (
        "and the others run on the server's own Python: give all of them the same EXECUTION_ENV_PATH" in refused.error
    )


def test_members_come_and_go(server, repository):
    pid = pid_of(server, "detect", 1)
    assert server.request("POST", "/v2/repository/models/read/unload", "{}").status == 200
    wait_until(lambda: "successfully unloaded 'read' version 1" in server.output, "the unload")
    assert pid_of(server, "detect", 1) == pid
    (repository / "read" / "1" / "helper.py").write_text("NUMBER = 7\n")
    assert load(server, "read").status == 200
    assert pid_of(server, "read", 7) == pid
    (repository / "read" / "1" / "helper.py").write_text("NUMBER = 2\n")
    code = (repository / "read" / "1" / "model.py").read_text()
    (repository / "read" / "1" / "model.py").write_text(f"{code}\nraise RuntimeError('broken')\n")
    assert "broken" in load(server, "read").error
    assert pid_of(server, "detect", 1) == pid
    assert pid_of(server, "read", 7) == pid
    (repository / "read" / "1" / "model.py").write_text(code)
    assert load(server, "read").status == 200
    assert pid_of(server, "read", 2) == pid


def test_a_member_that_leaves_while_a_thread_of_it_waits(server, repository):
    pid = pid_of(server, "detect", 1)
    assert load(server, "dangling").status == 200
    assert infer(server, "dangling", IN).status == 200
    wait_until((repository / "alone" / "1" / "executes").exists, "the call")
    assert server.request("POST", "/v2/repository/models/dangling/unload", "{}").status == 200
    wait_until(lambda: "successfully unloaded 'dangling' version 1" in server.output, "the unload")
    assert "keeps it alive" not in server.output
    assert pid_of(server, "detect", 1) == pid


def test_a_load_that_brings_a_configuration_joins_no_group(server):
    config = (
        '{"parameters": {"config": "{\\"name\\": \\"read\\", \\"backend\\": \\"python\\", \\"max_batch_size\\": 0}"}}'
    )
    config = config.replace(
        '\\"max_batch_size\\": 0',
        '\\"parameters\\": {\\"PROCESS_GROUP\\": {\\"string_value\\": \\"ocr\\"}}, '
        '\\"input\\": [{\\"name\\": \\"IN\\", \\"data_type\\": \\"TYPE_INT32\\", \\"dims\\": [-1]}], '
        '\\"output\\": [{\\"name\\": \\"OUT\\", \\"data_type\\": \\"TYPE_INT32\\", \\"dims\\": [-1]}], '
        '\\"instance_group\\": [{\\"kind\\": \\"KIND_CPU\\"}]',
    )
    reply = load(server, "read", config)
    assert reply.status == 200, reply
    assert pid_of(server, "read", 2) != pid_of(server, "detect", 1)
    assert load(server, "read").status == 200
    assert pid_of(server, "read", 2) == pid_of(server, "detect", 1)


def test_a_process_that_dies_answers_every_request_and_comes_back_whole(server, repository):
    pid = pid_of(server, "detect", 1)
    answers = {}

    def send(model):
        answers[model] = infer(server, model, {"IN": np.full(1, 60, np.int32)})

    threads = [threading.Thread(target=send, args=(model,)) for model in ("detect", "read")]
    for thread in threads:
        thread.start()
    for model in ("detect", "read"):
        wait_until(lambda model=model: (repository / model / "1" / "executes").exists(), f"{model}'s execute")
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    for model, answer in answers.items():
        assert answer.status == 500
        assert f"Stub process '{model}_0_0' is not healthy. The process was killed by signal 9" in answer.error
    server.wait_for(r"E.*process 'ocr_0' of a process group was killed by signal 9.* It ran 2 instances of its models")
    wait_until(lambda: all(infer(server, model, IN).status == 200 for model in ("detect", "read")), "both")
    assert pid_of(server, "detect", 1) == pid_of(server, "read", 2) != pid


def test_a_floor_keeps_models_apart(repository):
    flags = ("--model-control-mode=explicit", "--sandbox-floor=standard")
    with serving(repository, flags=flags) as server:
        refused = load(server, "detect")
    assert refused.status == 400
    assert (
        "PROCESS_GROUP would let it reach other models, and this server has --sandbox-floor=standard" in refused.error
    )


# --- Calls within the process ---

CHAIN = """
class TritonPythonModel:
    # Calls the models of its own name's path, "first-second-...", one after the other, each from within the last.
    def execute(self, requests):
        path = requests[0].request_id().split("-")
        if len(path) < 2:
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy() + 1)])]
        call = pb_utils.InferenceRequest(
            model_name=path[1], request_id="-".join(path[1:]), inputs=requests[0].inputs(), requested_output_names=["OUT"]
        )
        response = call.exec()
        if response.has_error():
            return [pb_utils.InferenceResponse([], response.error())]
        return [pb_utils.InferenceResponse(response.output_tensors())]
"""
SLEEPER = """
import time


class TritonPythonModel:
    def execute(self, requests):
        print("the sleeper sleeps")
        time.sleep(60)
"""
WHEREABOUTS = """
import threading


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([threading.get_ident()]))])]
"""
KEEPER = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept, self.buffer = [], np.zeros(10_000, np.int32)

    def execute(self, requests):
        # -1: edits its input. -2: keeps it. -3: what it has kept. Else: answers from a buffer that it uses again.
        data = requests[0].inputs()[0].as_numpy()
        if data[0] == -1:
            data[1] = 5
            result = data
        elif data[0] == -2:
            self.kept.append(data)
            result = np.ones(1, np.int32)
        elif data[0] == -3:
            result = self.kept.pop()
        else:
            self.buffer[:] = data[0]
            result = self.buffer
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", result)])]
"""
GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "calls" } }'
COPY = 'parameters { key: "INPUT_COPY" value { string_value: "yes" } }'


@pytest.fixture(scope="module")
def calling(tmp_path_factory):
    repository = tmp_path_factory.mktemp("calls")
    write_caller(repository, extra=f"{ONE} {GROUP}")
    for name, extra in (("keeper", GROUP), ("copying", GROUP + COPY)):
        write_model(repository, name, KEEPER, f"{CONFIG} {extra}")
    write_model(repository, "whereabouts", WHEREABOUTS, f"{identity_config('TYPE_INT64')} {ONE} {GROUP}")
    write_model(repository, "sleeper", SLEEPER, f"{CONFIG} {GROUP}")
    for name, extra in (("x", GROUP), ("y", GROUP), ("stuck", GROUP), ("outside", "")):
        write_model(repository, name, CHAIN, f"{CONFIG} {extra}")
    with serving(repository) as server:
        for model in ("keeper", "copying", "x", "y"):  # once it has answered, a model has heard that calls are for it
            infer(server, model, IN)
        infer(server, "whereabouts", {"IN": np.zeros(1, np.int64)})
        yield server


def statistics(server, model):
    return server.request("GET", f"/v2/models/{model}/stats").json["model_stats"][0]


@pytest.fixture
def lab(calling):
    return caller(calling)


def test_a_call_stays_in_the_process_and_counts_as_any_other(calling, lab):
    before = statistics(calling, "whereabouts")
    assert (
        lab("""
    threads = [int(value(call("whereabouts", IN=np.zeros(1, np.int64)).exec())[0]) for _ in range(5)]
    return [thread == threading.get_ident() for thread in threads]
    """)
        == [True] * 5
    )
    after = statistics(calling, "whereabouts")
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 5
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        spent = [figures["inference_stats"][part] for figures in (before, after)]
        assert spent[1]["count"] - spent[0]["count"] == 5
        assert spent[1]["ns"] >= spent[0]["ns"]


def test_a_failure_counts_as_any_other(calling, lab):
    name = 'pybackend_answers_total{code="INTERNAL",protocol="model"}'
    before, failures = calling.metrics(), statistics(calling, "keeper")["inference_stats"]["fail"]["count"]
    assert lab("return failure(call('keeper', IN=np.full(10_000, -1, np.int32)).exec())[0]") == "INTERNAL"
    assert statistics(calling, "keeper")["inference_stats"]["fail"]["count"] == failures + 1
    assert calling.metrics()[name] == before.get(name, 0) + 1


def test_edits_in_place_are_refused_unless_inputs_are_copied(lab):
    code = """
    data = np.full(10_000, -1, np.int32)
    response = call("{}", IN=data).exec()
    return [failure(response), int(data[1])] if response.has_error() else [int(value(response)[1]), int(data[1])]
    """
    (_, message), kept = lab(code.format("keeper"))
    assert "assignment destination is read-only" in message
    assert kept == -1
    assert lab(code.format("copying")) == [5, -1]
    small = code.replace("10_000", "10")
    assert lab(small.format("keeper")) == [5, -1]


def test_nobody_can_change_what_another_model_still_reads(lab):
    assert lab("""
    first = call("keeper", IN=np.array([1], np.int32)).exec()
    second = call("keeper", IN=np.array([2], np.int32)).exec()
    return [int(value(first)[0]), int(value(second)[0])]  # of one buffer, which is copied
    """) == [1, 2]
    assert lab("""
    data = np.full(10_000, -2, np.int32)
    call("keeper", IN=data).exec()
    try:
        data[:] = 7  # the model has kept it
        changed = True
    except ValueError:
        changed = False
    again = np.full(10_000, -2, np.int32)
    call("keeper", IN=again).exec()
    again[:] = 7  # by now it gets copies
    kept = [int(value(call("keeper", IN=np.array([-3], np.int32)).exec())[0]) for _ in range(2)]
    return [changed, kept]
    """) == [False, [-2, -2]]


@pytest.mark.parametrize(
    ("path", "cycle"),
    [
        ("x-y-x", "y -> x -> y"),
        ("x-y-outside-y", "outside -> y -> outside"),
        ("x-y-outside-x", "outside -> x -> y -> outside"),
    ],
)
def test_calls_that_can_never_be_served(calling, path, cycle):
    model, data = path.split("-")[0], np.zeros(1, np.int32)
    answer = infer(calling, model, {"IN": data}, id=path)
    assert answer.status == 503, answer.document
    assert f"models wait for each other and no instance is free: {cycle}." in answer.error
    assert infer(calling, model, {"IN": data}, id="x-y-outside")["OUT"].tolist() == [1]


def test_a_process_that_dies_within_a_nested_call(calling, lab):
    answers = []
    data = np.zeros(1, np.int64)
    thread = threading.Thread(
        target=lambda: answers.append(infer(calling, "stuck", {"IN": np.zeros(1, np.int32)}, id="stuck-sleeper"))
    )
    pid = lab("return os.getpid()")
    thread.start()
    wait_until(lambda: "the sleeper sleeps" in calling.output, "the nested call")
    os.kill(pid, signal.SIGKILL)
    thread.join()
    assert answers[0].status == 500
    assert "Stub process 'stuck_0_0' is not healthy. The process was killed by signal 9" in answers[0].error
    wait_until(lambda: infer(calling, "whereabouts", {"IN": data}).status == 200, "another process")
    wait_until(lambda: infer(calling, "caller", {"CODE": strings("return 1")}).status == 200, "the caller")


def test_a_busy_member_lets_others_wait_in_the_server(calling):
    """Calls and requests to one instance at a time, from within the process and from outside it."""
    data = np.zeros(1, np.int32)
    answers = []

    def send(model, path):
        answers.append(infer(calling, model, {"IN": data}, id=path))

    paths = [("x", "x-y"), ("y", "y"), ("outside", "outside-y"), ("outside", "outside-x-y")] * 10
    threads = [threading.Thread(target=send, args=each) for each in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * len(paths), [each.document for each in answers]
