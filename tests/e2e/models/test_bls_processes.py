"""Calls from a model's own threads, and from the processes that it forks: pools, forks of forks, their errors, their
end."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.support.callers import HELPERS, ONE, caller, write_caller, write_targets
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.repositories import write_model
from tests.support.server import free_of_processes, serving

NUMBERS = f"""
backend: "python"
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_STRING dims: 1 }} ]
{ONE}
"""
POOLED = (
    HELPERS
    + """
import multiprocessing


def double(number):
    return value(call("double", IN=[number]).exec())[0], os.getpid()


def attempt(_):
    return raised(call("double", IN=[1]).exec)


class TritonPythonModel:
    def initialize(self, args):
        self.pool = multiprocessing.get_context("fork").Pool(2)
        self.early = self.pool.map(attempt, [0])

    def execute(self, requests):
        (request,) = requests
        rows = self.pool.map(double, request.inputs()[0].as_numpy().tolist(), chunksize=1)
        found = {"doubled": [row[0] for row in rows], "pids": [row[1] for row in rows], "early": self.early}
        return [pb_utils.InferenceResponse([tensor("OUT", [json.dumps(found)])])]

    def finalize(self):
        self.pool.close()
        self.pool.join()
"""
)
KEPT_OPEN = POOLED.replace("self.pool.close()\n        self.pool.join()", "pass")
FROM_IMPORT = (
    HELPERS
    + """
import multiprocessing


def attempt(_):
    return raised(lambda: value(call("double", IN=[4]).exec()))

pool = multiprocessing.get_context("fork").Pool(1)


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([tensor("OUT", [json.dumps(pool.map(attempt, [0]))])])]

    def finalize(self):
        pool.terminate()
"""
)
SPAWNING = (
    HELPERS
    + """
import multiprocessing

import worker


class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context(METHOD).Pool(1) as pool:
            found = pool.map(worker.attempt, [1])
        return [pb_utils.InferenceResponse([tensor("OUT", [json.dumps(found)])])]
"""
)
WORKER = """
import numpy as np
import triton_python_backend_utils as pb_utils

def attempt(number):
    request = pb_utils.InferenceRequest(
        model_name="double", inputs=[pb_utils.Tensor("IN", np.array([number], np.float32))], requested_output_names=[]
    )
    try:
        return ["nothing", str(request.exec())]
    except Exception as error:
        return [type(error).__name__, str(error)]
"""
BY_CODE = """
class TritonPythonModel:
    def execute(self, requests):
        code = getattr(pb_utils.TritonError, ["NOT_FOUND", "CANCELLED"][int(requests[0].inputs()[0].as_numpy()[0])])
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("on purpose", code)) for _ in requests]
"""
IN_A_FORK = """
import multiprocessing
context = multiprocessing.get_context("fork")
def forked(function, *arguments):
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(function(*arguments)))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    assert process.exitcode == 0
    return found
"""
"""Lets code run a function in a fork."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bls_processes")
    write_caller(repository)
    write_targets(repository, "double", "repeat", "describe", "bytes")
    write_model(repository, "pooled", POOLED, NUMBERS)
    write_model(repository, "kept_open", KEPT_OPEN, NUMBERS)
    write_model(repository, "from_import", FROM_IMPORT, NUMBERS)
    for method in ("spawn", "forkserver"):
        directory = write_model(repository, method, SPAWNING.replace("METHOD", repr(method)), NUMBERS)
        (directory / "1/worker.py").write_text(WORKER)
    write_model(repository, "by_code", BY_CODE, NUMBERS)
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        pids = server.stub_pids()
        yield server
        assert server.stub_pids() == pids, "a model's process died and was restarted"
        descendants = _descendants(server.process.pid)
        assert server.stop() == 0
        assert free_of_processes(descendants), "what models have forked outlives them"


@pytest.fixture(scope="module")
def lab(server):
    return caller(server)


@pytest.fixture(scope="module")
def forks(lab):
    """Code that may call ``forked(function, *arguments)``."""
    return lambda code, **arguments: lab(IN_A_FORK + textwrap.dedent(code), **arguments)


def _descendants(pid):
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def said(server, model, numbers=(1,)):
    """What such a model answers, as plain data."""
    return json.loads(infer(server, model, {"IN": np.array(numbers, np.float32)})["OUT"][0])


# --- Threads ---


