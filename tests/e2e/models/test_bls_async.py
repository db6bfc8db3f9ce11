"""Models that run other models without waiting for each: coroutines, gathered calls, many at once, their order, their
end."""

import threading

import numpy as np
import pytest

from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.gates import Gate
from tests.support.inference import infer
from tests.support.log_lines import server_tracebacks
from tests.support.repositories import write_model
from tests.support.server import serving

NUMBERS = f"""
backend: "python"
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} ]
{ONE}
"""
RECORDER = """
import time


class TritonPythonModel:
    # Answers how many requests came before, after so many seconds; a negative number begins anew.
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            number = request.inputs()[0].as_numpy()[0]
            if number < 0:
                self.count = 0
            if number > 0:
                time.sleep(float(number))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.count], np.float32))]))
            self.count += 1
        return responses
"""
SLOW = """
import time


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + 1)]) for r in requests]
"""
REFUSES = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("not today", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
GATED = (
    HELPERS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        mark(self.directory, "done")
        return [pb_utils.InferenceResponse([tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
"""
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bls_async")
    write_caller(repository, "coroutines", asynchronous=True)
    overlapping = f'{ONE} parameters {{ key: "ASYNC_EXECUTE_CONCURRENCY" value {{ string_value: "16" }} }}'
    write_caller(repository, "overlapping", asynchronous=True, extra=overlapping)
    write_caller(repository)
    write_targets(repository, "double", "repeat")
    for name, code in (("recorder", RECORDER), ("slow", SLOW), ("refuses", REFUSES), ("gated", GATED)):
        write_model(repository, name, code, NUMBERS)
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        pids = server.stub_pids()
        yield server
        assert server.stub_pids() == pids, "a model's process died and was restarted"
        assert not server_tracebacks(server.output)
        assert "never awaited" not in server.output


@pytest.fixture(scope="module")
def lab(server):
    return caller(server, "coroutines")


@pytest.fixture(scope="module")
def plain(server):
    return caller(server)


@pytest.fixture
def gate(repository):
    """Where the model ``gated`` waits; open again for whoever comes later."""
    directory = repository / "gated"
    for name in ("execute.open", "execute.reached", "done"):
        (directory / name).unlink(missing_ok=True)
    gate = Gate(directory, "execute")
    yield gate
    gate.open()


# --- Gathered ---


@pytest.mark.spec("pb-B03")
def test_gather(lab):
    code = """
    calls = [call(name, IN=[number]) for number, name in enumerate(("double", "slow", "double"))]
    responses = await asyncio.gather(*(call.async_exec() for call in calls))
    assert all(type(response) is pb_utils.InferenceResponse for response in responses)
    return [value(response) for response in responses]
    """
    assert lab(code) == [[0], [2], [4]]


@pytest.mark.spec("pb-B03")
@pytest.mark.parametrize("size", [2, 5000, 500_000], ids=["in_frame", "in_memory", "off_the_loop"])
def test_one_request_four_times_at_once(lab, size):
    code = """
    request = call("double", IN=IN)
    responses = await asyncio.gather(*(request.async_exec() for _ in range(4)))
    return [bool(np.array_equal(r.output_tensors()[0].as_numpy(), IN * 2)) for r in responses]
    """
    assert lab(code, IN=np.arange(size, dtype=np.float32)) == [True] * 4


@pytest.mark.spec("pb-B03", "pb-B02")
def test_errors_among_results(lab):
    code = """
    calls = [call("refuses", IN=[1]), call("double", IN=[1]), call("nobody"), call("double", X=[1]), call("repeat", IN=[1])]
    return [seen(response) for response in await asyncio.gather(*(call.async_exec() for call in calls))]
    """
    refused, doubled, unknown, wrong, decoupled = lab(code)
    assert refused == ["UNAVAILABLE", "not today"]
    assert doubled == {"OUT": [2]}
    assert unknown[1].startswith(
        "Model nobody - Error when running inference: Failed for execute the inference request."
    )
    assert wrong[1].startswith("Model double - Error when running inference: unexpected inference input 'X'")
    assert decoupled[1].startswith("Model repeat is using the decoupled.")


@pytest.mark.spec("pb-B03")
def test_an_error_raised_by_the_caller(server):
    code = """
    response = await call("refuses", IN=[1]).async_exec()
    raise pb_utils.TritonModelException(response.error().message())
    """
    answer = sender(server, "coroutines")(code)
    assert answer.status == 500
    assert answer.error.startswith(
        "Failed to process the request(s) for model 'coroutines_0_0', message: TritonModelException: not today"
    )


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "tasks = [asyncio.ensure_future(call('double', IN=[n]).async_exec()) for n in range(3)]\n"
            "return [value(await task) for task in tasks]",
            id="ensure_future",
        ),
        pytest.param(
            "async def run(n):\n    return value(await call('double', IN=[n]).async_exec())\n"
            "tasks = [asyncio.create_task(run(n)) for n in range(3)]\n"
            "return [await task for task in tasks]",
            id="create_task",
        ),
        pytest.param(
            "futures = [call('double', IN=[n]).async_exec() for n in range(3)]\n"
            "return sorted([value(await done) for done in asyncio.as_completed(futures)])",
            id="as_completed",
        ),
        pytest.param(
            "futures = [call('double', IN=[n]).async_exec() for n in range(3)]\n"
            "done, pending = await asyncio.wait(futures)\nassert not pending\n"
            "return [value(future.result()) for future in futures]",
            id="wait",
        ),
        pytest.param(
            "found = []\n"
            "for n in range(3):\n"
            "    future = call('double', IN=[n]).async_exec()\n"
            "    assert asyncio.isfuture(future) and not future.done()\n"
            "    future.add_done_callback(lambda future: found.append(value(future.result())))\n"
            "    assert value(await future) == value(await future)\n"
            "return found",
            id="callbacks",
        ),
        pytest.param(
            "return [value(await asyncio.wait_for(call('double', IN=[n]).async_exec(), 20)) for n in range(3)]",
            id="wait_for",
        ),
        pytest.param(
            "return [value(call('double', IN=[0]).exec()), value(await call('double', IN=[1]).async_exec()),\n"
            "        value(await asyncio.get_running_loop().run_in_executor(None, call('double', IN=[2]).exec))]",
            id="both_kinds",
        ),
    ],
)
def test_ways_to_await(lab, code):
    assert lab(code) == [[0], [2], [4]]


def test_other_coroutines_run_meanwhile(lab, gate):
    """The reply comes only because another coroutine, which runs while this one waits, opens the gate."""
    code = f"""
    async def open_gate():
        while not os.path.exists({str(gate.reached_path)!r}):
            await asyncio.sleep(0.001)
        assert not future.done()
        open({str(gate.open_path)!r}, "w").close()

    future = call("gated", IN=[1]).async_exec()
    opening = asyncio.ensure_future(open_gate())
    response = await future
    await opening
    return value(response)
    """
    assert lab(code) == [1]


# --- Many ---


@pytest.mark.spec("pb-B14")
def test_200_calls_of_a_model_with_one_instance(lab):
    code = """
    responses = await asyncio.gather(*(call("slow", IN=[n]).async_exec() for n in range(200)))
    return [value(response)[0] for response in responses]
    """
    assert lab(code) == [n + 1 for n in range(200)]


@pytest.mark.spec("pb-B14")
def test_200_calls_that_all_wait(lab, gate):
    """All of them are on their way before the first is served, and others are served beside them."""
    code = f"""
    futures = [call("gated", IN=[n]).async_exec() for n in range(200)]
    beside = value(await call("double", IN=[21]).async_exec())
    threads = in_threads(lambda n: value(call("double", IN=[n]).exec()), *range(40))
    assert not any(future.done() for future in futures)
    open({str(gate.open_path)!r}, "w").close()
    responses = await asyncio.gather(*futures)
    return [beside, len(threads), [value(response)[0] for response in responses]]
    """
    assert lab(code) == [[42], 40, list(range(200))]


def test_5000_calls_at_once(lab):
    code = """
    responses = await asyncio.gather(*(call("double", IN=[n]).async_exec() for n in range(5000)))
    return sum(value(response)[0] for response in responses)
    """
    assert lab(code) == 2 * sum(range(5000))


def test_many_large_calls_at_once(lab):
    code = """
    array = np.arange(300_000, dtype=np.float32)
    responses = await asyncio.gather(*(call("double", IN=array + n).async_exec() for n in range(30)))
    return [bool(np.array_equal(r.output_tensors()[0].as_numpy(), (array + n) * 2)) for n, r in enumerate(responses)]
    """
    assert lab(code) == [True] * 30


def test_many_clients_whose_requests_gather(server):
    code = "return [value(r) for r in await asyncio.gather(*(call('slow', IN=[n]).async_exec() for n in range(10)))]"
    for model in ("coroutines", "overlapping"):
        run, found = caller(server, model), []
        threads = [threading.Thread(target=lambda run=run, found=found: found.append(run(code))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[[n + 1] for n in range(10)]] * 8


@pytest.mark.spec("pb-E12")
def test_requests_of_one_process_overlap_in_their_calls(server, gate):
    """Two clients of one instance are in its coroutines at the same time: the first waits for what the second opens."""
    waiting = f"return value(await call('gated', IN=[1]).async_exec())  # {gate.open_path}"
    found = []
    first = threading.Thread(target=lambda: found.append(caller(server, "overlapping")(waiting)))
    first.start()
    gate.wait_reached()
    assert caller(server, "overlapping")(f"open({str(gate.open_path)!r}, 'w').close()\nreturn 1") == 1
    first.join()
    assert found == [[1]]


# --- Order ---


def test_calls_arrive_in_the_order_in_which_they_were_made(lab):
    """Small ones do not overtake large ones, which need time to be copied."""
    code = """
    call("recorder", IN=[-1]).exec()
    sizes = [1 if n % 3 else 400_000 for n in range(60)]
    futures = [call("recorder", IN=np.zeros(size, np.float32)).async_exec() for size in sizes]
    return [value(response)[0] for response in await asyncio.gather(*futures)]
    """
    assert lab(code) == list(range(1, 61))


def test_order_behind_executions_that_last(lab):
    """Whatever was sent ahead to the process that turns out to be slow."""
    code = """
    call("recorder", IN=[-1]).exec()
    futures = []
    for n in range(600):
        futures.append(call("recorder", IN=[0.01 if n % 60 == 7 else 0]).async_exec())
        if not n % 40:
            await asyncio.sleep(0.002)
    return [value(response)[0] for response in await asyncio.gather(*futures)]
    """
    for _ in range(2):
        assert lab(code) == list(range(1, 601))


def test_order_of_calls_of_both_kinds(lab):
    code = """
    call("recorder", IN=[-1]).exec()
    first = [call("recorder", IN=[0]).async_exec() for _ in range(5)]
    middle = call("recorder", IN=[0]).exec()
    last = call("recorder", IN=[0]).async_exec()
    return [value(response)[0] for response in [*await asyncio.gather(*first), middle, await last]]
    """
    assert lab(code) == list(range(1, 8))


# --- Loops ---


@pytest.mark.spec("pb-B03")
def test_without_a_running_loop(plain):
    kind, message = plain("return raised(call('double', IN=[1]).async_exec)")
    assert kind == "RuntimeError"
    assert "no running event loop" in message


def test_a_loop_that_the_model_runs_in_execute(plain):
    code = """
    async def run():
        return [value(r) for r in await asyncio.gather(*(call("double", IN=[n]).async_exec() for n in range(50)))]
    return asyncio.run(run())
    """
    assert plain(code) == [[2 * n] for n in range(50)]


def test_a_loop_in_a_thread_of_the_models_own(plain):
    """As models do that drive an engine of their own: the loop stays while executions come and go."""
    begin = """
    loop = state["loop"] = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    async def run(n):
        return value(await call("slow", IN=[n]).async_exec())
    state["futures"] = [asyncio.run_coroutine_threadsafe(run(n), loop) for n in range(10)]
    return value(call("double", IN=[1]).exec())
    """
    end = """
    found = [future.result(50) for future in state.pop("futures")]
    loop = state.pop("loop")
    loop.call_soon_threadsafe(loop.stop)
    return found
    """
    assert plain(begin) == [2]
    assert plain(end) == [[n + 1] for n in range(10)]


def test_loops_in_many_threads_at_once(plain):
    code = """
    def run(row):
        async def gather():
            return sum(value(r)[0] for r in await asyncio.gather(*(call("double", IN=[n]).async_exec() for n in range(20))))
        return asyncio.run(gather())
    return in_threads(run, *range(6))
    """
    assert plain(code) == [2 * sum(range(20))] * 6


def test_a_loop_that_ends_before_the_reply(plain, gate):
    code = f"""
    async def leave():
        call("gated", IN=[1]).async_exec()
    asyncio.run(leave())
    open({str(gate.open_path)!r}, "w").close()
    return value(call("gated", IN=[2]).exec())
    """
    assert plain(code) == [2]


# --- Futures that are not awaited to their end ---


def test_a_cancelled_future_leaves_the_inference_alone(lab, repository, gate):
    code = f"""
    future = call("gated", IN=[1]).async_exec()
    try:
        await asyncio.wait_for(future, 0.05)
    except asyncio.TimeoutError:
        assert future.cancelled()
    open({str(gate.open_path)!r}, "w").close()
    return value(await call("gated", IN=[2]).async_exec())
    """
    assert lab(code) == [2]
    assert (repository / "gated/done").read_text() == "xx", "the first one ran to its end too"


def test_futures_that_nobody_awaits(lab):
    code = """
    for n in range(100):
        call("double", IN=[n]).async_exec()
    call("refuses", IN=[1]).async_exec()
    call("repeat", IN=[3]).async_exec(decoupled=True)
    return value(await call("double", IN=[4]).async_exec())
    """
    assert lab(code) == [8]
    assert lab("gc.collect()\nreturn value(await call('double', IN=[5]).async_exec())") == [10]


def test_replies_after_the_request_is_answered(lab, gate):
    """A task that ``execute`` has left behind goes on in the loop."""
    begin = """
    async def later():
        state["found"] = value(await call("gated", IN=[7]).async_exec())
    state["task"] = asyncio.get_running_loop().create_task(later())
    return "begun"
    """
    end = f"""
    open({str(gate.open_path)!r}, "w").close()
    await state.pop("task")
    return state.pop("found")
    """
    assert lab(begin) == "begun"
    assert lab(end) == [7]


def test_plain_inference_beside_all_this(server):
    assert infer(server, "double", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [2]
