"""Runs the requests of one ``execute`` together: joined along the batch dimension, and split again.

A single request is not copied. What is done for every request of a batch is
left to functions in C where there is one: behind a batcher, these lines cost as much as the answer of a small model.
"""

from abc import ABC, abstractmethod
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.backend.resources import memory_advice
from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import InferenceResponseSender
from pybackend_sdk.tensor import Tensor


class Form(ABC):
    """How the values are held that a backend's ``run`` takes and returns. Each has rows."""

    @abstractmethod
    def read(self, tensor: Tensor, /) -> Any:
        """Make a value of an input."""

    @abstractmethod
    def join(self, tensors: Sequence[Tensor], /) -> Any:
        """Make one value of inputs that follow each other along the first dimension. They are alike otherwise."""

    @abstractmethod
    def write(self, name: str, value: Any, /) -> Tensor:
        """Make an output of a value."""

    def split(self, name: str, value: Any, rows: Sequence[int], /) -> List[Tensor]:
        """Make outputs of so many rows each of a value, one after the other.

        Args:
            name: of each output.
            value: sliced by its rows.
            rows: of each output; together as many as the value has.
        """
        ends = list(accumulate(rows))
        return [self.write(name, value[end - count : end]) for end, count in zip(ends, rows)]


class _Arrays(Form):
    read = staticmethod(Tensor.as_numpy)
    join = staticmethod(Tensor._joined)
    split = staticmethod(Tensor._split)

    def write(self, name: str, value: "Union[np.ndarray, Tensor]", /) -> Tensor:
        return value if isinstance(value, Tensor) else Tensor._of(name, value)


ARRAYS = _Arrays()
"""NumPy arrays; outputs can also be tensors."""


Run = Callable[[Dict[str, Any], Sequence[str]], Mapping[str, Any]]
"""Computes outputs from inputs, both by name. It also gets the names of the outputs that are wanted, and returns at
least those. An output can be an array, or a tensor from ``Tensor.empty``, which is sent without a copy."""

_TOGETHER = "{0} ({1} requests were computed together, and none is computed twice: any of them may be the cause)"
"""Error of each request of a batch that failed."""

_Columns = Sequence[Sequence[Tensor]]
"""The inputs of several requests: for each name, the tensors of all requests in their order."""

_inputs, _wanted_names = attrgetter("_inputs"), attrgetter("_requested_output_names")
_name, _datatype, _shape = attrgetter("_name"), attrgetter("_datatype"), attrgetter("_shape")
_first = itemgetter(0)


def execute_batch(
    requests: Sequence[InferenceRequest], run: Run, *, batches: bool, form: Form = ARRAYS, repeats: bool = False
) -> List[InferenceResponse]:
    """Answer all requests of one ``execute``.

    Requests whose inputs have the same names, types and shapes, apart from the batch dimension, are computed together.
    If that fails, all of them get the error, or, if ``repeats`` is set, each is computed alone, and those that fail
    again get the error.

    Args:
        requests: the argument of ``execute``.
        run: computes the outputs.
        batches: whether the first dimension of every input and output is the batch's, that is ``max_batch_size`` > 0.
        form: how the framework holds values.
        repeats: whether ``run`` may compute the requests of a batch again that failed, because it leaves nothing
            behind: no state of the model, and nothing outside it.

    Returns:
        One response per request, in the same order.
    """
    if len(requests) == 1 or not batches:
        return [_alone(request, run, form) for request in requests]
    columns = _alike(requests)
    if columns:
        return _together(requests, columns, run, form, repeats)
    responses: List[Optional[InferenceResponse]] = [None] * len(requests)
    for places in _groups(requests):
        group = [requests[place] for place in places]
        for place, response in zip(places, _together(group, _by_name(group), run, form, repeats)):
            responses[place] = response
    return responses  # type: ignore[return-value]  # every request is in one group


def _alone(request: InferenceRequest, run: Run, form: Form) -> InferenceResponse:
    try:
        names = request._requested_output_names
        outputs = run({tensor._name: form.read(tensor) for tensor in request._inputs}, names)
        return InferenceResponse._of([form.write(name, outputs[name]) for name in names])
    except Exception as error:  # noqa: BLE001  the framework's errors are of any type
        return InferenceResponse(error=TritonError(_message(error)))


