"""Models that run models which answer any number of times: iterators, their ends, and what is called off."""

import threading

import pytest

from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.connection import Connection
from tests.support.gates import Gate, wait_until
from tests.support.inference import infer_message, strings
from tests.support.repositories import write_model
from tests.support.server import serving

NUMBERS = f"""
backend: "python"
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} ]
{ONE}
"""
DECOUPLED = NUMBERS + "model_transaction_policy { decoupled: true }"
CANCELS = 'parameters { key: "CANCEL_CALLS_WITH_REQUEST" value { string_value: "yes" } }'

ENDLESS = (
    HELPERS
    + """
class TritonPythonModel:
    # Streams numbers from threads until it is cancelled, which it marks; then it says so to whoever still listens.
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.stream, args=[request.get_response_sender()]).start()

    def stream(self, sender):
        mark(self.directory, "began")
        number = 0
        while not sender.is_cancelled():
            if number < 100:
                sender.send(pb_utils.InferenceResponse([tensor("OUT", [number])]))
                number += 1
            time.sleep(0.002)
        mark(self.directory, "cancelled")
        cancelled = pb_utils.TritonError("stopped on request", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=cancelled), flags=1)
"""
)
PATIENT = (
    HELPERS
    + """
class TritonPythonModel:
    # Waits until it is cancelled, or allowed to end.
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        mark(self.directory, "began")
        while not request.is_cancelled():
            if os.path.exists(os.path.join(self.directory, "end")):
                return [pb_utils.InferenceResponse([tensor("OUT", [1])])]
            time.sleep(0.002)
        mark(self.directory, "cancelled")
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gave up", pb_utils.TritonError.CANCELLED))]
"""
)
GATED = (
    HELPERS
    + """
class TritonPythonModel:
    # One response before the gate, one behind it.
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([tensor("OUT", [1])]))
            pass_gate(self.directory, "stream")
            sender.send(pb_utils.InferenceResponse([tensor("OUT", [2])]), flags=1)
"""
)
FAULTY = """
import threading


class TritonPythonModel:
    async def execute(self, requests):
        (request,) = requests
        kind = int(request.inputs()[0].as_numpy()[0])
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([kind], np.float32))]))
        if kind == 1:
            raise ValueError("in the middle of the stream")
        if kind == 2:
            return [1]
        # Whatever else: the sender is dropped.
"""
RELAY = (
    HELPERS
    + """
class TritonPythonModel:
    # Passes the stream of another model on, as coroutine: many requests are in it at the same time.
    async def execute(self, requests):
        await asyncio.gather(*(self.relay(request) for request in requests))

    async def relay(self, request):
        sender = request.get_response_sender()
        below = call("repeat", inputs=request.inputs())
        for response in await below.async_exec(decoupled=True):
            if response.has_error() or response.output_tensors():
                sender.send(response)
        extra = await call("double", IN=[50]).async_exec()
        sender.send(extra, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
THREADED = (
    HELPERS
    + """
class TritonPythonModel:
    # Returns at once; a thread calls a model and answers with what comes of it.
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=[request.get_response_sender(), request.inputs()]).start()

    def answer(self, sender, inputs):
        for response in call("repeat", inputs=inputs).exec(decoupled=True):
            sender.send(response)
        sender.send(call("double", inputs=inputs).exec(), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
LARGE = """
class TritonPythonModel:
    # As many responses of a megabyte as the input says.
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(262_144, number, np.float32))]))
            sender.send(flags=1)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("bls_decoupled")
    write_caller(repository)
    write_caller(repository, "coroutines", asynchronous=True)
    write_caller(repository, "strict", extra=ONE + CANCELS)
    write_caller(repository, "strict_coroutines", asynchronous=True, extra=ONE + CANCELS)
    write_targets(repository, "double", "repeat")
    for name, code in (
        ("endless", ENDLESS),
        ("gated", GATED),
        ("faulty", FAULTY),
        ("relay", RELAY),
        ("threaded", THREADED),
        ("large", LARGE),
    ):
        write_model(repository, name, code, DECOUPLED)
    write_model(repository, "patient", PATIENT, NUMBERS)
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


@pytest.fixture(scope="module")
def coroutines(server):
    return caller(server, "coroutines")


def count(directory, name):
    path = directory / name
    return path.stat().st_size if path.exists() else 0


# --- Iterators ---


@pytest.mark.spec("pb-B04")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([0], [None], id="none"),
        pytest.param([1], [[0], None], id="one"),
        pytest.param([3], [[0], [1], [2], None], id="several"),
        pytest.param([3, -1, 1], [[0], [1], [2]], id="flag_with_the_last_one"),
        pytest.param([1, -1, 1], [[0]], id="flag_with_the_only_one"),
    ],
)
def test_responses_of_a_stream(lab, arguments, expected):
    """A flag that comes alone is one more response, without outputs."""
    code = f"""
    iterator = call("repeat", IN={arguments}).exec(decoupled=True)
    assert type(iterator).__name__ == "ResponseIterator" and iter(iterator) is iterator
    responses = list(iterator)
    assert all(type(response) is pb_utils.InferenceResponse for response in responses)
    return [value(response) for response in responses]
    """
    assert lab(code) == expected


@pytest.mark.spec("pb-B04")
def test_next(lab):
    code = """
    iterator = call("repeat", IN=[2]).exec(decoupled=True)
    found = [value(next(iterator)), value(iterator.__next__()), value(next(iterator))]
    return found + [raised(next, iterator), raised(next, iterator), next(iterator, "default")]
    """
    stop = ["StopIteration", "Iteration is done for the responses."]
    assert lab(code) == [[0], [1], None, stop, stop, "default"]


@pytest.mark.spec("pb-B04")
def test_replay(lab):
    code = """
    iterator = call("repeat", IN=[3]).exec(decoupled=True)
    rounds = [list(iterator) for _ in range(3)]
    assert all(one is other for one, other in zip(rounds[0], rounds[2]))
    return [[value(response) for response in responses] for responses in rounds]
    """
    assert lab(code) == [[[0], [1], [2], None]] * 3


@pytest.mark.spec("pb-B04")
def test_break_and_go_on(lab):
    code = """
    iterator = call("repeat", IN=[4]).exec(decoupled=True)
    found = []
    for response in iterator:
        found.append(value(response))
        if len(found) == 2:
            break
    rest = [value(response) for response in iterator]
    return [found, rest, [value(response) for response in iterator]]
    """
    everything = [[0], [1], [2], [3], None]
    assert lab(code) == [everything[:2], everything[2:], everything]


@pytest.mark.spec("pb-B04")
@pytest.mark.parametrize("seen", [0, 1, 3])
def test_dropped_before_the_end(lab, seen):
    code = f"""
    iterator = call("repeat", IN=[500]).exec(decoupled=True)
    for _ in range({seen}):
        next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None
    return [value(response) for response in call("repeat", IN=[1]).exec(decoupled=True)]
    """
    assert lab(code) == [[0], None]


@pytest.mark.spec("pb-B04")
def test_errors_in_the_middle_do_not_end_it(lab):
    code = """
    iterator = call("repeat", IN=[3, 1]).exec(decoupled=True)
    return [[seen(response) for response in iterator] for _ in range(2)]
    """
    assert lab(code) == [[{"OUT": [0]}, ["NOT_FOUND", "no 1"], {"OUT": [2]}, {}]] * 2


@pytest.mark.spec("pb-B04", "pb-D01")
def test_responses_come_while_the_other_model_runs(lab, repository):
    gate = Gate(repository / "gated", "stream")
    code = f"""
    iterator = call("gated", IN=[0]).exec(decoupled=True)
    first = value(next(iterator))
    open({str(gate.open_path)!r}, "w").close()
    return [first, [value(response) for response in iterator]]
    """
    assert lab(code) == [[1], [[2]]]


def test_many_responses(lab):
    code = """
    found = [value(response) for response in call("repeat", IN=[3000]).exec(decoupled=True)]
    return found == [[number] for number in range(3000)] + [None]
    """
    assert lab(code) is True


def test_large_responses(lab):
    code = """
    responses = list(call("large", IN=[24]).exec(decoupled=True))
    arrays = [response.output_tensors()[0].as_numpy() for response in responses[:-1]]
    assert responses[-1].output_tensors() == []
    return [bool((array == number).all()) for number, array in enumerate(arrays)]
    """
    assert lab(code) == [True] * 24


def test_several_at_once(lab):
    code = """
    iterators = [call("repeat", IN=[length]).exec(decoupled=True) for length in (3, 0, 2)]
    found = [[], [], []]
    for _ in range(4):
        for row, iterator in zip(found, iterators):
            for response in iterator:
                row.append(value(response))
                break
    return found
    """
    # One that is at its end says so once, and begins anew.
    assert lab(code) == [[[0], [1], [2], None], [None] * 3, [[0], [1], None]]


def test_one_iterator_in_many_threads(lab):
    """They share the responses: each is seen once, and nobody waits for ever."""
    code = """
    iterator = call("repeat", IN=[400]).exec(decoupled=True)
    def take(_):
        taken = []
        while True:
            response = next(iterator, None)
            if response is None:
                return taken
            taken.append(value(response))
    taken = sum(in_threads(take, *range(6)), [])
    assert taken.count(None) == 1
    return sorted(item[0] for item in taken if item is not None)
    """
    for _ in range(3):
        assert lab(code) == list(range(400))


def test_kept_for_a_later_request(lab):
    assert lab("state['kept'] = call('repeat', IN=[3]).exec(decoupled=True)\nreturn value(next(state['kept']))") == [0]
    assert lab("return [value(response) for response in state.pop('kept')]") == [[1], [2], None]


def test_a_response_of_a_stream_as_own_response(server):
    code = """
    return list(call("repeat", IN=[3]).exec(decoupled=True))[1]
    """
    assert sender(server)(code)["OUT"].tolist() == [1]


@pytest.mark.spec("pb-B05")
def test_a_model_that_answers_once(lab):
    code = """
    iterator = call("double", IN=[4]).exec(decoupled=True)
    return [[value(response) for response in iterator] for _ in range(2)]
    """
    assert lab(code) == [[[8]], [[8]]]


def test_an_iterator_cannot_be_made(lab):
    code = "return raised(type(call('double', IN=[4]).exec(decoupled=True)))"
    assert lab(code) == ["TypeError", "ResponseIterator: No constructor defined! Use request.exec(decoupled=True)."]


# --- Streams that end badly ---


@pytest.mark.spec("pb-D04", "pb-D07")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(1, "Failed to process the request(s) for model 'faulty_0_0', message: ValueError: in the middle of", id="raises"),
        pytest.param(2, "Failed to process the request(s) for model 'faulty_0_0', message: Python model 'faulty_0_0' is "
                     "using the decoupled mode and the execute function must return None.", id="returns_a_list"),
        pytest.param(3, "The model dropped this request's response sender without having sent the final flag", id="drops"),
    ],
)  # fmt: skip
def test_a_stream_that_ends_with_an_error(lab, kind, text):
    first, *rest = lab(f"return [seen(response) for response in call('faulty', IN=[{kind}]).exec(decoupled=True)]")
    assert first == {"OUT": [kind]}
    ((code, message),) = rest
    assert code == "INTERNAL"
    assert message.startswith(text)


# --- Coroutines ---


@pytest.mark.spec("pb-B03", "pb-B04")
def test_iterators_in_coroutines(coroutines):
    code = """
    calls = [call("repeat", IN=[length]) for length in (0, 2, 5)]
    iterators = await asyncio.gather(*(call.async_exec(decoupled=True) for call in calls))
    return [[[value(response) for response in iterator] for _ in range(2)] for iterator in iterators]
    """
    expected = [[[number] for number in range(length)] + [None] for length in (0, 2, 5)]
    assert coroutines(code) == [[numbers, numbers] for numbers in expected]


@pytest.mark.spec("pb-B05")
def test_a_model_that_answers_once_in_a_coroutine(coroutines):
    code = """
    iterator = await call("double", IN=[4]).async_exec(decoupled=True)
    unknown = await call("nobody").async_exec(decoupled=True)
    return [[value(response) for response in iterator], [failure(response)[1] for response in unknown]]
    """
    doubled, (unknown,) = coroutines(code)
    assert doubled == [[8]]
    assert unknown.startswith("Model nobody - Error when running inference: Failed for execute the inference request.")


def test_many_streams_at_once(coroutines):
    """In the loop's thread, and in threads of an executor."""
    code = """
    loop = asyncio.get_running_loop()
    async def total(number):
        iterator = await call("repeat", IN=[20]).async_exec(decoupled=True)
        responses = list(iterator) if number % 2 else await loop.run_in_executor(None, list, iterator)
        return sum(value(response)[0] for response in responses[:-1])
    return await asyncio.gather(*(total(number) for number in range(60)))
    """
    assert coroutines(code) == [sum(range(20))] * 60


@pytest.mark.spec("pb-D03")
@pytest.mark.parametrize("model", ["relay", "threaded"])
def test_decoupled_models_that_call_others(lab, model):
    code = f"""
    iterators = [call("{model}", IN=[length]).exec(decoupled=True) for length in (2, 0, 3)]
    return [[value(response) for response in iterator] for iterator in iterators]
    """
    lengths = (2, 0, 3)
    if model == "relay":
        assert lab(code) == [[[number] for number in range(length)] + [[100]] for length in lengths]
    else:
        assert lab(code) == [[[number] for number in range(length)] + [None, [2 * length]] for length in lengths]


def test_many_requests_in_a_decoupled_model_that_calls_others(lab):
    code = """
    iterators = [call("relay", IN=[10]).exec(decoupled=True) for _ in range(40)]
    return [[value(response)[0] for response in iterator] for iterator in iterators]
    """
    assert lab(code) == [[*range(10), 100]] * 40


# --- Called off ---


@pytest.mark.spec("pb-B07")
def test_cancel(lab, repository):
    before = count(repository / "endless", "cancelled")
    code = """
    iterator = call("endless", IN=[0]).exec(decoupled=True)
    first = [value(next(iterator)) for _ in range(3)]
    iterator.cancel()
    rest = [seen(response) for response in iterator]
    assert len(rest) <= 98 and all(type(item) is dict for item in rest[:-1])
    return [first, rest[-1], len(list(iterator)) == len(rest) + 3]
    """
    assert lab(code) == [[[0], [1], [2]], ["CANCELLED", "stopped on request"], True]
    assert count(repository / "endless", "cancelled") == before + 1


@pytest.mark.spec("pb-B07")
def test_cancel_in_a_coroutine(coroutines, repository):
    before = count(repository / "endless", "cancelled")
    code = """
    iterators = await asyncio.gather(*(call("endless", IN=[0]).async_exec(decoupled=True) for _ in range(5)))
    for iterator in iterators:
        iterator.cancel()
    return [failure(list(iterator)[-1]) for iterator in iterators]
    """
    assert coroutines(code) == [["CANCELLED", "stopped on request"]] * 5
    assert count(repository / "endless", "cancelled") == before + 5


@pytest.mark.spec("pb-B07")
def test_cancel_of_a_model_that_answers_once(lab):
    """It is told as any other, and what still waits is not begun."""
    code = """
    first, second = [call("patient", IN=[0]).exec(decoupled=True) for _ in range(2)]
    second.cancel()
    found = [failure(response) for response in second]
    first.cancel()
    return [found, [failure(response) for response in first]]
    """
    (waiting,), running = lab(code)
    assert waiting[0] == "CANCELLED"
    assert running == [["CANCELLED", "gave up"]]


@pytest.mark.spec("pb-B07")
def test_cancel_when_all_is_over(lab):
    code = """
    iterator = call("repeat", IN=[2]).exec(decoupled=True)
    before = [value(response) for response in iterator]
    iterator.cancel()
    iterator.cancel()
    refused = call("nobody").exec(decoupled=True)
    refused.cancel()
    return [before, [value(response) for response in iterator], failure(next(refused))[0], len(list(refused))]
    """
    numbers = [[0], [1], None]
    before, after, code, left = lab(code)
    assert (before, after) == (numbers, numbers)
    assert code in {"INTERNAL", "INVALID_ARG"}
    assert left == 0


def test_cancel_from_another_thread(lab):
    code = """
    iterator = call("endless", IN=[0]).exec(decoupled=True)
    next(iterator)
    threading.Timer(0.05, iterator.cancel).start()
    return failure(list(iterator)[-1])
    """
    assert lab(code) == ["CANCELLED", "stopped on request"]


# --- The client goes away ---


def ask(server, model, code):
    """A request under way, on a connection that its client may close."""
    connection = Connection(server.port)
    connection.send(infer_message(model, {"CODE": strings(code)}))
    return connection


WAITS = {
    "strict": "response = call('patient', IN=[0]).exec()",
    "strict_coroutines": "response = await call('patient', IN=[0]).async_exec()",
}
STREAMS = {
    "strict": "response = list(call('endless', IN=[0]).exec(decoupled=True))[-1]",
    "strict_coroutines": "response = list(await call('endless', IN=[0]).async_exec(decoupled=True))[-1]",
}
TELL = "\nwith open(os.path.join(state['directory'], 'told'), 'a') as file:\n    print(*failure(response), file=file)\nreturn 0"


@pytest.mark.spec("pb-B16")
@pytest.mark.parametrize("model", WAITS)
@pytest.mark.parametrize("target", ["patient", "endless"])
def test_a_client_that_goes_away_calls_off_what_was_called_for_it(server, repository, model, target):
    before = {name: count(repository / target, name) for name in ("began", "cancelled")}
    told = repository / model / "told"
    told.unlink(missing_ok=True)
    client = ask(server, model, (WAITS if target == "patient" else STREAMS)[model] + TELL)
    wait_until(lambda: count(repository / target, "began") > before["began"], "the call did not begin")
    client.close()
    wait_until(lambda: count(repository / target, "cancelled") > before["cancelled"], "the call was not called off")
    wait_until(lambda: count(repository / model, "told") > 0, "the caller was not told")
    wait_until(lambda: told.read_text().endswith("\n"), "the caller was not told all")
    assert told.read_text() == f"CANCELLED {'gave up' if target == 'patient' else 'stopped on request'}\n"
    assert caller(server, model)(f"return value({'await ' * ('coroutines' in model)}call('double', IN=[1])."
                                 f"{'async_' * ('coroutines' in model)}exec())") == [2]  # fmt: skip


@pytest.mark.spec("pb-B16")
def test_through_two_models(server, repository):
    """The one in the middle wants it too: what it runs is called off with it."""
    before = {name: count(repository / "patient", name) for name in ("began", "cancelled")}
    inner = WAITS["strict"] + "\nreturn pb_utils.InferenceResponse(error=response.error())"
    client = ask(server, "strict_coroutines", f"return failure(await call('strict', CODE=[{inner!r}]).async_exec())")
    wait_until(lambda: count(repository / "patient", "began") > before["began"], "the call did not begin")
    client.close()
    wait_until(lambda: count(repository / "patient", "cancelled") > before["cancelled"], "it was not called off")


def test_without_the_parameter_calls_go_on(server, repository):
    directory = repository / "patient"
    before = {name: count(directory, name) for name in ("began", "cancelled")}
    tells = "\nmark(state['directory'], 'cancelled' if request.is_cancelled() else 'not')\nmark(state['directory'], 'answered')"
    client = ask(server, "caller", "value(call('patient', IN=[0]).exec())" + tells + "\nreturn 0")
    wait_until(lambda: count(directory, "began") > before["began"], "the call did not begin")
    client.close()
    # Whatever would come of it comes before what the server is asked now.
    for _ in range(20):
        assert server.get("/v2/health/live").status == 200
    (directory / "end").touch()
    try:
        wait_until(lambda: count(repository / "caller", "answered") == 1, "the call did not end")
    finally:
        (directory / "end").unlink()
    assert count(directory, "cancelled") == before["cancelled"]
    assert count(repository / "caller", "cancelled") == 1, "the caller itself is told when it asks"


def test_calls_of_other_requests_go_on(server, repository):
    """One of two clients leaves; the calls for the other one are left alone."""
    directory = repository / "patient"
    found = []
    other = threading.Thread(
        target=lambda: found.append(caller(server)("return value(call('patient', IN=[0]).exec())"))
    )
    before = {name: count(directory, name) for name in ("began", "cancelled")}
    other.start()
    wait_until(lambda: count(directory, "began") > before["began"], "the call did not begin")
    client = ask(server, "strict", WAITS["strict"] + TELL)
    told = repository / "strict" / "told"
    told.unlink(missing_ok=True)
    wait_until(
        lambda: server.metrics()['nv_inference_pending_request_count{model="patient",version="1"}'] == 1, "no wait"
    )
    client.close()
    wait_until(lambda: count(repository / "strict", "told") > 0, "what waits is not called off")
    (directory / "end").touch()
    other.join()
    (directory / "end").unlink()
    assert found == [[1]]
    assert count(directory, "cancelled") == before["cancelled"]
