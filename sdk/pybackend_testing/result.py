"""Results for a test: named arrays, or an error; one result or a stream of them."""

import json
import warnings
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from pybackend_sdk.error import TritonError
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_testing.configuration import Signature, TensorSpec, listed, nearest
from pybackend_testing.errors import HarnessError, InferenceFailed, OutputError
from pybackend_testing.executor import ModelExecutor
from pybackend_testing.request import Arrival, Exchange, shape_problem
from pybackend_wire.dtypes import DATATYPES


class Result:
    """One response, as a client receives it.

    Attributes:
        error: the reason the request failed, None if it did not.
        exception: the exception from the model, None if it raised none.
        parameters: the response's parameters.
        response: the response itself, with tensors of ``pb_utils``.
    """

    def __init__(self, response: InferenceResponse, exception: Optional[BaseException] = None) -> None:
        self.response = response
        self.error: Optional[TritonError] = response.error()
        self.exception = exception
        self.parameters: Dict[str, Any] = json.loads(response.parameters())
        self._arrays: Dict[str, np.ndarray] = {}

    def raise_for_error(self) -> "Result":
        """Return this result, unless the request failed.

        Raises:
            InferenceFailed: the request failed; an exception from the model is the cause.
        """
        __tracebackhide__ = True  # pytest shows the test's line and the model's exception
        if self.error is not None:
            raise InferenceFailed(self.error) from self.exception
        return self

    @property
    def outputs(self) -> "Dict[str, np.ndarray]":
        """Every output by its name, in the model's order.

        Raises:
            InferenceFailed: the request failed.
        """
        __tracebackhide__ = True
        self.raise_for_error()
        return {tensor.name(): self[tensor.name()] for tensor in self.response.output_tensors()}

    def __getitem__(self, name: str) -> "np.ndarray":
        """An output as a writable copy; BYTES are ``bytes`` objects, BF16 is its bits as ``uint16``.

        Raises:
            InferenceFailed: the request failed.
            KeyError: the response has no such output.
        """
        __tracebackhide__ = True
        self.raise_for_error()
        if name not in self._arrays:
            tensors = {tensor.name(): tensor for tensor in reversed(self.response.output_tensors())}  # the first counts
            if name not in tensors:
                raise KeyError(
                    f"the response has no output '{name}'.{nearest(name, tensors)} It has {sorted(tensors)}."
                )
            self._arrays[name] = _array(tensors[name])
        return self._arrays[name]

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Result(error={self.error.code().name}: {self.error.message()!r})"
        shown = [f"{t.name()}: {t._datatype} {t.shape()}" for t in self.response.output_tensors()]
        parameters = f", parameters={self.parameters}" if self.parameters else ""
        return f"Result({', '.join(shown)}{parameters})"


class OutputWarning(UserWarning):
    """Outputs of a response do not match the configuration, in a harness that is not strict."""


class Stream:
    """The responses to one request, one by one as they arrive; iterate, or :meth:`collect` them."""

    def __init__(self, executor: ModelExecutor, exchange: Exchange, wait_s: float, *, strict: bool) -> None:
        self._executor = executor
        self._exchange = exchange
        self._wait_s = wait_s
        self._strict = strict
        self._count = 0
        self._finished = False

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        """Wait for the next response.

        Raises:
            StopIteration: the previous response carried the final flag.
            NoResponse: none arrived in time; the message says what the model is doing or has forgotten.
            OutputError: outputs do not match the configuration.
        """
        while not self._finished:
            arrival = self._executor.next_arrival(self._exchange, self._wait_s, self._count)
            self._finished = arrival.final
            if arrival.response is not None:
                self._count += 1
                return checked_result(self._executor, self._exchange, arrival, strict=self._strict, complete=False)
        self._executor.failures.raise_first()
        raise StopIteration

    def collect(self) -> List[Result]:
        """Return all remaining responses.

        Raises:
            HarnessError: see :meth:`__next__`.
        """
        return list(self)

    def cancel(self) -> None:
        """Cancel the request, as a disconnecting client does; the model sees it through ``is_cancelled()``."""
        self._exchange.cancel()

    @property
    def finished(self) -> bool:
        """Whether the model has sent the final flag."""
        return self._exchange.finished