@pytest.mark.spec("pb-B09")
@pytest.mark.parametrize("size", [2, 5000, 300_000], ids=["in_frame", "in_memory", "off_the_loop"])
def test_calls_from_threads(lab, size):
    code = f"""
    def run(row):
        for number in range(5):
            array = np.full({size}, 10 * row + number, np.float32)
            found = call("double", IN=array).exec().output_tensors()[0].as_numpy()
            assert np.array_equal(found, array * 2)
        return row
    return in_threads(run, *range(12))
    """
    assert lab(code) == list(range(12))


@pytest.mark.spec("pb-B09")
def test_streams_in_threads(lab):
    code = """
    def run(row):
        return [value(response) for response in call("repeat", IN=[row]).exec(decoupled=True)]
    return in_threads(run, *range(10))
    """
    assert lab(code) == [[[number] for number in range(row)] + [None] for row in range(10)]


def test_threads_that_switch_at_every_turn(lab):
    code = """
    def run(row):
        for number in range(150):
            assert value(call("double", IN=[row, number]).exec()) == [2 * row, 2 * number]
            assert len(list(call("repeat", IN=[number % 4]).exec(decoupled=True))) == number % 4 + 1
        return row
    sys.setswitchinterval(1e-6)
    try:
        return in_threads(run, *range(6))
    finally:
        sys.setswitchinterval(5e-3)
    """
    assert lab(code) == list(range(6))


def test_a_thread_that_goes_on_between_requests(lab):
    """Its calls are served while the model waits for requests, and while it runs one."""
    begin = """
    state["numbers"], state["stop"] = [], threading.Event()
    def run():
        while not state["stop"].is_set():
            state["numbers"].append(value(call("double", IN=[len(state["numbers"])]).exec())[0])
    state["thread"] = threading.Thread(target=run)
    state["thread"].start()
    """
    assert lab(begin + "return 1") == 1
    here = "before = len(state['numbers'])\nwhile len(state['numbers']) < before + 20:\n    {}\nreturn True"
    for meanwhile in ("time.sleep(0.001)", "pass", "call('double', IN=[1]).exec()"):
        assert lab(here.format(meanwhile)) is True
    # Nobody asks this process for anything: the thread's replies are read all the same.
    before = lab("return len(state['numbers'])")
    wait_until(lambda: lab("return len(state['numbers'])") > before + 20, "the thread's calls are not served")
    numbers = lab("state.pop('stop').set()\nstate.pop('thread').join()\nreturn state.pop('numbers')")
    assert numbers == [2 * number for number in range(len(numbers))]


def test_executors(lab):
    code = """
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(40) as pool:
        return [found[0] for found in pool.map(lambda n: value(call("double", IN=[n]).exec()), range(400))]
    """
    assert lab(code) == [2 * number for number in range(400)]


# --- Pools of forks ---


@pytest.mark.spec("pb-B09")
@pytest.mark.parametrize("model", ["pooled", "kept_open"])
def test_a_pool_made_in_initialize(server, model):
    for _ in range(2):
        found = said(server, model, range(20))
        assert found["doubled"] == [2 * number for number in range(20)]
        assert not {*found["pids"]} & {*server.stub_pids()}
    kind, message = found["early"][0]
    assert kind == "TritonModelException"
    assert message.startswith("BLS is only supported during the 'execute' function.")


@pytest.mark.spec("pb-B09")
@pytest.mark.parametrize("kind", ["Pool", "ProcessPoolExecutor"])
def test_a_pool_made_in_execute(lab, kind):
    pools = {
        "Pool": "multiprocessing.get_context('fork').Pool(3)",
        "ProcessPoolExecutor": "ProcessPoolExecutor(3, multiprocessing.get_context('fork'))",
    }
    code = f"""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    with {pools[kind]} as pool:
        return list(pool.map(each, range(12)))
    """
    define = """
    def each(number):
        return value(call("double", IN=[number]).exec())[0]
    each.__module__, each.__qualname__ = __name__, "each"
    globals()["each"] = each
    """
    assert lab(define + code) == [2 * number for number in range(12)]


@pytest.mark.spec("pb-B09")
def test_a_bare_fork(lab):
    code = """
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writes, json.dumps(value(call("double", IN=[21]).exec())).encode())
        finally:
            os._exit(0)
    os.close(writes)
    found = os.read(reads, 100)
    os.close(reads)
    assert os.waitpid(pid, 0) == (pid, 0)
    return [json.loads(found), value(call("double", IN=[1]).exec())]
    """
    assert lab(code) == [[42], [2]]


def test_a_pool_made_while_the_model_file_is_imported(server):
    """Whether such an early fork finds the way or not: it is told, and the model goes on."""
    ((kind, message),) = said(server, "from_import")
    assert (kind, message) == ("nothing", "[8.0]") or message.startswith("BLS is only supported during the 'execute'")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_no_forks(server, method):
    """They share nothing with the model's process, and are told so at once."""
    ((kind, message),) = said(server, method)
    assert kind == "TritonModelException"
    assert message.startswith("BLS is only supported during the 'execute' function.")
    assert "fork" in message


