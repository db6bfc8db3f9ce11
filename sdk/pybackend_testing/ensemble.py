"""The run of a request through an ensemble: its steps, one after the other, each a request to another model."""

from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_stub.host_calls import HostRefusal
from pybackend_testing.configuration import EnsembleStep, Signature
from pybackend_testing.errors import InputError
from pybackend_testing.fakes import FakeModel, Replies
from pybackend_testing.request import Exchange


class Part(NamedTuple):
    """A step, and what runs it: a function, which has no signature, the harness of a model, or that of an ensemble."""

    step: EnsembleStep
    model: Any
    signature: Optional[Signature]
    optional: AbstractSet[str]  # inputs that it does not need


class _Value(NamedTuple):
    """A tensor of the ensemble; ``batched`` is whether it has a batch dimension, None for a function's, whose readers take it as it is."""

    tensor: Tensor
    batched: Optional[bool]


class _Scope(NamedTuple):
    """The tensors so far, and those that a step has left out, or the request."""

    values: Dict[str, _Value]
    missing: AbstractSet[str]
    absent: AbstractSet[str]


class _Failure(Exception):
    """A step has failed, or cannot run: the error of the ensemble, and the model's exception if it raised one."""

    def __init__(self, error: TritonError, exception: Optional[BaseException] = None) -> None:
        super().__init__(error.message())
        self.error = error
        self.exception = exception


class Ensemble:
    """An ensemble whose models are loaded; ``decoupled`` is whether one of them is."""

    def __init__(self, name: str, signature: Signature, parts: "Sequence[Part]") -> None:
        self.signature = signature
        self.decoupled = any(part.model.decoupled for part in parts)
        self.parts = _ordered(parts)
        self._name = name

    def responses(self, exchange: Exchange) -> "Iterator[Tuple[InferenceResponse, Optional[BaseException]]]":
        """Run a request; yields its responses, each with the exception of the model that made it an error."""
        signature = self.signature
        given = {each.name(): _Value(each, signature.max_batch_size > 0) for each in exchange.inputs}
        scope = _Scope(given, frozenset(), signature.inputs.keys() - given.keys())
        needed = self._needed(exchange.requested)
        parts = [part for part in self.parts if needed.intersection(part.step.outputs.values())]
        try:
            for response in self._follow(parts, scope, exchange, needed):
                yield response, None
        except _Failure as failure:
            text = f"in ensemble '{self._name}', {failure.error.message()}"
            yield InferenceResponse(error=TritonError(text, failure.error.code())), failure.exception

    def _needed(self, outputs: "Sequence[str]") -> "Set[str]":
        """The tensors that outputs depend on, these included."""
        needed = set(outputs)
        for part in reversed(self.parts):
            if needed.intersection(part.step.outputs.values()):
                needed.update(part.step.inputs.values())
        return needed

    def _follow(
        self, parts: "Sequence[Part]", scope: _Scope, exchange: Exchange, needed: "Set[str]"
    ) -> "Iterator[InferenceResponse]":
        """Run these steps; yields a response, or one for each of a stream's."""
        for place, part in enumerate(parts):
            if not _is_able(part, scope):
                continue
            wanted = {name: tensor for name, tensor in part.step.outputs.items() if tensor in needed}
            rest = parts[place + 1 :]
            replies = self._ask(part, scope, exchange, wanted, rest)
            if part.model.decoupled:
                for response in _received(replies):
                    yield from self._follow(rest, _taken(part, wanted, response, scope), exchange, needed)
                return
            for response in _received(replies):
                scope = _taken(part, wanted, response, scope)
        whole = self._response(exchange, scope)
        if whole is not None:
            yield whole

    def _ask(
        self, part: Part, scope: _Scope, exchange: Exchange, wanted: "Mapping[str, str]", rest: "Sequence[Part]"
    ) -> Replies:
        """Send a step's request to its model."""
        options = exchange.options
        request = InferenceRequest(
            options.id,
            options.correlation_id,
            [
                _renamed(scope.values[tensor], name, part)
                for name, tensor in part.step.inputs.items()
                if tensor in scope.values
            ],
            list(wanted),
            part.step.model_name,
            flags=options.flags,
            timeout=options.timeout_us,
        )
        request._parameters, request._priority = options.parameters, options.priority
        try:
            if isinstance(part.model, FakeModel):
                return part.model.call(request)
            replies: Replies = part.model.call(request, _dispensable(wanted, rest, exchange.requested))
        except HostRefusal as refused:
            raise _Failure(TritonError(refused.message, refused.code)) from None
        except InputError as error:
            raise _Failure(TritonError(str(error), TritonError.INVALID_ARG)) from None
        return replies

    def _response(self, exchange: Exchange, scope: _Scope) -> Optional[InferenceResponse]:
        """The response of the tensors that there are; None for a stream's response that leads to no output."""
        signature, outputs = self.signature, []
        for name in exchange.requested:
            value, spec = scope.values.get(name), signature.outputs[name]
            if value is not None:
                inner = spec.dims if spec.model_dims is None else spec.model_dims
                shape = _fitted(value, inner, batched=signature.max_batch_size > 0)
                tensor = value.tensor
                outputs.append(
                    Tensor._from_wire(name, tensor._datatype, spec.shape_for_client(shape), tensor._payload())
                )
            elif not (name in scope.missing or self.decoupled):
                prefix = f"[request id: {exchange.options.id or '<id_unknown>'}] "
                text = f"{prefix}unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
                raise _Failure(TritonError(f"{text}: no step has set '{name}'", TritonError.INVALID_ARG))
        if self.decoupled and not outputs:
            return None
        response = InferenceResponse(outputs)
        if exchange.options.correlation_id or exchange.options.flags:
            response._parameters = {
                "sequence_id": exchange.options.correlation_id,
                "sequence_start": bool(exchange.options.flags & 1),
                "sequence_end": bool(exchange.options.flags & 2),
            }
        return response


