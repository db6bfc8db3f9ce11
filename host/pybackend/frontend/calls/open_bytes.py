"""Limits the server memory used by one model process's calls and questions until they are answered."""

from collections import Counter
from sys import getsizeof

from pybackend.errors import ErrorCode, InferenceError
from pybackend.instance.services import CallingStub
from pybackend.ipc import stub_messages as heard
from pybackend_wire.messages import TAIL

MOST_OPEN_BYTES = 64 * 1024 * 1024
"""Limit per process: texts, parameters and tensors sent in frames. Tensors in shared memory have a separate limit."""

_PLACE_BYTES = 256
"""Approximate size of a tensor's record without its texts, shape and bytes."""


class OpenBytes:
    """The bytes that each process uses."""

    def __init__(self) -> None:
        self._taken: Counter[CallingStub] = Counter()

    def acquire(self, caller: CallingStub, nbytes: int) -> None:
        """Count the bytes of a call or question. Raises InferenceError: the limit is reached; it is not counted."""
        taken = self._taken[caller]
        if taken + nbytes > MOST_OPEN_BYTES:
            raise InferenceError(
                f"instance '{caller.instance_name}' already uses {taken} bytes of the server's memory for unanswered "
                f"calls, and {nbytes} more exceed its limit of {MOST_OPEN_BYTES}: wait for answers before sending "
                "more, or send large data as tensors instead of parameters",
                ErrorCode.UNAVAILABLE,
            )
        self._taken[caller] = taken + nbytes

    def release(self, caller: CallingStub, nbytes: int) -> None:
        """Stop counting a call or question that was answered."""
        if caller in self._taken:
            self._taken[caller] -= nbytes
            if not self._taken[caller]:
                del self._taken[caller]

    def on_gone(self, caller: CallingStub) -> None:
        """The process is gone: forget its bytes."""
        self._taken.pop(caller, None)


def call_bytes(call: heard.Call) -> int:
    """The size of a call."""
    total = len(call.model_name) + _bytes_of_places(call.inputs)
    for name in call.requested_outputs:
        total += getsizeof(name)
    options = call.options
    if options is not None:
        total += getsizeof(options.id) + getsizeof(options.correlation_id) + getsizeof(options.trace_context)
        parameters = options.parameters
        if parameters:
            total += getsizeof(parameters)
            for name, value in parameters.items():
                total += getsizeof(name) + getsizeof(value)
    return total


def question_bytes(question: heard.LoadModel | heard.UnloadModel | heard.IsModelReady) -> int:
    """The size of a question about models."""
    match question:
        case heard.LoadModel(_, name, config, files):
            return getsizeof(name) + getsizeof(config) + _bytes_of_places(files)
        case heard.UnloadModel(_, name):
            return getsizeof(name)
        case heard.IsModelReady(_, name, version):
            return getsizeof(name) + getsizeof(version)


def _bytes_of_places(places: list[heard.TensorPlace]) -> int:
    total = 0
    for place in places:
        total += _PLACE_BYTES + getsizeof(place.name) + getsizeof(place.shape)
        if place.segment == TAIL:
            total += place.nbytes
    return total
