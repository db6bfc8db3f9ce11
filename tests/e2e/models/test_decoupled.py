"""Decoupled models as HTTP clients and other models meet them: refused by the one, called by the others."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.gates import Gate, wait_until
from tests.support.inference import infer
from tests.support.log_lines import log_lines
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving
from tests.support.streams import DECOUPLED, ONE, function, through_front, write_front, write_streams

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT32", [-1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [-1]))} ]
{DECOUPLED}
{ONE}
"""
COROUTINE = """
import asyncio


class TritonPythonModel:
    def initialize(self, args):
        self.arrived = 0
        self.all_there = None

    async def execute(self, requests):
        # Nobody is answered before two requests are in here.
        if self.all_there is None:
            self.all_there = asyncio.Event()
        self.arrived += 1
        if self.arrived == 2:
            self.all_there.set()
        await self.all_there.wait()
        for request in requests:
            sender = request.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))]))
                await asyncio.sleep(0)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENDING = """
import os
import threading


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        self.ending = threading.Event()
        self.threads = []

    def execute(self, requests):
        for request in requests:
            self.threads.append(threading.Thread(target=self.work, args=[request.get_response_sender()]))
            self.threads[-1].start()
        {after}

    def work(self, sender):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int32))]))
        {between}
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.ending.wait()
        self.mark("thread")

    def finalize(self):
        self.mark("finalize")
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.mark("end")
        {last}

    def mark(self, what):
        with open(os.path.join(self.directory, "marks"), "a") as marks:
            print(what, file=marks)
"""


@served()
def server(repository):
    write_front(repository)
    write_streams(repository, "streams")
    write_streams(repository, "counted")
    write_model(repository, "coroutine", COROUTINE, f'{CONFIG} input {{ name: "CODE" data_type: TYPE_STRING dims: 1 }}')


def call(server, code, target="streams", **options):
    return through_front(server, target, code, **options)


# Front ends that have no streams


@pytest.mark.spec("pb-D08")
@pytest.mark.parametrize("path", ["/v2/models/streams/infer", "/v2/models/streams/versions/1/infer"])
def test_http_infer_refuses_decoupled_models(server, path):
    reply = server.request("POST", path, '{"inputs": []}')
    assert reply.status == 501
    assert reply.error.startswith("HTTP end point doesn't support models with decoupled transaction policy")


@pytest.mark.spec("pb-D08")
def test_refused_whatever_the_body(server):
    answer = infer(
        server, "streams", {"CODE": function("sender.send(out(1), FINAL)"), "IN": np.ones(100_000, np.int32)}
    )
    assert answer.status == 501
    assert answer.error.startswith("HTTP end point doesn't support models with decoupled transaction policy")


# Called by other models


@pytest.mark.spec("pb-D01")
@pytest.mark.parametrize("count", [0, 1, 30])
def test_any_number_of_responses(server, count):
    """As many as the input says, and one more, without outputs, for the final flag."""
    code = """
        for value in array(request, "IN")[1:]:
            sender.send(out(value))
        sender.send(flags=FINAL)
    """
    responses = call(server, code, values=tuple(range(count + 1)))
    assert [response.get("OUT") for response in responses] == [[value] for value in range(1, count + 1)] + [None]


@pytest.mark.spec("pb-D01")
def test_from_threads_after_execute_has_returned(server):
    code = """
        def work(numbers, after):
            for thread in after:
                thread.join()
            for number in numbers:
                sender.send(out(number))
        def last(threads):
            for thread in threads:
                thread.join()
            sender.send(out(-1), FINAL)
        second = threading.Thread(target=work, args=(range(10, 20), []))
        first = in_thread(work, range(10), [second]) if second.start() is None else None
        in_thread(last, [first, second])
    """
    assert [response["OUT"] for response in call(server, code)] == [[n] for n in (*range(10, 20), *range(10), -1)]


@pytest.mark.spec("pb-D02")
def test_list_in_a_decoupled_model(server):
    (response,) = call(server, "return [out(1)]")
    assert response == {
        "error": "Failed to process the request(s) for model 'streams_0_0', message: Python model 'streams_0_0' is "
        "using the decoupled mode and the execute function must return None.",
        "code": 1,
    }


@pytest.mark.spec("pb-D02")
def test_list_behind_the_final_flag(server):
    (response,) = call(server, "sender.send(out(1), FINAL)\nreturn [out(2)]")
    assert response["OUT"] == [1]


@pytest.mark.spec("pb-D03")
def test_coroutines_overlap(server):
    """Each waits for the other, in one instance."""
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda values: call(server, "", target="coroutine", values=values), [(1, 2), (3, 4)]))
    assert [[response.get("OUT") for response in responses] for responses in both] == [
        [[1], [2], None],
        [[3], [4], None],
    ]


@pytest.mark.spec("pb-D04")
def test_exception_in_a_coroutine_is_logged_and_answered(server):
    first, last = call(
        server, "sender.send(out(1))\nawait asyncio.sleep(0)\nraise ValueError('in the coroutine')", asynchronous=True
    )
    assert first["OUT"] == [1]
    expected = (
        "Failed to process the request(s) for model 'streams_0_0', message: ValueError: in the coroutine\n\nAt:\n"
    )
    assert last["error"].startswith(expected)
    assert last["code"] == 1
    server.wait_for("in the coroutine")
    (line,) = [line for line in log_lines(server.output) if "in the coroutine" in line.text]
    assert line.letter == "E"
    assert line.text.startswith(expected.partition("\n")[0])
    assert 'File "<streams>", line' in line.text
    assert [response.get("OUT") for response in call(server, "sender.send(out(5), FINAL)", asynchronous=True)] == [[5]]


@pytest.mark.spec("pb-D07")
@pytest.mark.parametrize(
    "code", ["sender.send(out(1))\ndel sender", "sender.send(out(1))\nkeep = [sender]\nkeep.append(keep)\ngc.collect()"]
)
def test_dropped_sender(server, code, snapshot):
    """The second one is only found by a later collection, which the model's next request brings."""
    with ThreadPoolExecutor(1) as pool:
        responses = pool.submit(call, server, code)
        while not responses.done():
            call(server, "gc.collect()\nsender.send(flags=FINAL)")
            threading.Event().wait(0.01)
    first, last = responses.result()
    assert first["OUT"] == [1]
    assert last["error"] == snapshot