class EnsembleReplies:
    """The responses of an ensemble to the request of a model, or of another ensemble."""

    def __init__(
        self, responses: "Iterator[Tuple[InferenceResponse, Optional[BaseException]]]", *, decoupled: bool
    ) -> None:
        self.exception: Optional[BaseException] = None
        self._responses = responses
        self._decoupled = decoupled
        self._cancelled = False

    def receive(self) -> Tuple[Optional[InferenceResponse], bool]:
        response, self.exception = (None, None) if self._cancelled else next(self._responses, (None, None))
        return response, response is None or not self._decoupled or response.has_error()

    def cancel(self) -> None:
        self._cancelled = True


def _ordered(parts: "Sequence[Part]") -> List[Part]:
    """An order in which each step finds its tensors; streams come as late as they can."""
    ordered: List[Part] = []
    waiting = list(parts)
    while waiting:
        made = {tensor for part in waiting for tensor in part.step.outputs.values()}
        able = [part for part in waiting if made.isdisjoint(part.step.inputs.values())]
        chosen = next((part for part in able if not part.model.decoupled), able[0])
        ordered.append(chosen)
        waiting.remove(chosen)
    return ordered


def _received(replies: Replies) -> "Iterator[InferenceResponse]":
    """The responses of a step. Raises _Failure: one of them is an error."""
    final = False
    try:
        while not final:
            response, final = replies.receive()
            if response is None:
                continue
            error = response.error()
            if error is not None:
                final = True
                raise _Failure(error, getattr(replies, "exception", None))
            yield response
    finally:
        if not final:  # a later step has failed, or the test reads no further
            replies.cancel()


def _is_able(part: Part, scope: _Scope) -> bool:
    """Whether a step's inputs are there, or need not be."""
    return all(
        tensor in scope.values or tensor in scope.absent or (tensor in scope.missing and name in part.optional)
        for name, tensor in part.step.inputs.items()
    )


def _taken(part: Part, wanted: "Mapping[str, str]", response: InferenceResponse, scope: _Scope) -> _Scope:
    """The tensors, with those of a step's response."""
    batched = None if part.signature is None else part.signature.max_batch_size > 0
    values, missing = dict(scope.values), set(scope.missing)
    found: Dict[str, Tensor] = {each.name(): each for each in reversed(response.output_tensors())}  # the first counts
    for name, tensor in wanted.items():
        if name in found:
            values[tensor] = _Value(found[name], batched)
        else:
            missing.add(tensor)
    return scope._replace(values=values, missing=missing)


def _renamed(value: _Value, name: str, part: Part) -> Tensor:
    """A tensor of the ensemble as an input of a step."""
    tensor, signature, shape = value.tensor, part.signature, value.tensor.shape()
    if signature is not None and name in signature.inputs:
        shape = _fitted(value, signature.inputs[name].dims, batched=signature.max_batch_size > 0)
    return Tensor._from_wire(name, tensor._datatype, shape, tensor._payload())


def _fitted(value: _Value, dims: "Sequence[int]", *, batched: bool) -> "List[int]":
    """The shape for a reader of these dimensions, with a batch dimension if it is ``batched``; the server's rule."""
    shape = value.tensor.shape()
    if value.batched in (batched, None) or len(shape) == len(dims):
        return shape
    if batched:
        return [1, *shape]
    return shape[1:] if shape and shape[0] == 1 else shape


def _dispensable(wanted: "Mapping[str, str]", rest: "Sequence[Part]", requested: "Sequence[str]") -> "AbstractSet[str]":
    """The outputs that later steps alone read, all of which can do without."""
    readers = [(part, name, tensor) for part in rest for name, tensor in part.step.inputs.items()]
    return frozenset(
        output
        for output, tensor in wanted.items()
        if tensor not in requested and all(name in part.optional for part, name, read in readers if read == tensor)
    )
