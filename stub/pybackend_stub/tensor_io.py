"""Between places on the wire and the tensors that models see."""

from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.tensor import Tensor
from pybackend_stub.memory import OutputBlock, StubMemory
from pybackend_wire.messages import INLINE_BYTES, TAIL

MOST_INLINE_BYTES = 32 * 1024 * 1024
"""What the frames' bounded tail carries; beyond it small tensors take the way of large ones."""

_NO_OPTIONS = ("", 0, 0, 0, 0, None)

_Place = Tuple[str, str, "Sequence[int]", int, int, int]


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
        requests: List[InferenceRequest] = []
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

    def __init__(self, allocate: "Callable[[int], OutputBlock]", free: "Callable[[int, int], None]") -> None:
        self._allocate = allocate
        self._free = free
        self._tail: List[bytes] = []
        self._tail_bytes = 0

    def write(self, tensors: "Sequence[Tensor]") -> "List[_Place]":
        """Copy tensors' bytes to where the host can read them.

        Returns:
            One :class:`pybackend_wire.messages.TensorPlace` each, as plain tuples: this is the hot path.

        Raises:
            TritonModelException: the host has no memory left for them.
        """
        places: List[_Place] = []
        try:
            self._write(tensors, places)
        except BaseException:
            for place in places:  # the host never hears of these blocks, and so cannot give them back
                if place[3] != TAIL:
                    self._free(place[3], place[4])
            raise
        return places

    def _write(self, tensors: "Sequence[Tensor]", places: "List[_Place]") -> None:
        for tensor in tensors:
            payload = tensor._payload()
            kind = type(payload)
            if kind is np.ndarray:
                nbytes = payload.nbytes
            else:
                nbytes = len(payload) if kind is bytes else memoryview(payload).nbytes
            if nbytes > INLINE_BYTES or self._tail_bytes > MOST_INLINE_BYTES:
                segment, offset = self._copy(payload, nbytes)
            else:
                segment, offset = TAIL, self._tail_bytes
                if nbytes:
                    self._tail.append(payload.tobytes() if kind is np.ndarray else bytes(payload))
                    self._tail_bytes = offset + nbytes
            places.append((tensor._name, tensor._datatype, tensor._shape, segment, offset, nbytes))

    def _copy(self, payload: Any, nbytes: int) -> "Tuple[int, int]":
        block = self._allocate(nbytes)
        target = np.frombuffer(block.view, dtype=np.uint8)
        source = payload if isinstance(payload, np.ndarray) else np.frombuffer(payload, dtype=np.uint8)
        np.copyto(target, source.reshape(-1).view(np.uint8))
        return block.segment, block.offset

    def take_tail(self) -> "List[bytes]":
        """The gathered chunks; offsets begin at 0 again."""
        taken, self._tail = self._tail, []
        self._tail_bytes = 0
        return taken