@pytest.mark.spec("pb-R02")
def test_rescheduling_where_it_is_not_configured(server):
    """The log says that it is not done; whoever has the sender may still answer."""
    text = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured"
    code = """
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        in_thread(lambda: (time.sleep(0.01), sender.send(out(6), FINAL)))
    """
    assert [response["OUT"] for response in call(server, code)] == [[6]]
    wait_until(lambda: server.output.count(text) == 1, "it is logged")
    (line,) = [line for line in log_lines(server.output) if line.text.startswith(text)]
    assert line.letter == "E"


# Figures


@pytest.mark.spec("pb-S01")
def test_statistics_of_decoupled_requests(server):
    """A request counts once, however many responses it has; its time in `execute` ends when that returns."""
    labels = '{model="counted",version="1"}'

    def figures():
        samples = server.metrics()
        failures = samples.get('nv_inference_request_failure{model="counted",reason="BACKEND",version="1"}')
        names = ("request_success", "count", "exec_count", "compute_infer_duration_us", "request_duration_us")
        return [failures, *(samples[f"nv_inference_{name}{labels}"] for name in names)]

    assert figures() == [0, 0, 0, 0, 0, 0]
    late = """
        def work():
            for i in range(5):
                time.sleep(0.05)
                sender.send(out(i))
            sender.send(flags=FINAL)
        in_thread(work)
    """
    assert len(call(server, late, target="counted")) == 6
    failures, successes, inferences, executions, infer_us, request_us = figures()
    assert (failures, successes, inferences, executions) == (0, 1, 1, 1)
    assert request_us > 250_000
    assert infer_us < 100_000
    before = "sender.send(out(1))\nsender.send(flags=FINAL)\ntime.sleep(0.05)"
    assert len(call(server, before, target="counted")) == 2
    wait_until(lambda: figures()[3] == 2, "the execution is over soon")
    failures, successes, inferences, executions, infer_us, _ = figures()
    assert (failures, successes, inferences) == (0, 2, 2)
    assert infer_us >= 50_000
    # Failures: by an exception, by a response, by a sender that is lost.
    for code in ("raise ValueError", "sender.send(out(1))\nsender.send(failed('no'), FINAL)", "return"):
        assert "error" in call(server, code, target="counted")[-1]
    failures, successes, inferences, executions = figures()[:4]
    assert (failures, successes, inferences) == (3, 2, 2)


