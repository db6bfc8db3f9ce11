"""Runs the requests of one ``execute`` together: joined along the batch dimension, and split again.

A single request is not copied. An error concerns only the request that causes it.
"""

from itertools import accumulate
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from pybackend_sdk.backend.process_memory import memory_advice
from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

Run = Callable[[Dict[str, Any], Sequence[str]], Mapping[str, Any]]
"""Computes outputs from inputs, both by name. It also gets the names of the outputs that are wanted, and returns at
least those. An output can be an array, or a tensor from ``Tensor.empty``, which is sent without a copy."""


class Form(NamedTuple):
    """How the values are held that a backend's ``run`` takes and returns. Each has rows, and can be sliced by them.

    Attributes:
        read: makes a value of an input.
        join: makes one value of those of several requests, along the first dimension.
        write: makes an output of a value, by its name.
    """

    read: Callable[[Tensor], Any]
    join: Callable[[Sequence[Any]], Any]
    write: Callable[[str, Any], Tensor]


def _written(name: str, output: "Union[np.ndarray, Tensor]") -> Tensor:
    return output if isinstance(output, Tensor) else Tensor(name, output)


ARRAYS = Form(Tensor.as_numpy, np.concatenate, _written)
"""NumPy arrays; outputs can also be tensors."""


def execute_batch(
    requests: Sequence[InferenceRequest], run: Run, *, batches: bool, form: Form = ARRAYS
) -> List[InferenceResponse]:
    """Answer all requests of one ``execute``.

    Requests whose inputs have the same names, types and shapes, apart from the batch dimension, are computed together. If
    that fails, each of them is computed alone, and those that fail again get the error.

    Args:
        requests: the argument of ``execute``.
        run: computes the outputs.
        batches: whether the first dimension of every input and output is the batch's, that is ``max_batch_size`` > 0.
        form: how the framework holds values.

    Returns:
        One response per request, in the same order.
    """
    if len(requests) == 1 or not batches:
        return [_alone(request, run, form) for request in requests]
    if _have_one_kind_of_input(requests):
        return _together(requests, run, form)
    responses: List[Optional[InferenceResponse]] = [None] * len(requests)
    for places in _alike(requests):
        group = [requests[place] for place in places]
        for place, response in zip(places, _together(group, run, form)):
            responses[place] = response
    return responses  # type: ignore[return-value]  # every request is in one group


def _alone(request: InferenceRequest, run: Run, form: Form) -> InferenceResponse:
    try:
        names = request._requested_output_names
        outputs = run({tensor._name: form.read(tensor) for tensor in request._inputs}, names)
        return InferenceResponse([form.write(name, outputs[name]) for name in names])
    except Exception as error:  # noqa: BLE001  the framework's errors are of any type
        return InferenceResponse(error=TritonError(_message(error)))


def _alike(requests: Sequence[InferenceRequest]) -> "List[List[int]]":
    """Groups of places of requests that can be joined."""
    groups: Dict[Any, List[int]] = {}
    for place, request in enumerate(requests):
        key = tuple([(tensor._name, tensor._datatype, tuple(tensor._shape[1:])) for tensor in request._inputs])
        groups.setdefault(key if len(key) < 2 else frozenset(key), []).append(place)
    return list(groups.values())


def _have_one_kind_of_input(requests: Sequence[InferenceRequest]) -> bool:
    """Whether all requests have a single input, and these are alike: the usual case, found out quickly."""
    first = requests[0]._inputs
    if len(first) != 1:
        return False
    name, datatype, shape = first[0]._name, first[0]._datatype, first[0]._shape[1:]
    for request in requests:
        inputs = request._inputs
        if len(inputs) != 1:
            return False
        tensor = inputs[0]
        if tensor._name != name or tensor._datatype != datatype or tensor._shape[1:] != shape:
            return False
    return True


def _together(requests: Sequence[InferenceRequest], run: Run, form: Form) -> List[InferenceResponse]:
    if len(requests) == 1:
        return [_alone(requests[0], run, form)]
    try:
        names, rows = _wanted(requests), [request._inputs[0]._shape[0] for request in requests]
        outputs = run(_joined(requests, form), names)
        values = {name: _sliceable(outputs[name]) for name in names}
        _check_rows(values, sum(rows))
        columns = {name: _split(name, value, rows, form) for name, value in values.items()}
        return [
            InferenceResponse([columns[name][place] for name in request._requested_output_names])
            for place, request in enumerate(requests)
        ]
    except Exception:  # noqa: BLE001  whichever request causes it shows when each is computed alone
        return [_alone(request, run, form) for request in requests]


def _joined(requests: Sequence[InferenceRequest], form: Form) -> Dict[str, Any]:
    tensors: Dict[str, List[Tensor]] = {}
    for request in requests:
        for tensor in request._inputs:
            tensors.setdefault(tensor._name, []).append(tensor)
    if form is ARRAYS:
        return {name: Tensor._joined(parts) for name, parts in tensors.items()}
    return {name: form.join([form.read(part) for part in parts]) for name, parts in tensors.items()}


def _split(name: str, value: Any, rows: Sequence[int], form: Form) -> List[Tensor]:
    """An output's tensors, one for each request."""
    if form is ARRAYS:
        return Tensor._split(name, value, rows)
    ends = list(accumulate(rows))
    return [form.write(name, value[end - count : end]) for end, count in zip(ends, rows)]


def _wanted(requests: Sequence[InferenceRequest]) -> "Sequence[str]":
    first = requests[0]._requested_output_names
    if all(request._requested_output_names == first for request in requests):
        return first
    return list(dict.fromkeys(name for request in requests for name in request._requested_output_names))


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
