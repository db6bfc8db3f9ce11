"""Between places on the wire and the tensors that models see."""

from typing import Any, Callable, List, Sequence, Tuple

import numpy as np
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.tensor import Tensor
from pybackend_wire.messages import INLINE_BYTES, TAIL, TensorPlace

from pybackend_stub.memory import OutputBlock, StubMemory

_NO_OPTIONS = ("", 0, 0, 0, 0, None)


class RequestReader:
    """Builds the requests of an execution; arrays view the bytes where they lie."""

    def __init__(self, memory: StubMemory, output_names: "Sequence[str]", copy_inputs: bool) -> None:
        self._memory = memory
        self._output_names = tuple(output_names)
        self._copy_inputs = copy_inputs

    def read(self, raw_requests: "Sequence[Any]", tail: bytearray) -> "List[InferenceRequest]":
        """The requests of one EXECUTE message; ``tail`` is the tail of its frame."""
        view = memoryview(tail)
        copy_inputs = self._copy_inputs
        from_wire, request_from_wire = Tensor._from_wire, InferenceRequest._from_wire
        requests = []
        for raw_inputs, requested, options in raw_requests:
            inputs = []
            for name, datatype, shape, segment, offset, nbytes in raw_inputs:
                if segment == TAIL:
                    buffer: Any = view[offset : offset + nbytes]
                else:
                    buffer = self._memory.input_block(segment, offset, nbytes)
                inputs.append(from_wire(name, datatype, shape, buffer, copy_inputs))
            outputs = self._output_names if requested is None else tuple(requested)
            request_id, correlation_id, flags, priority, timeout_us, parameters = options or _NO_OPTIONS
            requests.append(
                request_from_wire(
                    request_id, correlation_id, inputs, outputs, flags, timeout_us, parameters, len(requests), priority
                )
            )
        return requests


class OutputWriter:
    """Places output tensors: small ones in the tail of the next frame, others in output memory, with one copy."""

    def __init__(self, allocate: "Callable[[int], OutputBlock]") -> None:
        self._allocate = allocate
        self.tail: List[Any] = []
        self._tail_bytes = 0

    def write(self, tensor: Tensor) -> TensorPlace:
        """Copy a tensor's bytes to where the host can read them.

        Raises:
            TritonModelException: the host has no memory left for it.
        """
        payload = tensor._payload()
        if type(payload) is np.ndarray:
            nbytes = payload.nbytes
            if nbytes <= INLINE_BYTES:
                return self._append(tensor, payload.tobytes(), nbytes)
        else:
            nbytes = len(payload) if type(payload) is bytes else memoryview(payload).nbytes
            if nbytes <= INLINE_BYTES:
                return self._append(tensor, bytes(payload), nbytes)
        block = self._allocate(nbytes)
        target = np.frombuffer(block.view, dtype=np.uint8)
        source = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=np.uint8)
        np.copyto(target, source.reshape(-1).view(np.uint8))
        return TensorPlace(tensor._name, tensor._datatype, _plain(tensor._shape), block.segment, block.offset, nbytes)

    def _append(self, tensor: Tensor, data: bytes, nbytes: int) -> TensorPlace:
        offset = self._tail_bytes
        if nbytes:
            self.tail.append(data)
            self._tail_bytes = offset + nbytes
        return TensorPlace(tensor._name, tensor._datatype, _plain(tensor._shape), TAIL, offset, nbytes)

    @property
    def tail_bytes(self) -> int:
        """Bytes gathered for the tail so far."""
        return self._tail_bytes

    def take_tail(self) -> "List[Any]":
        """The gathered chunks; offsets begin at 0 again."""
        taken, self.tail = self.tail, []
        self._tail_bytes = 0
        return taken


def _plain(shape: "Sequence[int]") -> "Tuple[int, ...]":
    return shape if type(shape) is tuple else tuple(shape)