@pytest.mark.spec("pb-S01")
def test_failures_of_models_that_answer_once(server):
    """The front's own requests fail when it raises."""
    name = 'nv_inference_request_failure{model="front",reason="BACKEND",version="1"}'
    before = server.metrics()[name]
    for count in (1, 2):
        answer = infer(server, "front", {"CODE": function("")})  # without the parameter that it wants
        assert answer.status == 500
        assert server.metrics()[name] == before + count


# The end


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A server that has been stopped after each of its models had answered a request, or was answering it."""
    repository = tmp_path_factory.mktemp("ending")
    write_front(repository, count=6)
    variants = {
        "ordinary": {"after": "pass", "between": "pass", "last": "pass"},
        "raises": {"after": "pass", "between": "pass", "last": "raise ValueError('at the end of ' + self.directory)"},
        "streaming": {"after": "pass", "between": "import time; self.mark('sent'); time.sleep(0.7)", "last": "pass"},
        "endless": {"after": "pass", "between": "pass", "last": "self.ending.clear(); self.ending.wait()"},
    }
    front = CONFIG.replace(DECOUPLED, "")
    for name, pieces in variants.items():
        write_model(repository, name, ENDING.format(**pieces), CONFIG)
        write_model(repository, f"to_{name}", CALLER.format(target=name), front)
    with serving(repository, flags=("--exit-timeout-secs=2",)) as server:
        server.answers = {}

        def ask(name):
            server.answers[name] = infer(server, f"to_{name}", {"IN": np.ones(1, np.int32)})

        for name in ("ordinary", "raises", "endless"):
            ask(name)
        asking = threading.Thread(target=ask, args=["streaming"])
        asking.start()
        marks = repository / "streaming/marks"
        wait_until(lambda: marks.exists() and "sent" in marks.read_text(), "the model streams")
        began_s = time.monotonic()
        server.stop()
        asking.join()
        server.took_s = time.monotonic() - began_s
        server.repository = repository
    return server


CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="{target}", inputs=requests[0].inputs(), requested_output_names=[]
        )
        values = [r.output_tensors()[0].as_numpy()[0] for r in call.exec(decoupled=True) if r.output_tensors()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.int32))])]
"""


@pytest.mark.spec("pb-F01")
@pytest.mark.parametrize("model", ["ordinary", "streaming"])
def test_finalize_waits_for_the_threads_of_a_decoupled_model(stopped, model):
    """It is called once, after the last stream has ended, and may take the time to join threads."""
    assert stopped.answers[model]["OUT"].tolist() == [1]
    marks = (stopped.repository / model / "marks").read_text().split()
    assert marks[-3:] == ["finalize", "thread", "end"]
    assert marks.count("finalize") == 1


@pytest.mark.spec("pb-F02")
def test_exception_in_finalize_of_a_decoupled_model(stopped):
    assert (stopped.repository / "raises/marks").read_text().split() == ["finalize", "thread", "end"]
    assert "Failed to finalize model: ValueError: at the end of" in stopped.output


@pytest.mark.spec("pb-F03")
def test_finalize_that_never_returns_in_a_decoupled_model(stopped):
    assert stopped.took_s > 1.5
    assert "instance 'endless_0_0' missed its" in stopped.output


@pytest.mark.spec("pb-F03")
def test_stream_that_never_ends(tmp_path):
    """Its client is answered when the server's patience is over."""
    write_front(tmp_path, count=1)
    write_streams(tmp_path, "streams")
    gate = Gate(tmp_path / "streams", "forever")
    code = 'state["kept"] = sender\nsender.send(out(1))\nmark(state["directory"], "forever.reached")'
    inputs = {"CODE": function(code)}
    with (
        serving(tmp_path, flags=("--exit-timeout-secs=1",)) as server,
        gate.holding(lambda: infer(server, "front", inputs, parameters={"target": "streams"})) as asked,
    ):
        assert server.stop() == 1
        answer = asked.result()
    assert answer.status == 500
    assert answer.error.startswith("Stub process 'front_0_0' is not healthy.")
