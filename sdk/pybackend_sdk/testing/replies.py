"""Calls from model to model, on the side of the called model."""

from typing import Optional

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.testing.errors import HarnessError, InputError
from pybackend_sdk.testing.exchange import Exchange
from pybackend_sdk.testing.executor import ModelExecutor
from pybackend_sdk.testing.model_table import CallRefused
from pybackend_sdk.testing.request import Request
from pybackend_sdk.testing.result import checked_result
from pybackend_wire.errors import ErrorCode


def request_of(request: InferenceRequest, model_name: str) -> Request:
    """Turn a model's BLS request into a test's request.

    Raises:
        InputError: an input appears twice.
    """
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    if len(inputs) != len(request.inputs()):
        raise InputError(f"an input is given twice for model '{model_name}'")
    return Request(
        inputs,
        request._requested_output_names,
        request.request_id(),
        request.correlation_id(),
        request._parameters,
        request.timeout(),
        request.priority(),
        request.flags(),
    )


def cycle_refusal(executor: ModelExecutor) -> CallRefused:
    """Return the error for a call that would wait for itself."""
    return CallRefused(
        "the call can never be served, as models wait for each other and no instance is free: "
        f"{' -> '.join(executor.cycle())}. Give one of them more instances (instance_group {{ count: ... }}), or do "
        "without the call",
        ErrorCode.UNAVAILABLE,
    )


class HarnessReplies:
    """The responses of a model that runs in a harness."""

    def __init__(self, executor: ModelExecutor, exchange: Exchange, wait_s: float, *, strict: bool) -> None:
        self._executor = executor
        self._exchange = exchange
        self._wait_s = wait_s
        self._strict = strict
        self._received = 0
        self._finished = False

    def receive(self) -> Optional[InferenceResponse]:
        """Wait for the next response; an empty one for a final flag sent alone, None after the last."""
        if self._finished:
            return None
        try:
            arrival = self._executor.next_arrival(self._exchange, self._wait_s, self._received)
            self._finished = arrival.final
            self._received += 1
            if arrival.response is None:
                return InferenceResponse()
            complete = not self._executor.decoupled
            return checked_result(
                self._executor, self._exchange, arrival, strict=self._strict, complete=complete
            ).response
        except HarnessError as error:
            self._finished = True
            self._executor.failures.keep(error)
            return InferenceResponse(error=TritonError(f"An error occurred while performing BLS request. {error}"))

    def cancel(self) -> None:
        """Stop: the caller wants no more responses."""
        self._exchange.cancel()