def _alike(requests: Sequence[InferenceRequest]) -> "Optional[_Columns]":
    """The inputs of requests that are all alike and in the same order, the usual case; None for others."""
    inputs = list(map(_inputs, requests))
    columns = list(zip(*inputs))
    if set(map(len, inputs)) != {len(columns)}:
        return None
    for column in columns:
        if len(set(map(_name, column))) > 1 or len(set(map(_datatype, column))) > 1:
            return None
        shapes = list(map(_shape, column))
        if shapes.count(shapes[0]) < len(shapes):
            rest = shapes[0][1:]
            if any(shape[1:] != rest for shape in shapes):
                return None
    return columns


def _groups(requests: Sequence[InferenceRequest]) -> "List[List[int]]":
    """Groups of places of requests that can be joined."""
    groups: Dict[Any, List[int]] = {}
    for place, request in enumerate(requests):
        key = frozenset([(tensor._name, tensor._datatype, tuple(tensor._shape[1:])) for tensor in request._inputs])
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _by_name(requests: Sequence[InferenceRequest]) -> _Columns:
    """The inputs of requests that are alike but for the order of their inputs."""
    return list(zip(*[sorted(request._inputs, key=_name) for request in requests]))


def _together(
    requests: Sequence[InferenceRequest], columns: _Columns, run: Run, form: Form, repeats: bool
) -> List[InferenceResponse]:
    if len(requests) == 1 or not columns:
        return [_alone(request, run, form) for request in requests]
    has_begun = False
    try:
        names, are_same = _wanted(requests)
        inputs = {column[0]._name: form.join(column) for column in columns}
        has_begun = True
        outputs = run(inputs, names)
        rows = list(map(_first, map(_shape, columns[0])))
        values = {name: _sliceable(outputs[name]) for name in names}
        _check_rows(values, sum(rows))
        parts = {name: form.split(name, value, rows) for name, value in values.items()}
        if are_same and names:
            return [InferenceResponse._of(list(tensors)) for tensors in zip(*[parts[name] for name in names])]
        return [
            InferenceResponse._of([parts[name][place] for name in request._requested_output_names])
            for place, request in enumerate(requests)
        ]
    except Exception as error:  # noqa: BLE001  the framework's errors are of any type
        if repeats or not has_begun:  # whichever request causes it shows when each is computed alone
            return [_alone(request, run, form) for request in requests]
        failure = _TOGETHER.format(_message(error), len(requests))
        return [InferenceResponse(error=TritonError(failure)) for _ in requests]


def _wanted(requests: Sequence[InferenceRequest]) -> "Tuple[Sequence[str], bool]":
    """The names of the outputs that any of the requests wants, and whether all want these."""
    wanted = list(map(_wanted_names, requests))
    if wanted.count(wanted[0]) == len(wanted):
        return wanted[0], True
    return list(dict.fromkeys(name for names in wanted for name in names)), False


def _check_rows(values: Mapping[str, Any], count: int) -> None:
    for name, value in values.items():
        shape = [len(value)] if isinstance(value, list) else list(value.shape)
        if not shape or shape[0] != count:
            raise TritonModelException(
                f"output '{name}' has the shape {shape} for a batch of {count}: its first dimension is not the batch's"
            )


def _sliceable(output: Any) -> Any:
    return output.as_numpy() if isinstance(output, Tensor) else output


def _message(error: Exception) -> str:
    if isinstance(error, TritonModelException):
        return str(error)
    advice = memory_advice(error)
    message = f"{type(error).__name__}: {error}"
    return f"{message.rstrip()}. {advice}" if advice else message


def offer(sender: InferenceResponseSender, response: InferenceResponse) -> bool:
    """Send a response that is not the last one, unless its receiver is slow. ``sender.send`` would wait then.

    Args:
        sender: of a request to a decoupled model.
        response: to send.

    Returns:
        Whether it was sent. If not, offer it again later, alone or joined with what comes after it.

    Raises:
        TritonModelException: the final response was sent before, or the server is gone.
    """
    stream = sender._stream
    return stream is None or stream.offer(response)