# --- What forks can do, and what not ---


@pytest.mark.spec("pb-B09")
def test_everything_of_a_call_comes_through(forks):
    code = """
    def run():
        response = call(
            "describe", ["OUT1"], IN=[1, 2], TEXT=["a", b"\\x00", None], request_id="r", correlation_id="s", flags=3,
            timeout=5_000_000_000, parameters={"yes": True, "n": -7, "t": "text"}, model_version=1,
        ).exec()
        return [[item.name() for item in response.output_tensors()], value(response, "OUT1"), response.parameters()]
    return forked(run)
    """
    names, (about,), parameters = forks(code)
    assert names == ["OUT1"]
    assert json.loads(parameters) == {"answered": True, "count": 7, "by": "describe"}
    assert json.loads(about) == {
        "id": "r",
        "correlation_id": "s",
        "flags": 3,
        "timeout": 5_000_000_000,
        "parameters": {"yes": True, "n": -7, "t": "text"},
        "requested": ["OUT1"],
        "inputs": {"IN": ["float32", [2]], "TEXT": ["object", [3]]},
    }


def test_large_tensors_in_forks(forks):
    code = """
    def run():
        array = np.arange(20_000_000, dtype=np.uint8)
        found = call("bytes", DATA=array).exec().output_tensors()[0].as_numpy()
        assert np.array_equal(found, array)
        found += 1  # it is the fork's own
        return int(found[0])
    return [forked(run) for _ in range(2)]
    """
    assert forks(code) == [1, 1]


def test_inputs_of_the_request_in_a_fork(forks):
    code = """
    def run():
        return value(call("double", inputs=[IN_tensor]).exec())
    return [forked(run), IN.tolist()]
    """
    assert forks(code, IN=np.array([1, 2], np.float32)) == [[2, 4], [1, 2]]


@pytest.mark.spec("pb-B09")
def test_errors_in_forks(forks):
    code = """
    def run():
        return [failure(request.exec()) for request in (
            call("nobody"), call("double"), call("by_code", IN=[0]), call("by_code", IN=[1]), call("repeat", IN=[1])
        )]
    return forked(run)
    """
    unknown, missing, *by_code, decoupled = forks(code)
    assert unknown[1].startswith(
        "Model nobody - Error when running inference: Failed for execute the inference request."
    )
    assert "expected 1 inputs but got 0 inputs for model 'double'" in missing[1]
    assert by_code == [["NOT_FOUND", "on purpose"], ["CANCELLED", "on purpose"]]
    assert decoupled[1].startswith("Model repeat is using the decoupled.")


@pytest.mark.parametrize(
    "expression",
    [
        "call('repeat', IN=[1]).exec(decoupled=True)",
        "asyncio.run(asyncio.wait_for(call('double', IN=[1]).async_exec(), 5))",
        "pb_utils.MetricFamily('f', 'd', pb_utils.MetricFamily.COUNTER)",
        "pb_utils.load_model('double')",
        "pb_utils.is_model_ready('double')",
    ],
    ids=["stream", "coroutine", "metrics", "load_model", "is_model_ready"],
)
def test_what_forks_cannot_do(forks, expression):
    kind, message = forks(f"return forked(raised, lambda: {expression})")
    assert kind == "TritonModelException"
    assert message.endswith(
        "This process was forked by the model: only logging, and exec() without 'decoupled', are available in it."
    )


def test_a_request_of_the_server_in_a_fork(forks):
    """A fork may look at it, but not answer or execute it."""
    code = """
    found = forked(lambda: [request.request_id(), request.is_cancelled(), raised(request.exec)])
    return [*found, raised(call("double", IN=[1]).exec)[0]]
    """
    request_id, cancelled, (kind, message), after = forks(code)
    assert (request_id, cancelled, kind, after) == ("", False, "TritonModelException", "nothing")
    assert message.startswith("A request that was passed to 'execute' cannot be executed again")


def test_forks_of_forks(forks):
    code = """
    def run(depth):
        own = value(call("double", IN=[depth]).exec())
        return own + (forked(run, depth - 1) if depth else [])
    return forked(run, 3)
    """
    assert forks(code) == [6, 4, 2, 0]


def test_threads_of_a_fork(forks):
    code = """
    def run():
        return in_threads(lambda n: value(call("double", IN=[n]).exec())[0], *range(8))
    return forked(run)
    """
    assert forks(code) == [2 * number for number in range(8)]


