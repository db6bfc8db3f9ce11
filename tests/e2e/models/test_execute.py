"""``execute`` as HTTP clients see it: what it is given, what it may return, and what becomes of everything else."""

import json
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from tests.support.connection import connected
from tests.support.inference import answer_of, infer, infer_message
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import identity_config, tensors, write_model
from tests.support.served import served
from tests.support.server import serving

CONFIG = f"""
backend: "python"
max_batch_size: 8
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]), COUNT=("TYPE_INT32", [1]))} ]
"""
COUNTING = """
class TritonPythonModel:
    def execute(self, requests):
        assert type(requests) is list
        count = np.full((1, 1), len(requests), np.int32)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy()), pb_utils.Tensor("COUNT", count)])
            for r in requests
        ]
"""
RAISING = """
def fail(value):
    raise ValueError(f"xyz {value}")


class TritonPythonModel:
    def execute(self, requests):
        value = requests[0].inputs()[0].as_numpy()[0, 0]
        if value < 0:
            fail(value)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((1, 1), np.float32))]) for _ in requests]
"""
ASYNC = """
import asyncio


class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        values = await asyncio.gather(*(self.double(request) for request in requests))
        if values[0][0, 0] < 0:
            raise ValueError("negative")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for value in values]

    async def double(self, request):
        await asyncio.sleep(0.01)
        return request.inputs()[0].as_numpy() * 2
"""
FINALIZING = """
import os


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        with open(os.path.join(self.directory, "marker"), "a") as marker:
            print(os.getpid(), file=marker)
"""
PREFIX = "Failed to process the request(s) for model 'laboratory_0_0', message: "


@served()
def server(repository):
    write_laboratory(repository)
    for name, code in (
        ("counting", COUNTING),
        ("raising", RAISING),
        ("asynchronous", ASYNC),
    ):
        write_model(repository, name, code, CONFIG)


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


def column(*values):
    return np.array([values], np.float32)


@pytest.mark.spec("pb-E01")
def test_one_request_per_call_without_a_batcher(server):
    # Sent at once on many connections, so that they do reach the server together.
    message = infer_message("counting", {"IN": column(1, 2)})
    with connected(server.port) as first, connected(server.port) as second:
        for connection in (first, second):
            connection.send(message * 30)
        for connection in (first, second):
            for reply in connection.replies(30):
                answer = answer_of(reply)
                assert answer["COUNT"].tolist() == [[1]]
                assert answer["OUT"].tolist() == [[1, 2]]
    statistics = {name: value for name, value in server.metrics().items() if 'model="counting"' in name}
    executions = sum(value for name, value in statistics.items() if name.startswith("nv_inference_exec_count"))
    assert executions == 60


@pytest.mark.spec("pb-E02")
@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "return tuple(out(OUT=np.ones(1)))",
            "Expected a list in the execute return, found type '<class 'tuple'>'.",
        ),
        (
            "return out(OUT=np.ones(1)) * 2",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2\n",
        ),
        (
            "return [7]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\nreturn out(OUT=np.ones(1))",
            "Expected a None object in the execute function return list for reschduled request, found type "
            "'<class 'c_python_backend_utils.InferenceResponse'>'.",
        ),
    ],
)
def test_what_may_not_be_returned(lab, statement, text):
    answer = lab(statement)
    assert (answer.status, answer.error) == (500, PREFIX + text)


@pytest.mark.spec("pb-E03")
def test_exception_with_its_place(server):
    file = server.repository / "raising/1/model.py"
    answer = infer(server, "raising", {"IN": column(-2)})
    assert answer.status == 500
    assert answer.error == (
        "Failed to process the request(s) for model 'raising_0', message: ValueError: xyz -2.0\n\nAt:\n"
        f"  {file}(5): fail\n  {file}(12): execute\n"
    )
    assert infer(server, "raising", {"IN": column(2)})["OUT"].tolist() == [[1]]


@pytest.mark.spec("pb-E04")
def test_error_as_a_response(lab):
    answer = lab(
        """
        error = pb_utils.TritonError("no such thing: \\u00e4 \\U0001f600", pb_utils.TritonError.NOT_FOUND)
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", np.ones(3))], error=error)]
        """
    )
    assert (answer.status, answer.document) == (404, {"error": "no such thing: ä 😀"})