class HarnessReplies:
    """The responses of a model that runs in a harness."""

    def __init__(self, executor: ModelExecutor, exchange: Exchange, wait_s: float, *, strict: bool) -> None:
        self._executor = executor
        self._exchange = exchange
        self._wait_s = wait_s
        self._strict = strict
        self._received = 0
        self.exception: Optional[BaseException] = None
        """The exception that the model raised instead of the last response."""

    def receive(self) -> Tuple[Optional[InferenceResponse], bool]:
        try:
            arrival = self._executor.next_arrival(self._exchange, self._wait_s, self._received)
            self._received += 1
            if arrival.response is None:
                return None, True
            complete = not self._executor.decoupled
            result = checked_result(self._executor, self._exchange, arrival, strict=self._strict, complete=complete)
            self.exception = result.exception
            return result.response, arrival.final
        except HarnessError as error:
            self._executor.failures.keep(error)
            text = f"An error occurred while performing BLS request. {error}"
            return InferenceResponse(error=TritonError(text)), True

    def cancel(self) -> None:
        self._exchange.cancel()


def checked_result(
    executor: ModelExecutor, exchange: Exchange, arrival: Arrival, *, strict: bool, complete: bool = True
) -> Result:
    """Make a result, and check its outputs against the configuration: a mismatch is an error if ``strict``, else a warning.

    Every requested output must be present if the result is ``complete``.
    """
    assert arrival.response is not None
    if arrival.response.has_error():
        return Result(arrival.response, arrival.exception)
    problems = output_problems(
        executor.signature,
        arrival.response.output_tensors(),
        arrival.unknown,
        [name for name in exchange.requested if name not in exchange.dispensable] if complete else (),
        exchange.batch_size,
    )
    if problems and strict:
        raise OutputError(
            "\n".join(problems) + "\n(A server sends such a response unless VALIDATE_OUTPUTS is set; so does "
            "ModelHarness(strict=False).)"
        )
    for problem in problems:
        warnings.warn(problem, OutputWarning, stacklevel=4)
    return Result(arrival.response)


def _array(tensor: Tensor) -> "np.ndarray":
    if tensor._datatype == "BF16":
        tensor = Tensor._from_wire(tensor.name(), "UINT16", tensor.shape(), tensor._payload())
    return tensor.as_numpy()


def output_problems(
    signature: Signature,
    outputs: "Sequence[Tensor]",
    unknown: "Sequence[str]",
    requested: "Sequence[str]",
    batch_size: int,
) -> List[str]:
    """Describe the faults of a response, one sentence each. The configuration does not have ``unknown`` outputs."""
    subject = f"model '{signature.model_name}' returned"
    problems = []
    names = [tensor.name() for tensor in outputs]
    for name in unknown:
        missing = [other for other in signature.outputs if other not in names]
        problems.append(
            f"{subject} output '{name}', which its configuration does not have, so clients never receive it."
            f"{nearest(name, missing or signature.outputs)} Its outputs are {listed(signature.outputs.values())}."
        )
    problems += [
        f"{subject} no output '{name}', although the request wants it; it returned {sorted([*names, *unknown])}."
        for name in requested
        if name not in names
    ]
    problems += [
        f"{subject} output '{name}' {count} times in one response: whatever takes one output takes the first."
        for name, count in Counter(names).items()
        if count > 1
    ]
    for tensor in outputs:
        problems += _tensor_problems(signature, signature.outputs[tensor.name()], tensor, batch_size, subject)
    return problems


def _tensor_problems(
    signature: Signature, spec: TensorSpec, tensor: Tensor, batch_size: int, subject: str
) -> List[str]:
    problems = []
    if tensor._datatype != spec.datatype:
        problems.append(
            f"{subject} output '{spec.name}' as {tensor._datatype}, but its configuration says {spec.datatype}"
            f"{_cast_advice(spec)}."
        )
    expected = spec
    if signature.max_batch_size:
        expected = spec._replace(dims=(batch_size, *spec.dims[1:]))
    shape = tensor.shape()
    scalar = (tuple(shape) or (1,)) == (expected.dims or (1,))
    reason = None if scalar else shape_problem(expected, shape, signature.max_batch_size)
    if reason is not None:
        problems.append(
            f"{subject} output '{spec.name}' with shape {shape}, but its configuration says {list(expected.dims)}. {reason}"
        )
    return problems


def _cast_advice(spec: TensorSpec) -> str:
    numpy_type = DATATYPES[spec.datatype].numpy
    if spec.datatype == "BYTES":
        return ": make it from an array of strings"
    return "" if numpy_type is None else f": make it from array.astype(numpy.{numpy_type})"