def test_forking_while_threads_call(forks):
    """A fork may come at any moment of another thread's call; the locks that it holds are the parent's alone."""
    code = """
    stop = threading.Event()
    def keep_calling(row):
        if row:
            while not stop.is_set():
                assert value(call("double", IN=[row]).exec()) == [2 * row]
            return []
        try:
            return [forked(lambda: value(call("double", IN=[n]).exec())[0]) for n in range(15)]
        finally:
            stop.set()
    return in_threads(keep_calling, *range(4))[0]
    """
    assert forks(code) == [2 * number for number in range(15)]


def test_a_fork_that_goes_on_after_the_request(lab, repository):
    """It may call as long as its parent lives."""
    begin = """
    import multiprocessing
    def run(directory):
        pass_gate(directory, "fork")
        with open(os.path.join(directory, "said"), "w") as file:
            json.dump(value(call("double", IN=[5]).exec()), file)
    state["fork"] = multiprocessing.get_context("fork").Process(target=run, args=[state["directory"]])
    state["fork"].start()
    return 0
    """
    assert lab(begin) == 0
    (repository / "caller/fork.open").touch()
    wait_until((repository / "caller/fork.reached").exists, "the fork did not begin")
    assert lab("state['fork'].join()\nreturn state.pop('fork').exitcode") == 0
    assert (repository / "caller/said").read_text() == "[10.0]"


def test_a_fork_that_dies_in_the_middle_of_a_call(forks):
    code = """
    def run():
        threading.Timer(0.02, os._exit, [3]).start()
        while True:
            call("bytes", DATA=np.zeros(1_000_000, np.uint8)).exec()
    process = context.Process(target=run)
    process.start()
    process.join()
    return [process.exitcode, value(call("double", IN=[1]).exec()), forked(lambda: value(call("double", IN=[2]).exec()))]
    """
    assert forks(code) == [3, [2], [4]]


def test_a_hundred_forks_leave_nothing(forks):
    """No descriptor, no thread, no memory."""
    code = """
    def run():
        return value(call("double", IN=[1]).exec())
    def own():
        deadline = time.monotonic() + 50
        while threading.active_count() > state.get("threads", 1000) and time.monotonic() < deadline:
            time.sleep(0.01)  # a thread that serves a fork ends when it sees the fork's end
        return [threading.active_count(), len(os.listdir("/proc/self/fd"))]
    forked(run)
    before = own()
    state["threads"] = before[0]
    for _ in range(30):
        assert forked(run) == [2]
    return [before, own()]
    """
    before, after = forks(code)
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 1


def test_what_forks_print_and_log(server, forks):
    code = """
    def run():
        print("printed by a fork")
        pb_utils.Logger.log_info("logged by a fork")
        sys.stdout.flush()
    return forked(run)
    """
    assert forks(code) is None
    server.wait_for("printed by a fork")
    server.wait_for("logged by a fork")


# --- The end ---


def test_a_fork_whose_parent_is_finalized(tmp_path):
    """It is told, and does not outlive the server."""
    code = (
        HELPERS
        + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        reads, self.writes = os.pipe()
        if not os.fork():
            os.close(self.writes)
            with open(os.path.join(self.directory, "first"), "w") as file:
                print(value(call("double", IN=[5]).exec()), file=file)
            os.read(reads, 1)
            with open(os.path.join(self.directory, "second"), "w") as file:
                print(*raised(call("double", IN=[5]).exec), file=file)
            while True:
                time.sleep(1)
        os.close(reads)
        return [pb_utils.InferenceResponse([tensor("OUT", [str(os.getpid())])]) for _ in requests]

    def finalize(self):
        os.close(self.writes)
        deadline = time.monotonic() + 25
        path = os.path.join(self.directory, "second")
        while not (os.path.exists(path) and os.path.getsize(path)) and time.monotonic() < deadline:
            time.sleep(0.005)
"""
    )
    directory = write_model(tmp_path, "forking", code, NUMBERS)
    write_targets(tmp_path, "double")
    with serving(tmp_path) as server:
        infer(server, "forking", {"IN": np.ones(1, np.float32)})["OUT"]
        wait_until((directory / "first").exists, "the fork did not begin")
        wait_until(lambda: (directory / "first").read_text() == "[10.0]\n", "the fork did not call")
        descendants = set(_descendants(server.process.pid)) - set(server.helper_pids())
        assert len(descendants) == 3
        assert server.stop() == 0
        assert free_of_processes(list(descendants))
    assert (directory / "second").read_text().startswith("TritonModelException BLS is only supported during the")