@pytest.mark.spec("pb-E06")
def test_unrequested_outputs_are_dropped(lab):
    code = "return out(OTHER=np.ones(2), OUT1=np.ones(1), OUT0=np.zeros(1), SURPLUS=np.ones(10**6))"
    everything = lab(code)
    # Nothing was requested, which means all that is configured; the order is the model's.
    assert list(everything.outputs) == ["OUT1", "OUT0"]
    parameters = {"binary_data": True}
    one = lab(code, _outputs=[{"name": "OUT0", "parameters": parameters}])
    assert {name: array.tolist() for name, array in one.outputs.items()} == {"OUT0": [0]}
    names = lab("return out(OUT=text(*sorted(request.requested_output_names())))", _outputs=[{"name": "OUT"}])
    assert names["OUT"].tolist() == [b"OUT"]
    names = lab("return out(OUT=text(*sorted(request.requested_output_names())))")
    assert names["OUT"].tolist() == [b"OUT", b"OUT0", b"OUT1"]


@pytest.mark.spec("pb-E07")
def test_missing_output_is_no_error(lab):
    answer = lab("return out(OUT0=np.ones(2))", _outputs=[{"name": "OUT1"}, {"name": "OUT0"}])
    assert {name: array.tolist() for name, array in answer.outputs.items()} == {"OUT0": [1, 1]}
    nothing = lab("return [pb_utils.InferenceResponse()]")
    assert (nothing.status, nothing.outputs) == (200, {})


def test_other_datatypes_and_shapes_than_configured_are_sent_as_they_are(lab):
    # OUT is configured as FP32 with one dimension. Checking that is an option that nobody asked for here.
    answer = lab("return out(OUT=np.arange(6, dtype=np.int16).reshape(2, 3), OUT0=text('a', 'b'), OUT1=np.array(1.5))")
    described = [(output["name"], output["datatype"], output["shape"]) for output in answer.document["outputs"]]
    assert described == [("OUT", "INT16", [2, 3]), ("OUT0", "BYTES", [2]), ("OUT1", "FP64", [])]
    assert answer["OUT"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.spec("pb-E09")
@pytest.mark.parametrize("statement", ["return None", "return [None]", "pass"])
def test_nothing_returned_is_answered(lab, statement):
    answer = lab(statement)
    assert answer.status == 500
    assert answer.error.startswith("The model returned no response for this request")


@pytest.mark.parametrize("coroutine", [False, True])
def test_nothing_returned_leaves_a_line_with_the_place(tmp_path, coroutine):
    word = "async def" if coroutine else "def"
    code = f"class TritonPythonModel:\n    {word} execute(self, requests):\n        self.answer = 42\n"
    write_model(tmp_path, "forgets", code, identity_config())
    with serving(tmp_path) as server:
        for _ in range(2):
            assert infer(server, "forgets", {"IN": np.ones(1, np.float32)}).status == 500
        server.wait_for(r"forgets_0/model\.py:4\] \"The model returned no response for this request: ")
        assert len(re.findall(r"forgets_0/model\.py:4\] \"The model returned", server.output)) == 1


@pytest.mark.spec("pb-E11")
def test_async_execute(server):
    for value in (1, 2, 3):
        assert infer(server, "asynchronous", {"IN": column(value)})["OUT"].tolist() == [[2 * value]]
    failed = infer(server, "asynchronous", {"IN": column(-1)})
    assert failed.status == 500
    assert "message: ValueError: negative\n\nAt:\n" in failed.error
    assert infer(server, "asynchronous", {"IN": column(4)})["OUT"].tolist() == [[8]]


@pytest.mark.spec("pb-E13")
@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("sys.exit(3)", "SystemExit: 3\n\nAt:\n  <laboratory>(2): run\n"),
        ("sys.exit()", "SystemExit: \n\nAt:\n"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: \n\nAt:\n"),
        ("raise GeneratorExit('over')", "GeneratorExit: over\n\nAt:\n"),
        ("raise MemoryError", "MemoryError: \n\nAt:\n"),
        ("class Odd(BaseException):\n    pass\nraise Odd('odd')", "Odd: odd\n\nAt:\n"),
        ("raise OSError(28, 'No space left on device')", "OSError: [Errno 28] No space left on device\n\nAt:\n"),
    ],
)
def test_exceptions_that_end_programs_do_not_end_the_model(lab, statement, text):
    pid = lab("return out(OUT=text(os.getpid()))")["OUT"][0]
    answer = lab(statement)
    assert answer.status == 500
    assert answer.error.startswith(PREFIX + text)
    assert lab("return out(OUT=text(os.getpid()))")["OUT"][0] == pid


