"""The engine as a front end sees it: admissions, memory and responses through a channel, with the engine on another
thread's loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pybackend.engine.admission import Sender
from pybackend.engine.answers import RefusalReason
from pybackend.errors import ErrorCode, InferenceError, UnknownModelError
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import socket_pair
from pybackend.frontend.remote.engine import RemoteAdmission, RemoteEngine
from pybackend.frontend.remote.memory import EARLY_PART, LATE_BYTES
from pybackend.frontend.remote.service import FrontEndService
from pybackend.inference.region import RegionOutput, tensor_in_region
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked
from pybackend_wire.messages import INLINE_BYTES
from tests.integration.models.conftest import running_engine
from tests.support.engine import input_tensor, output_array
from tests.support.repositories import IDENTITY, identity_config, write_model

CLIENT = Sender("http")
LARGE = np.arange(INLINE_BYTES, dtype=np.float32)

COUNTING = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            for number in range(count):
                if request.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, number, np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


class Lab:
    """An engine, and a front end's view of it on a thread of its own."""

    def __init__(self, engine: Any, run: Callable[[Any], Any], repository: Any) -> None:
        self.engine = engine
        self.repository = repository
        self._run = run
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service, self.remote = run(self._connect())

    async def _connect(self) -> tuple[FrontEndService, RemoteEngine]:
        ours, theirs = socket_pair()
        service = FrontEndService(self.engine, ours, lambda _error: None)

        async def start() -> RemoteEngine:
            return RemoteEngine(theirs, lambda _error: None)

        return service, await self._there(start())

    async def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(60):
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def there(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the front end's loop, while the engine's runs too."""
        return self._run(self._there(work))

    def here(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the engine's loop."""
        return self._run(work)

    def close(self) -> None:
        async def stop() -> None:
            self.remote.channel.close()

        self.there(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

        async def end() -> None:
            self.service.end()

        self.here(end())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "identity", IDENTITY, identity_config())
    write_model(repository, "streams", COUNTING, identity_config(extra=DECOUPLED))
    options = {"explicit": True, "startup_models": ("identity", "streams"), "memory_limit_bytes": 1 << 24}
    with running_engine(repository, **options) as (engine, run):
        lab = Lab(engine, run, repository)
        yield lab
        lab.close()


async def infer(admission: RemoteAdmission, *tensors: InputTensor, **members: Any) -> InferenceResponse:
    answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
    request = InferenceRequest(admission.model_name, inputs=list(tensors), **members)
    admission.submit(request, answer.set_result)
    return await answer


def test_a_tensor_is_written_into_lent_memory_and_read_from_the_models(lab: Lab) -> None:
    async def main() -> list[int]:
        segments = []
        for _ in range(2):
            admission = lab.remote.open("identity", "", CLIENT)
            lease = admission.allocate(LARGE.nbytes, "IN")
            assert lease is not None
            lease.view[:] = LARGE.tobytes()
            segments.append(lease.segment)
            tensor = InputTensor("IN", "FP32", [len(LARGE)], lease.view, lease)
            response = await infer(admission, tensor, id="x")
            assert response.id == "x"
            assert np.array_equal(output_array(response, "OUT"), LARGE)
            (output,) = response.outputs
            assert isinstance(output.data, memoryview)
            assert output.data.readonly
            response.release()
        return segments

    first, second = lab.there(main())
    assert first == second  # nobody had to ask again


@pytest.mark.parametrize("ends", [False, True], ids=["the version stays", "the version is replaced meanwhile"])
def test_a_large_tensor_takes_memory_of_the_model_once_a_part_has_arrived(lab: Lab, ends: bool) -> None:
    name = f"arriving_{ends}"
    data = np.arange(2 * LATE_BYTES // 4, dtype=np.float32)
    raw, first = memoryview(data).cast("B"), data.nbytes // EARLY_PART
    write_model(lab.repository, name, IDENTITY, identity_config())
    lab.here(lab.engine.control.load(name))

    async def begun() -> tuple[Any, Any]:
        admission = lab.remote.open(name, "", CLIENT)
        lease = admission.allocate(data.nbytes, "IN", arriving=True)
        lease.view[: first - 1] = raw[: first - 1]
        assert lease.arrived(first - 1) == first - 1
        assert not admission.holds_memory
        return admission, lease

    async def ended(admission: Any, lease: Any) -> None:
        lease.view[first - 1 :] = raw[first - 1 : first]
        assert lease.arrived(first) == (first if ends else 0)
        assert admission.holds_memory is not ends
        lease.view[first:] = raw[first:]
        tensor = InputTensor("IN", "FP32", [data.size], lease.view, lease)
        response = await infer(admission, tensor)
        assert np.array_equal(output_array(response, "OUT"), data)
        response.release()

    admission, lease = lab.there(begun())
    if ends:
        write_model(lab.repository, name, f"{IDENTITY}\n# new", identity_config())
        lab.here(lab.engine.control.load(name))
    lab.there(ended(admission, lease))


def test_small_tensors_options_and_large_private_ones_cross(lab: Lab) -> None:
    async def main() -> None:
        for array in (np.ones(3, np.float32), LARGE):
            admission = lab.remote.open("identity", "", CLIENT)
            response = await infer(
                admission, input_tensor("IN", array), parameters={"a": 1.5, "b": True}, timeout_us=10**9, priority=1
            )
            assert np.array_equal(output_array(response, "OUT"), array)
            response.release()

    lab.there(main())


@pytest.mark.parametrize("name", ["priority", "timeout_us"])
def test_the_largest_numbers_that_clients_may_send_cross(lab: Lab, name: str) -> None:
    async def main() -> None:
        admission = lab.remote.open("identity", "", CLIENT)
        response = await infer(admission, input_tensor("IN", np.ones(3, np.float32)), **{name: 2**64 - 1})
        assert response.error is None

    lab.there(main())


def test_a_region_beyond_all_memory_is_refused_as_by_the_engine(lab: Lab) -> None:
    async def main() -> None:
        admission = lab.remote.open("identity", "", CLIENT)
        part = admission.find_region("region", 2**64 - 1, 4)
        tensor = tensor_in_region("IN", "FP32", [1], part)
        response = await infer(admission, tensor, regions={})
        assert response.error is not None
        assert "region" in response.error.message

    lab.there(main())


@pytest.mark.parametrize(
    "members", [{"parameters": {f"p{number}": 1 for number in range(70_000)}}, {"id": "x" * 40_000_000}]
)
def test_a_request_that_is_too_much_for_a_front_end_is_refused_there(lab: Lab, members: dict[str, Any]) -> None:
    async def main() -> None:
        admission = lab.remote.open("identity", "", CLIENT)
        tensor = input_tensor("IN", np.ones(3, np.float32))
        with pytest.raises(InferenceError, match="the most that a front end takes") as caught:
            await infer(admission, tensor, **members)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert (await infer(admission, tensor)).error is None

    lab.there(main())


def test_more_requests_than_a_front_end_may_have_open_are_refused_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        admission = lab.remote.open("identity", "", CLIENT)
        tensor = input_tensor("IN", np.ones(3, np.float32))
        with monkeypatch.context() as limited:
            limited.setattr(messages, "MOST_OPEN_REQUESTS", 0)
            with pytest.raises(InferenceError, match="0 requests have no answer yet") as caught:
                await infer(admission, tensor)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert (await infer(admission, tensor)).error is None

    lab.there(main())


def test_what_is_known_of_tracing_is_told_however_it_was_heard(lab: Lab) -> None:
    async def main() -> list[bool]:
        told: list[bool] = []
        lab.remote.on_tracing = lambda: told.append(lab.remote.traces)
        for active in (True, False):
            lab.service.channel.loop.call_soon_threadsafe(lab.service.channel.post, messages.Tracing(active))
            while lab.remote.traces is not active:
                lab.remote.look()
        return told

    assert lab.there(main()) == [True, False]


def test_a_version_that_ends_while_an_answer_is_handled_does_not_stay(lab: Lab) -> None:
    channel = lab.service.channel

    async def tell(*told: Any) -> None:
        versions = lab.service._versions  # the front end will forget the handle
        versions[10**6] = next(iter(versions.values()))
        for each in told:
            channel.post(each)
        channel.flush()

    async def main() -> bool:
        engine = lab.remote
        engine.open("identity", "", CLIENT)
        handlers, key = engine.handlers, ("again", "", "http")
        again = messages.Opened("again", "", "http", 10**6, "again", "again", "1", False, "again", 0, [], [])
        heard = asyncio.Event()

        def settle(_asked: messages.Settle) -> None:
            engine.look()
            heard.set()

        before, handlers[messages.Settle] = handlers[messages.Settle], settle
        try:
            for frame in ([messages.Settle(1), again], [messages.Closed(10**6)]):
                asyncio.run_coroutine_threadsafe(tell(*frame), channel.loop).result(
                    60
                )  # this loop reads nothing meanwhile
            engine.channel._read()
            await heard.wait()
        finally:
            handlers[messages.Settle] = before
        return engine.knows(*key)

    assert not lab.there(main())


def test_errors_are_those_of_the_engine(lab: Lab) -> None:
    async def main() -> None:
        with pytest.raises(UnknownModelError, match="Request for unknown model: 'nothing' is not found"):
            lab.remote.open("nothing", "", CLIENT)
        with pytest.raises(UnknownModelError, match="Request for unknown model: 'nnn"):
            lab.remote.open("n" * 100_000, "", CLIENT)
        assert not lab.remote.knows("n" * 100_000, "", "http")
        lab.remote.refusals.add("http", RefusalReason.INVALID, "no", "n" * 100_000)
        admission = lab.remote.open("identity", "1", CLIENT)
        request = InferenceRequest("identity", inputs=[InputTensor("NO", "FP32", [1], b"1234")])
        with pytest.raises(InferenceError, match="unexpected inference input 'NO'"):
            admission.submit(request, print)
        with pytest.raises(InferenceError, match="no input memory left for model 'identity'") as caught:
            lab.remote.open("identity", "", CLIENT).allocate(1 << 25, "IN")
        assert caught.value.code is ErrorCode.INVALID_ARG

    lab.there(main())


@pytest.mark.parametrize("inputs", [[InputTensor("IN", "FP32", [1], b"1234")], []], ids=["small", "none"])
def test_the_engine_knows_the_regions_of_outputs(lab: Lab, inputs: list[InputTensor]) -> None:
    """A request may have none but for its outputs."""

    async def main() -> str:
        admission = lab.remote.open("identity", "", CLIENT)
        part = admission.find_region("nowhere", 0, 4)
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
        request = InferenceRequest("identity", inputs=inputs, regions={"OUT": RegionOutput.of(part)})
        admission.submit(request, answer.set_result, Checked.ALL)
        error = (await answer).error
        assert error is not None
        return error.message

    assert "Unable to find shared memory region: 'nowhere'" in lab.there(main())


def test_a_stream_is_paused_resumed_and_cancelled(lab: Lab) -> None:
    async def main() -> None:
        got: list[float] = []
        over = asyncio.Event()

        def on_response(response: InferenceResponse) -> None:
            if not response.empty and response.error is None:
                got.append(float(output_array(response, "OUT")[0]))
            response.release()
            if response.final:
                over.set()

        def submit(count: int) -> Any:
            admission = lab.remote.open("streams", "", CLIENT)
            assert admission.is_decoupled
            request = InferenceRequest("streams", inputs=[input_tensor("IN", np.array([count], np.float32))])
            return admission.submit(request, on_response)

        pending = submit(500)
        pending.pause()
        pending.resume()
        await over.wait()
        assert got == list(range(500))
        over.clear()
        submit(10**7).cancel()
        await over.wait()
        assert not lab.remote.waiting

    lab.there(main())


def test_a_replaced_version_is_known_before_anything_is_refused(lab: Lab) -> None:
    write_model(lab.repository, "changing", IDENTITY, identity_config(dims="[ 4 ]"))
    lab.here(lab.engine.control.load("changing"))

    async def opened() -> Any:
        admission = lab.remote.open("changing", "", CLIENT)
        return admission, admission.route()

    admission, route = lab.there(opened())
    write_model(lab.repository, "changing", IDENTITY, identity_config(dims="[ 2, 2 ]"))
    lab.here(lab.engine.control.load("changing"))

    async def check() -> None:
        lab.service.check()

    lab.here(check())

    async def used() -> None:
        admission.renew()
        assert admission.signature.inputs["IN"].dims == (2, 2)
        request = InferenceRequest("changing", inputs=[input_tensor("IN", np.ones((2, 2), np.float32))])
        assert route(request, print) is None
        tensor = input_tensor("IN", np.ones((2, 2), np.float32))
        assert (await infer(admission, tensor)).error is None

    lab.there(used())


def test_requests_checked_against_an_old_signature_are_checked_again(lab: Lab) -> None:
    write_model(lab.repository, "stale", IDENTITY, identity_config(dims="[ 4 ]"))
    lab.here(lab.engine.control.load("stale"))

    async def opened() -> Any:
        return lab.remote.open("stale", "", CLIENT)

    admission = lab.there(opened())
    write_model(lab.repository, "stale", IDENTITY, identity_config(dims="[ 2, 2 ]"))
    lab.here(lab.engine.control.load("stale"))

    async def used() -> str:
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
        request = InferenceRequest("stale", inputs=[input_tensor("IN", np.ones(4, np.float32))])
        admission.submit(request, answer.set_result, Checked.ALL)
        error = (await answer).error
        assert error is not None
        return error.message

    assert "unexpected shape for input 'IN' for model 'stale'" in lab.there(used())


def test_counts_are_settled_before_they_are_read(lab: Lab) -> None:
    before = lab.engine.answers["http"].ok

    async def answered() -> None:
        lab.remote.answers["http"].ok += 3

    lab.there(answered())
    lab.here(lab.service.settle())
    assert lab.engine.answers["http"].ok == before + 3


@contextmanager
def noted(service: FrontEndService, *kinds: type) -> Iterator[list[type]]:
    """The kinds of the messages that the engine hears, in order."""
    heard: list[type] = []

    def noting(kind: type, handler: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(message: Any) -> None:
            heard.append(kind)
            handler(message)

        return note

    kept = {kind: service.handlers[kind] for kind in kinds}
    service.handlers.update({kind: noting(kind, handler) for kind, handler in kept.items()})
    yield heard
    service.handlers.update(kept)


def test_a_handle_is_forgotten_at_a_tick_once_no_admission_can_name_it(lab: Lab) -> None:
    write_model(lab.repository, "ending", IDENTITY, identity_config())
    lab.here(lab.engine.control.load("ending"))
    admissions: list[RemoteAdmission] = []

    async def tick(*, opens: bool = False, drops: bool = False) -> None:
        if opens:
            admissions.append(lab.remote.open("ending", "", CLIENT))
        if drops:
            admissions.clear()
        else:
            lab.remote.trim()

    async def told() -> None:
        lab.service.check()
        await lab.service.settle()

    lab.here(told())  # versions of other tests have ended
    lab.there(tick(opens=True))
    lab.here(lab.engine.control.unload("ending"))
    with noted(lab.service, messages.Forget) as heard:
        lab.here(told())
        for step in (tick(), tick(drops=True)):
            lab.there(step)
            lab.here(told())
            assert heard == []
        lab.there(tick())
        lab.here(told())
        assert heard == [messages.Forget]


def test_the_memory_of_outputs_comes_back_with_the_next_request_or_soon(lab: Lab) -> None:
    async def infer_large(times: int) -> None:
        for _ in range(times):
            response = await infer(lab.remote.open("identity", "", CLIENT), input_tensor("IN", LARGE))
            response.release()

    async def told() -> None:
        lab.remote.memory.post_released()
        lab.remote.channel.flush()

    async def heard_all(heard: list[type]) -> None:
        async with asyncio.timeout(60):
            while len(heard) < 4:
                await lab.service.settle()

    lab.there(told())
    lab.here(lab.service.settle())
    with noted(lab.service, messages.Release, messages.Infer) as heard:
        lab.there(infer_large(2))
        lab.here(heard_all(heard))
        assert heard == [messages.Infer, messages.Release, messages.Infer, messages.Release]
