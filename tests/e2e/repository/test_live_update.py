"""Models that are loaded again, resized and unloaded while clients use them, over HTTP and gRPC."""

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving
from tests.support.thorough import thorough

CLIENTS, RELOADS = 32, 5
TENSORS = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [2]))} ]
"""


def grouped(count, extra=""):
    return f"{TENSORS} instance_group {{ kind: KIND_CPU count: {count} {extra} }}"


LIMITED = 'rate_limiter { resources [ { name: "R" count: 1 } ] }'
OLDEST = "sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 8 } }"
DIRECT = "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 60000000 direct { } }"


def telling(number, before=""):
    """A model that answers with a number and its process."""
    return f"""
import os

class TritonPythonModel:
    def initialize(self, args):
        {before or "pass"}

    def execute(self, requests):
        answer = np.array([{number}, os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""


COUNTED = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        print("begins", args["model_name"], self.name, flush=True)
        self.name = f"{args['model_name']} {self.name}"

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((len(requests), 2), np.int32))])]

    def finalize(self):
        print("ends", self.name, flush=True)
"""
SUMMING = """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            number = int(request.inputs()[0].as_numpy().ravel()[0])
            self.sums[key] = number + (0 if request.flags() & 1 else self.sums.get(key, 0))
            answer = np.array([self.sums[key], os.getpid()], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
        return responses
"""
STREAMING = f"""
{GATE}
import os

class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(3):
                answer = np.array([number, os.getpid()], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
                if number == 0:
                    pass_gate(self.place, "first")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    repository = tmp_path_factory.mktemp("live")
    with serving(repository, flags=("--model-control-mode=explicit", "--rate-limit=execution_count")) as server:
        server.repository = repository
        yield server


@pytest.fixture
def server(shared):
    """The server, empty before and after each test."""
    yield shared
    for row in shared.request("POST", "/v2/repository/index", {"ready": True}).json:
        assert control(shared, row["name"], "unload").status == 200
    wait_until(lambda: shared.stub_pids() == [], lambda: f"processes: {shared.stub_pids()}")


def control(server, name, action="load"):
    return server.request("POST", f"/v2/repository/models/{name}/{action}", deadline_s=120)


def load(server, name):
    reply = control(server, name)
    assert reply.status == 200, reply.body


def told(server, name, **members):
    return infer(server, name, {"IN": np.zeros(1, np.float32)}, **members)["OUT"].tolist()


def lives(server, name):
    """The processes that a model's requests reach."""
    return {told(server, name)[1] for _ in range(30)}


class Crowd:
    """Clients that send requests to a model, half of them over HTTP and half over gRPC, until the end of a ``with``
    block.

    Attributes:
        counts: answers of each client.
        failures: what went wrong.
    """

    def __init__(self, server, model, size=CLIENTS):
        self.counts, self.failures = [0] * size, []
        self._server, self._model, self._stop = server, model, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(size)]

    def _run(self, index):
        kind, url = (http_client, self._server.url) if index % 2 else (grpc_client, self._server.grpc_url)
        array = np.zeros(100_000 if index % 8 == 0 else 4, np.float32)  # some bodies arrive while versions change
        tensor = kind.InferInput("IN", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        with kind.InferenceServerClient(url) as client:
            while not self._stop.is_set():
                try:
                    assert client.infer(self._model, [tensor]).as_numpy("OUT").shape == (2,)
                except Exception as error:
                    self.failures.append(repr(error))
                self.counts[index] += 1

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_answered(self):
        """Wait until each client has got another answer."""
        before = list(self.counts)
        wait_until(lambda: all(a > b for a, b in zip(self.counts, before, strict=True)), "clients get no answers")


@pytest.mark.spec("srv-R07")
@pytest.mark.spec("srv-R08")
def test_no_request_fails_while_a_model_is_replaced(server):
    write_model(server.repository, "m", telling(0), grouped(2))
    load(server, "m")
    with Crowd(server, "m") as crowd:
        for number in range(1, RELOADS + 1):
            crowd.wait_answered()
            write_model(server.repository, "m", telling(number), None)
            load(server, "m")
            assert told(server, "m")[0] == number
        write_model(server.repository, "m", telling(9, "raise ValueError('no weights')"), None)
        reply = control(server, "m")
        assert reply.status == 400
        assert (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: no weights"
            in reply.error
        )
        crowd.wait_answered()
        assert told(server, "m")[0] == RELOADS
    assert crowd.failures == []
    wait_until(lambda: len(server.stub_pids()) == 2, lambda: f"processes: {server.stub_pids()}")
    assert server.get("/v2/health/ready").status == 200


@pytest.mark.spec("srv-R10", "srv-R34")
@pytest.mark.parametrize(
    ("name", "limiter", "scheduling"),
    [
        ("one", "", ""),
        ("two", "", "dynamic_batching { }"),
        ("three", LIMITED, ""),
        ("four", "", OLDEST),
        ("five", "", DIRECT),
    ],
)
def test_instances_begin_and_end_one_to_one_and_load_waits_for_idle_ones(server, name, limiter, scheduling):
    """However instances come and go: what left has been finalized when the load returns, and nothing else has."""

    def groups(*counts):
        text = (
            f"{{ name: 'g{number}' count: {count} kind: KIND_CPU {limiter} }}"
            for number, count in enumerate(counts)
            if count
        )
        return f"{TENSORS} instance_group [ {', '.join(text)} ] {scheduling}"

    def said(word):
        return Counter(re.findall(rf"{word} {name} (\w+)", server.output))

    directory = write_model(server.repository, name, COUNTED, groups(3))
    present, begun, ended = set(), Counter(), Counter()
    for counts in ((3,), (4,), (2,), (1,), (1, 1), (1, 0), (1, 1), (0, 2), (1, 2)):
        (directory / "config.pbtxt").write_text(groups(*counts))
        load(server, name)
        wanted = {f"g{number}_{index}" for number, count in enumerate(counts) for index in range(count)}
        begun.update(wanted - present)
        ended.update(present - wanted)
        present = wanted
        assert len(server.stub_pids()) == len(wanted), counts
        assert (said("begins"), said("ends")) == (begun, ended), counts
    assert server.output.count(f"loading: {name}:1") == 1


BUSY = f"""
{GATE}
class TritonPythonModel:
    def initialize(self, args):
        self.place, self.name = args["model_repository"] + "/.pytest_cache", args["model_instance_name"]

    def execute(self, requests):
        pass_gate(self.place, self.name)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(2, np.int32))]) for _ in requests]

    def finalize(self):
        pass_gate(self.place, "finalize")
        mark(self.place, "finalized")
"""


def write_busy(repository):
    """Writes a model with two instances; returns its directory, and that of its gates, which is no part of it."""
    directory = write_model(repository, "busy", BUSY, grouped(2))
    place = directory / ".pytest_cache"
    place.mkdir()
    return directory, place


@contextmanager
def opened_in_the_end(*gates):
    """Whatever happens, nobody waits at the gates."""
    try:
        yield
    finally:
        for gate in gates:
            gate.open()


@pytest.mark.spec("srv-R10")
def test_a_load_waits_for_a_busy_instance_that_it_removes(server):
    """Until it has answered, and has been finalized; requests reach the others meanwhile."""
    directory, place = write_busy(server.repository)
    load(server, "busy")
    gates = [Gate(place, f"busy_0_{number}") for number in range(2)]
    finalize = Gate(place, "finalize")
    with ThreadPoolExecutor() as pool, opened_in_the_end(*gates, finalize):
        requests = [pool.submit(told, server, "busy") for _ in range(2)]
        for gate in gates:
            gate.wait_reached()
        (directory / "config.pbtxt").write_text(grouped(1))
        loading = pool.submit(load, server, "busy")
        config = "/v2/models/busy/config"
        wait_until(lambda: server.get(config).json["instance_group"][0]["count"] == 1, "it does not change")
        gates[0].open()
        told(server, "busy")
        assert not loading.done()
        gates[1].open()
        finalize.wait_reached()
        assert not loading.done()
        finalize.open()
        loading.result(60)
        assert (place / "finalized").read_text() == "x"
        assert len(server.stub_pids()) == 1
        assert [request.result(60) for request in requests] == [[0, 0]] * 2


def test_a_load_waits_no_longer_than_the_exit_limit(tmp_path):
    directory, place = write_busy(tmp_path)
    gates = [Gate(place, f"busy_0_{number}") for number in range(2)]
    Gate(place, "finalize").open()
    flags = ("--model-control-mode=explicit", "--load-model=busy", "--exit-timeout-secs=1")
    with serving(tmp_path, flags=flags) as server, ThreadPoolExecutor() as pool, opened_in_the_end(*gates):
        requests = [pool.submit(told, server, "busy") for _ in range(2)]
        for gate in gates:
            gate.wait_reached()
        (directory / "config.pbtxt").write_text(grouped(1))
        load(server, "busy")
        assert len(server.stub_pids()) == 2, "its request is not cut short"
        for gate in gates:
            gate.open()
        assert [request.result(60) for request in requests] == [[0, 0]] * 2
        wait_until(lambda: len(server.stub_pids()) == 1, "it does not end")


@pytest.mark.spec("srv-R10")
@pytest.mark.parametrize(
    ("name", "limiter", "batching"),
    [("plain", "", ""), *thorough(("batched", "", "dynamic_batching { }"), ("limited", LIMITED, ""))],
)
def test_instances_are_added_and_removed_in_place(server, name, limiter, batching):
    directory = write_model(server.repository, name, telling(1), grouped(1, limiter) + batching)
    load(server, name)
    (first,) = lives(server, name)
    with Crowd(server, name, size=8) as crowd:
        for count in (3, 2, 1, 2):
            (directory / "config.pbtxt").write_text(grouped(count, limiter) + batching)
            crowd.wait_answered()
            load(server, name)
            crowd.wait_answered()
            wait_until(lambda count=count: len(server.stub_pids()) == count, lambda: f"processes: {server.stub_pids()}")
            wait_until(lambda count=count: len(lives(server, name)) == count, "an instance gets no requests")
            wait_until(lambda: first in lives(server, name), "the first instance gets no requests")
        config = server.get(f"/v2/models/{name}/config").json
        assert config["instance_group"][0]["count"] == 2
        assert server.output.count(f"loading: {name}:1") == 1
    assert crowd.failures == []


@pytest.mark.spec("srv-R10")
def test_instances_that_cannot_be_added_leave_the_others_serving(server):
    fails = """
        if args["model_instance_name"].endswith("_2"):
            raise ValueError("no memory for a third")
"""
    directory = write_model(server.repository, "small", telling(1, fails.strip()), grouped(2))
    load(server, "small")
    before = lives(server, "small")
    (directory / "config.pbtxt").write_text(grouped(4))
    reply = control(server, "small")
    assert reply.status == 400
    assert reply.error.startswith(
        "load failed for model 'small': version 1 keeps its 2 instances: Internal: ValueError: no"
    )
    assert lives(server, "small") == before
    wait_until(lambda: len(server.stub_pids()) == 2, lambda: f"processes: {server.stub_pids()}")


@pytest.mark.spec("srv-R10")
@pytest.mark.parametrize("batching", [OLDEST, DIRECT])
def test_sequences_stay_at_an_instance_that_leaves(server, batching):
    name = "staying_oldest" if batching == OLDEST else "staying_direct"
    shape = [1] if batching == OLDEST else [1, 1]
    model = (
        SUMMING
        if batching == OLDEST
        else SUMMING.replace(
            "np.array([self.sums[key], os.getpid()], np.int32)", "np.array([[self.sums[key], os.getpid()]], np.int32)"
        )
    )
    directory = write_model(server.repository, name, model, grouped(2) + batching)
    load(server, name)

    def send(key, number, **flags):
        members = {"sequence_id": key, **{f"sequence_{flag}": value for flag, value in flags.items()}}
        return (
            infer(server, name, {"IN": np.full(shape, number, np.float32)}, parameters=members)["OUT"].ravel().tolist()
        )

    began = dict(send(key, key, start=True) for key in (1, 2))  # the sums are the keys
    assert len(set(began.values())) == 2
    (directory / "config.pbtxt").write_text(grouped(1) + batching)
    load(server, name)
    assert [send(key, 10) for key in (1, 2)] == [[key + 10, began[key]] for key in (1, 2)]
    (stays,) = {send(key, 5, start=True, end=True)[1] for key in (3, 4, 5)}
    (leaves,) = set(began.values()) - {stays}
    assert set(server.stub_pids()) == {stays, leaves}
    (directory / "config.pbtxt").write_text(grouped(2) + batching)
    load(server, name)
    assert [send(key, 100, end=True) for key in (1, 2)] == [[key + 110, began[key]] for key in (1, 2)]
    wait_until(lambda: leaves not in server.stub_pids(), "the instance that left does not end")
    assert len(server.stub_pids()) == 2
    both = {send(key, 1, start=True)[1] for key in (6, 7)}
    assert both == set(server.stub_pids())
    assert server.output.count(f"loading: {name}:1") == 1


def test_a_sequence_ends_on_the_version_on_which_it_began(server):
    batching = OLDEST
    write_model(server.repository, "summing", SUMMING, grouped(1) + batching)
    load(server, "summing")

    def send(key, number, size=1, **flags):
        members = {"sequence_id": key, **{f"sequence_{name}": value for name, value in flags.items()}}
        return infer(server, "summing", {"IN": np.full(size, number, np.float32)}, parameters=members)

    total, old = send(1, 1, start=True)["OUT"]
    assert total == 1
    send(2, 1, start=True)
    write_model(server.repository, "summing", SUMMING + "# newer\n", None)
    load(server, "summing")
    # Tensors that are already in the successor's memory are carried over.
    assert send(1, 10)["OUT"].tolist() == [11, old]
    assert send(1, 100, size=50_000)["OUT"].tolist() == [111, old]
    total, new = send(3, 5, start=True, end=True)["OUT"]
    assert (total, new != old) == (5, True)
    assert send(1, 1000, end=True)["OUT"].tolist() == [1111, old]
    unknown = send(1, 1)
    assert (unknown.status, "must specify the START flag" in unknown.error) == (400, True)
    assert len(server.stub_pids()) == 2
    assert send(2, 1, end=True)["OUT"].tolist() == [2, old]
    wait_until(lambda: len(server.stub_pids()) == 1, lambda: f"processes: {server.stub_pids()}")


def test_a_stream_ends_on_the_version_on_which_it_began(server):
    decoupled = "model_transaction_policy { decoupled: true }"
    directory = write_model(server.repository, "streaming", STREAMING, grouped(1) + decoupled)
    load(server, "streaming")
    (old,) = server.stub_pids()
    gate = Gate(directory, "first")
    answers, changed = [], threading.Condition()

    def on_answer(result, error):
        with changed:
            answers.append(error or result.as_numpy("OUT").tolist())
            changed.notify_all()

    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(on_answer)
        tensor = grpc_client.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        client.async_stream_infer("streaming", [tensor])
        gate.wait_reached()
        load(server, "streaming")  # the gate's mark has changed its files
        gate.open()
        with changed:
            assert changed.wait_for(lambda: len(answers) == 3, timeout=60), answers
        assert answers == [[number, old] for number in range(3)]
        client.stop_stream()
    wait_until(lambda: old not in server.stub_pids(), "the old version does not end")


@pytest.mark.thorough
def test_a_storm_of_loads_and_unloads_leaves_nothing_behind(server):
    write_model(server.repository, "stormy", telling(1), grouped(1))
    load(server, "stormy")

    def client(index):
        refused = []
        kind, url = (http_client, server.url) if index % 2 else (grpc_client, server.grpc_url)
        with kind.InferenceServerClient(url, **({"network_timeout": 120.0} if index % 2 else {})) as control:
            for turn in range(10):
                try:
                    if (turn + index) % 2:
                        control.unload_model("stormy")
                    else:
                        control.load_model("stormy")
                except InferenceServerException as error:
                    refused.append(str(error))
        return refused

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(client, range(10))) == [[]] * 10
    load(server, "stormy")
    assert told(server, "stormy")[0] == 1
    wait_until(lambda: len(server.stub_pids()) == 1, lambda: f"processes: {server.stub_pids()}")


def test_the_files_of_a_serving_model_may_vanish(server):
    directory = write_model(server.repository, "vanishing", telling(1), grouped(1))
    load(server, "vanishing")
    before = told(server, "vanishing")
    directory.rename(server.repository.parent / f"{server.repository.name}-gone")
    reply = control(server, "vanishing")
    assert reply.status == 500
    assert "failed to poll from model repository: there is no directory 'vanishing' in" in reply.error
    assert told(server, "vanishing") == before
    # A half-written version directory is no reason to stop what serves.
    write_model(server.repository, "vanishing", None, grouped(1))
    reply = control(server, "vanishing")
    assert reply.status == 400
    assert "load failed for model 'vanishing': version 1 is at UNAVAILABLE state: " in reply.error
    assert told(server, "vanishing") == before
    assert control(server, "vanishing", "unload").status == 200


def test_a_server_stops_in_the_middle_of_a_load(tmp_path):
    directory = write_model(
        tmp_path,
        "slow",
        f"{GATE}\nclass TritonPythonModel:\n"
        "    def initialize(self, args):\n        pass_gate(args['model_repository'], 'initialize')\n"
        "    def execute(self, requests):\n        return []\n",
        grouped(1),
    )
    gate = Gate(directory, "initialize")
    with (
        serving(tmp_path, flags=("--model-control-mode=explicit",)) as server,
        gate.holding(lambda: control(server, "slow")) as waiting,
    ):
        pids = server.stub_pids()
        assert server.stop() == 0
        reply = waiting.result()
        assert (reply.status, reply.error) == (503, "the server is stopping: it no longer loads or unloads models")
        assert len(pids) == 1