def test_signals_of_a_terminal_look_ignored_to_the_model(lab):
    answer = lab(
        "import signal\nos.kill(os.getpid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGTERM)\nreturn out(OUT=np.ones(1))"
    )
    assert answer["OUT"].tolist() == [1]


@pytest.mark.spec("pb-E14")
def test_signals_to_everybody_let_models_finalize(tmp_path):
    """What a terminal's Ctrl-C, or a supervisor that signals a whole group or control group, does."""
    directory = write_model(tmp_path, "finalizing", FINALIZING, CONFIG + "instance_group { count: 2 kind: KIND_CPU }")
    with serving(tmp_path) as server:
        pids = server.stub_pids()
        assert len(pids) == 2
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            for pid in pids:
                os.kill(pid, number)
        # Still there, and still serving.
        assert infer(server, "finalizing", {"IN": column(2)})["OUT"].tolist() == [[2]]
        assert server.stub_pids() == pids
        assert not (directory / "marker").exists()
        assert server.stop(signal.SIGINT) == 0
    assert sorted(map(int, (directory / "marker").read_text().split())) == sorted(pids)


def test_threads_that_the_model_started_run_between_requests(lab):
    lab(
        """
        state["ticks"] = 0
        state["go_on"] = True
        def tick(state=state, sleep=time.sleep):  # this code's own names are gone when it has returned
            while state["go_on"]:
                state["ticks"] += 1
                sleep(0.002)
        state["thread"] = threading.Thread(target=tick, daemon=True)
        state["thread"].start()
        return out(OUT=np.ones(1))
        """
    )
    first = int(lab("return out(OUT=text(state['ticks']))")["OUT"][0])
    deadline_s = time.monotonic() + 60
    while int(lab("return out(OUT=text(state['ticks']))")["OUT"][0]) < first + 5:
        assert time.monotonic() < deadline_s, "the model's thread does not run while it waits for requests"
        threading.Event().wait(0.01)
    lab("state['go_on'] = False\nstate.pop('thread').join()\nreturn out(OUT=np.ones(1))")


def test_subprocesses_of_the_model(lab):
    answer = lab(
        """
        import subprocess
        child = subprocess.run([sys.executable, "-c", "import sys; print('out'); sys.exit(3)"], capture_output=True)
        pipe = os.popen("echo popen").read()
        pid = os.fork()
        if not pid:
            os._exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return out(OUT=text(child.stdout.decode().strip(), child.returncode, pipe.strip(), status))
        """
    )
    assert answer["OUT"].tolist() == [b"out", b"3", b"popen", b"7"]


def test_forked_processes_can_be_terminated(lab):
    """The stub takes no notice of SIGTERM; what a model forks must, in whatever thread it does."""
    answer = lab(
        """
        import multiprocessing, signal
        context = multiprocessing.get_context("fork")
        processes = []
        def start(process=context.Process, processes=processes, target=time.sleep):
            processes.append(process(target=target, args=[1000]))
            processes[-1].start()
        thread = threading.Thread(target=start)
        start(), thread.start(), thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
        [process.terminate() for process in processes]
        [process.join() for process in processes]
        return out(OUT=text(*(process.exitcode for process in processes)))
        """
    )
    assert answer["OUT"].tolist() == [b"-15", b"-15"]


def test_multiprocessing_in_the_model(lab):
    answer = lab(
        """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            values = pool.map(abs, range(-20, 0))
        return out(OUT=np.array(values, np.int32))
        """
    )
    assert answer["OUT"].tolist() == list(range(20, 0, -1))


def test_workers_of_the_model_can_be_terminated(lab):
    """The stub itself shrugs SIGTERM off; a worker that did so too would hang whoever ends a pool of them."""
    answer = lab(
        """
        import multiprocessing
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        worker.terminate()
        worker.join(60)
        return out(OUT=np.array([worker.exitcode], np.int32))
        """
    )
    assert answer["OUT"].tolist() == [-signal.SIGTERM]


def test_parameters_id_and_version_reach_the_model(lab):
    answer = lab(
        "return out(OUT=text(request.request_id(), request.parameters(), request.timeout(), request.correlation_id(), request.flags()))",
        _id="client-7",
        _parameters={"text": "ä", "number": 3, "yes": True, "ratio": 0.5},
    )
    request_id, parameters, *rest = answer["OUT"].tolist()
    assert request_id == b"client-7"
    assert json.loads(parameters) == {"text": "ä", "number": 3, "yes": True, "ratio": 0.5}
    assert rest == [b"0", b"0", b"0"]
    assert answer.document["id"] == "client-7"
