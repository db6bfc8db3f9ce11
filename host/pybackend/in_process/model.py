"""A model of a server in the caller's process: requests to it, and what is known about it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from functools import partial
from queue import SimpleQueue
from typing import Any

from pybackend.engine.description import ModelDescription
from pybackend.in_process.answers import AsyncResponseIterator, InferenceResponse, Mailbox, ResponseIterator
from pybackend.in_process.call import (
    MOST_ROUTES,
    Accepted,
    CopiedResponse,
    Deliver,
    PendingCall,
    Routes,
    is_large,
    kinds_of,
    nowhere,
)
from pybackend.in_process.crossing import Crossing, crossing_to_caller
from pybackend.in_process.errors import InvalidArgumentError, TritonError, WrongTypeError, error_of
from pybackend.in_process.host_thread import HostThread
from pybackend.in_process.life import Life
from pybackend.in_process.memory import (
    DeviceOrMemoryType,
    MemoryAllocator,
    OutputTarget,
)
from pybackend.in_process.tensor import tensor_of
from pybackend.inference import request as engine
from pybackend.inference.tensor import INT64_MAX
from pybackend.protocol.documents.metadata import model_metadata
from pybackend.recurring import Recurring

_UINT64_MAX = 2**64 - 1


class ModelBatchFlag(IntFlag):
    """How a model batches."""

    UNKNOWN = 1
    FIRST_DIM = 2


class ModelTxnPropertyFlag(IntFlag):
    """How many responses a request has."""

    ONE_TO_ONE = 1
    DECOUPLED = 2


@dataclass
class InferenceRequest:
    """A request.

    ``inputs`` are NumPy arrays, objects with ``__dlpack__``, lists of strings or numbers, or tensors, by name.
    """

    model: Model
    request_id: str = ""
    flags: int = 0  # 1 for the start of a sequence, 2 for its end
    correlation_id: int | str = 0
    priority: int = 0
    timeout: int = 0  # microseconds
    inputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    output_memory_allocator: MemoryAllocator | None = None  # brings the memory for outputs
    response_queue: SimpleQueue[InferenceResponse] | asyncio.Queue[InferenceResponse] | None = None  # gets them, too


class Model:
    """A model by name; ``version`` -1 is the newest that serves. Nothing is asked before a method needs it."""

    def __init__(self, life: Life, name: str, version: int = -1, state: str = "", reason: str = "") -> None:
        self._life = life
        self.name = name
        self.version = version
        self.state = state  # as the repository index had it, ``""`` if it was not read
        self.reason = reason
        self._routes: Routes = Recurring(MOST_ROUTES)
        self._accepted: Accepted = Recurring(MOST_ROUTES)
        self._version = "" if version == -1 else str(version)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version})"

    # Requests

    def create_request(self, **fields: Any) -> InferenceRequest:
        """A request to this model."""
        return InferenceRequest(self, **fields)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> ResponseIterator:
        """Send a request, and return an iterator over its responses; see :class:`InferenceRequest` for the fields.

        Large arrays were read when this returns. Raises TritonError: there is no server, no such model or input, or the
        request is wrong otherwise. Other errors are raised by the iterator. Unless ``raise_on_error``, errors are in
        its responses.
        """
        host, sent, queue, place = self._request(inference_request, fields)
        answers: SimpleQueue[CopiedResponse] = SimpleQueue()
        if queue is not None and not isinstance(queue, SimpleQueue):  # putting into another one may block
            raise InvalidArgumentError(
                "response_queue of infer() is a queue.SimpleQueue; async_infer() takes an asyncio.Queue"
            )
        taken: SimpleQueue[None] | None = None
        if kinds_of(sent.inputs) not in self._accepted or any(map(is_large, sent.inputs)):
            taken = SimpleQueue()
        on_taken = None if taken is None else partial(taken.put, None)
        put = None if queue is None else queue.put
        call = _call(self, host, sent, answers.put, answers.qsize, put, on_taken)
        responses = ResponseIterator(self, call, answers, place, raises=raise_on_error)
        if taken is not None:
            taken.get()
            if call.is_refused and raise_on_error:
                next(responses)
        return responses

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **fields: Any
    ) -> AsyncResponseIterator:
        """Send a request from a coroutine; ``await`` the only response, or read them with ``async for``.

        Otherwise like :meth:`infer`, but arrays of a megabyte and more are read until the first response arrives.
        """
        crossing = crossing_to_caller()
        host, sent, queue, place = self._request(inference_request, fields)
        answers = Mailbox(crossing)
        put = None
        if queue is not None:
            if not isinstance(queue, asyncio.Queue) or queue.maxsize > 0:  # an answer cannot wait for room
                raise InvalidArgumentError(
                    "response_queue of async_infer() is an asyncio.Queue without a maxsize; infer() takes a queue.SimpleQueue"
                )
            put = partial(_put_across, crossing, queue)
        call = _call(self, host, sent, answers.deliver, answers.backlog, put)
        return AsyncResponseIterator(self, call, answers, place, raises=raise_on_error)

    def _request(
        self, request: InferenceRequest | None, fields: dict[str, Any]
    ) -> tuple[HostThread, engine.InferenceRequest, Any, OutputTarget | None]:
        """The thread that serves, the request as the engine takes it, the caller's queue for responses and memory for outputs, if any."""
        if request is None:
            for name in fields:
                if name not in _FIELDS:
                    raise WrongTypeError(f"infer() got an unexpected keyword argument '{name}'")
        elif fields:
            raise InvalidArgumentError("pass a request, or its fields, but not both")
        elif not isinstance(request, InferenceRequest):
            raise WrongTypeError(f"pass an InferenceRequest, or its fields by name, not {type(request).__name__}")
        else:
            fields = {name: getattr(request, name) for name in _FIELDS}
        host = self._life.host
        given = fields.get("inputs", {})
        try:
            named = given.items()
        except AttributeError:
            raise InvalidArgumentError(
                f"inputs is of type {type(given).__name__}: pass a dictionary of arrays by the names of the inputs"
            ) from None
        inputs = [tensor_of(name, value) for name, value in named]
        sent = engine.InferenceRequest(self.name, self._version, "", inputs)
        if len(fields) == 1 and "inputs" in fields:  # true for nearly every request
            return host, sent, None, None
        _apply(sent, fields)
        queue, place = fields.get("response_queue"), OutputTarget.of(fields)
        if queue is not None and place is not None:
            raise InvalidArgumentError(
                "outputs in memory of an allocator's cannot go to a response_queue: use one of both"
            )
        return host, sent, queue, place

    # Facts

    def ready(self) -> bool:
        """Whether the model would answer a request now."""
        engine = self._life.host.server.engine
        try:
            return bool(self._life.ask(partial(engine.would_answer, self.name, self._version)))
        except TritonError:  # there is no such model
            return False

    def metadata(self) -> dict[str, Any]:
        """Versions, inputs and outputs, as ``GET /v2/models/NAME`` has them."""
        about = self._description()
        document: dict[str, Any] = json.loads(model_metadata(about.signature, about.versions, about.platform))
        return document

    def config(self) -> dict[str, Any]:
        """The effective configuration."""
        return json.loads(json.dumps(dict(self._description().document)))  # type: ignore[no-any-return]

    def statistics(self) -> dict[str, Any]:
        """The statistics of its versions, as ``GET /v2/models/NAME/stats`` has them."""
        return statistics_of(self._life, self.name, self._version)

    def batch_properties(self) -> ModelBatchFlag:
        """Whether the first dimension of tensors is that of the batch."""
        batches = self._description().signature.max_batch_size > 0
        return ModelBatchFlag.FIRST_DIM if batches else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Whether a request may have any number of responses."""
        decoupled = self._description().document.get("model_transaction_policy", {}).get("decoupled", False)
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    def _description(self) -> ModelDescription:
        engine = self._life.host.server.engine
        return self._life.get(lambda: engine.describe(self.name, self._version))


def statistics_of(life: Life, name: str, version: str) -> dict[str, Any]:
    """The statistics of ready versions; ``""`` for all models, or all versions."""
    engine = life.host.server.engine

    async def asked() -> dict[str, Any]:
        return {"model_stats": [row async for part in engine.statistics(name, version) for row in part]}

    return life.ask(asked)


_FIELDS = frozenset(each.name for each in dataclasses.fields(InferenceRequest) if each.name != "model")


def _apply(sent: engine.InferenceRequest, fields: Mapping[str, Any]) -> None:
    """Set the fields that most requests do not have."""
    if fields.get("request_id"):
        sent.id = _text("request_id", fields["request_id"])
    if fields.get("correlation_id"):
        sent.correlation_id = _correlation_id(fields["correlation_id"])
    for name, attribute in (("flags", "flags"), ("priority", "priority"), ("timeout", "timeout_us")):
        number = fields.get(name, 0)
        _check_number(name, number, _UINT64_MAX)
        setattr(sent, attribute, int(number))
    parameters = fields.get("parameters")
    if parameters:
        if not isinstance(parameters, Mapping):
            raise InvalidArgumentError(f"parameters is a dictionary, not {type(parameters).__name__}")
        sent.parameters = {_text("a parameter's name", name): _value(name, parameters[name]) for name in parameters}


def _call(
    model: Model,
    host: HostThread,
    sent: engine.InferenceRequest,
    deliver: Deliver,
    backlog: Callable[[], int],
    put: Callable[[InferenceResponse], None] | None,
    on_taken: Callable[[], None] | None = None,
) -> PendingCall:
    """Begin a call whose answers go to ``deliver``; ``put`` gets them, too, and those that nobody reads."""
    rest: Deliver = nowhere
    if put is not None:
        deliver, backlog = partial(_deliver_twice, model, deliver, put, sent.id), int
        rest = partial(_deliver_twice, model, nowhere, put, sent.id)
    door, routes = host.server.engine, model._routes
    return PendingCall(
        door, host.crossing, sent, routes, model._accepted, deliver, backlog, host.copies, on_taken, rest
    )


def _deliver_twice(model: Model, first: Any, second: Any, request_id: str, answer: CopiedResponse) -> None:
    error = None if answer.error is None else error_of(answer.error)
    first(answer)
    second(InferenceResponse(model, request_id, dict(answer.parameters or {}), answer.outputs, error, answer.final))


def _put_across(crossing: Crossing, queue: Any, response: InferenceResponse) -> None:
    crossing.send(partial(queue.put_nowait, response))


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} has a lone surrogate, which UTF-8 cannot hold") from None
    return value


def _check_number(what: str, value: Any, most: int, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(f"{what} is a whole number from {least} to {most}, not {value!r}")


def _correlation_id(value: Any) -> int | str:
    if isinstance(value, str):
        return _text("correlation_id", value)
    _check_number("correlation_id", value, _UINT64_MAX)
    return int(value)


def _value(name: str, value: Any) -> engine.ParameterValue:
    if isinstance(value, str):
        return _text(f"parameter '{name}'", value)
    if isinstance(value, bool | float):
        return value
    if not isinstance(value, int):
        raise InvalidArgumentError(
            f"parameter '{name}' is of type {type(value).__name__}: use a string, a number or a bool"
        )
    _check_number(f"parameter '{name}'", value, INT64_MAX, -INT64_MAX - 1)
    return value
