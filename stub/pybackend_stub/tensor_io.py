"""Converts between places on the wire and the tensors that models see."""

import threading
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.request import InferenceRequest, InferenceTrace
from pybackend_sdk.tensor import DTYPES, Tensor
from pybackend_stub.channel import HostChannel
from pybackend_stub.client_memory import PassedRegions, RegionError
from pybackend_stub.memory import OutputBlock, StubMemory
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_wire.bytes_tensor import element_problem
from pybackend_wire.errors import ErrorCode
from pybackend_wire.host_messages import VIEW, too_small_text
from pybackend_wire.messages import INLINE_BYTES, TAIL, Failure, RequestResult, TensorPlace
from pybackend_wire.stub_messages import NeedOutput

MOST_INLINE_BYTES = 32 * 1024 * 1024
"""Most bytes in a frame's bounded tail; beyond it small tensors go through shared memory like large ones."""

MOST_SHARED_BYTES = 8 * INLINE_BYTES
"""Largest tail that tensors view: each view keeps all of it alive. Tensors from a longer tail get copies."""

_NO_OPTIONS = ("", 0, 0, 0, 0, None, 0, "")

_array: Any = np.ndarray


class OutputMemoryExhausted(TritonModelException):
    """The host refused to grow this instance's output memory."""


class PlacedOutputs(Tuple[str, ...]):  # noqa: SLOT001  it has an attribute, for which tuples have no slots
    """The names of the requested outputs of a request whose client wants some of them in its own memory."""

    # region, offset and size by name; None for outputs that the host gets
    places: "Dict[str, Optional[Tuple[int, int, int]]]"


class TensorReader:
    """Builds the tensors and requests for models; arrays view the bytes in place."""

    def __init__(
        self,
        memory: StubMemory,
        regions: PassedRegions,
        output_names: "Sequence[str]",
        copy_inputs: bool,
        model_name: str,
    ) -> None:
        # the results of requests of the last message that are not executed, by their index
        self.refused: Dict[int, RequestResult] = {}
        self._memory = memory
        self._regions = regions
        self._output_names = tuple(output_names)
        self._copy_inputs = copy_inputs
        self._model_name = model_name

    def requests(self, execution: int, raw_requests: "Sequence[Any]", tail: bytearray) -> "List[InferenceRequest]":
        """Build the requests of one EXECUTE message; ``tail`` is the tail of its frame.

        There are fewer of them than in the message if some cannot be read: :attr:`refused` has the others.
        """
        request_from_wire = InferenceRequest._from_wire
        requests: List[InferenceRequest] = []
        if self.refused:
            self.refused = {}
        for index, (raw_inputs, requested, options) in enumerate(raw_requests):
            request_id, correlation_id, flags, priority, timeout_us, parameters, trace, context = options or _NO_OPTIONS
            try:
                inputs = self.tensors(raw_inputs, tail)
            except RegionError as error:
                message = f"[request id: {request_id or '<id_unknown>'}] {error.message}"
                failed = RequestResult(Failure(int(error.code), message), [], None)
                self.refused = {**self.refused, index: failed}
                continue
            if requested is None:
                outputs: Tuple[str, ...] = self._output_names
            elif type(requested) is dict:
                outputs = PlacedOutputs(requested)
                outputs.places = requested
            else:
                outputs = tuple(requested)
            request = request_from_wire(
                request_id, correlation_id, inputs, outputs, flags, timeout_us, parameters, (execution, index), priority
            )
            if trace:
                request._trace = InferenceTrace._from_wire(trace, context or None)
            requests.append(request)
        return requests

    def tensors(self, places: "Sequence[Any]", tail: bytearray) -> "List[Tensor]":
        """Build tensors from input memory, from clients' memory, or from the tail of the frame.

        Raises RegionError if a tensor in a client's memory cannot be read.
        """
        copy_inputs, from_wire, dtype_of = self._copy_inputs, Tensor._from_wire, DTYPES.get
        copy_tail = len(tail) > MOST_SHARED_BYTES
        views = not (copy_inputs or copy_tail)
        tensors = []
        failure: Optional[RegionError] = None
        for name, datatype, shape, segment, offset, nbytes in places:
            if segment == TAIL:
                dtype = dtype_of(datatype) if views else None
                if dtype is not None:
                    try:
                        array = _array(shape, dtype, tail, offset)
                    except ValueError:  # a shape that NumPy does not have: a model that reads the tensor is told
                        pass
                    else:
                        tensors.append(from_wire(name, datatype, shape, array, False, array))
                        continue
                buffer: Any = memoryview(tail)[offset : offset + nbytes]
                if copy_tail:
                    buffer = bytearray(buffer)
            elif type(segment) is int:
                buffer = self._memory.input_block(segment, offset, nbytes)
            else:
                try:
                    buffer = self._from_region(segment, offset, nbytes)
                    if datatype == "BYTES":
                        self._check_elements(name, shape, buffer)
                except RegionError as error:
                    failure = error  # the other blocks must be taken too, so that they are given back
                    continue
            tensors.append(from_wire(name, datatype, shape, buffer, copy_inputs))
        if failure is not None:
            raise failure
        return tensors

    def _from_region(self, source: "Sequence[int]", offset: int, nbytes: int) -> Any:
        """Read an input that a client has in its own memory; ``source`` is a ``RegionSource`` of the wire."""
        region, region_offset, block = source
        if block == VIEW:
            return self._regions.view(region, region_offset, nbytes)
        buffer: Any = bytearray(nbytes) if block == TAIL else self._memory.input_block(block, offset, nbytes)
        self._regions.read(region, region_offset, buffer)
        return buffer

    def _check_elements(self, name: str, shape: "Sequence[int]", data: Any) -> None:
        """Make the check that the host makes of all other BYTES tensors."""
        checking = element_problem(data, prod(shape), f"for inference input '{name}' for model '{self._model_name}'")
        while True:
            try:
                next(checking)
            except StopIteration as end:
                if end.value:
                    raise RegionError(ErrorCode.INVALID_ARG, end.value) from None
                return


class OutputTail:
    """The small tensors of one frame."""

    __slots__ = ("chunks", "nbytes")

    def __init__(self) -> None:
        self.chunks: List[bytes] = []
        self.nbytes = 0

    def take(self) -> "List[bytes]":
        """Return the collected chunks; offsets begin at 0 again."""
        taken, self.chunks = self.chunks, []
        self.nbytes = 0
        return taken


class OutputWriter:
    """Places tensors for the host: small ones in the tail of a frame, others in output memory, with one copy.

    Any thread may write. If the memory is full, the thread requests more from the host and waits for it.
    """

    def __init__(
        self,
        channel: HostChannel,
        receiver: Receiver,
        memory: StubMemory,
        regions: PassedRegions,
        instance_name: str,
    ) -> None:
        self._channel = channel
        self._receiver = receiver
        self._memory = memory
        self._regions = regions
        self._instance_name = instance_name
        self._growing = threading.Lock()
        self._growth = Waiter()
        self._refused: Optional[str] = None

    def write(self, tensors: "Sequence[Tensor]", tail: OutputTail) -> "List[Any]":
        """Copy tensors' bytes to memory that the host can read; returns plain tuples with the fields of a TensorPlace.

        Raises OutputMemoryExhausted if the host refuses more memory.
        """
        places: List[Any] = []
        chunks, end = tail.chunks, tail.nbytes
        try:
            for tensor in tensors:
                data = tensor._data
                is_array = type(data) is _array
                nbytes = data.nbytes if is_array else memoryview(data).nbytes
                if nbytes <= INLINE_BYTES and end <= MOST_INLINE_BYTES:
                    chunks.append(data.tobytes() if is_array else bytes(data))
                    places.append((tensor._name, tensor._datatype, tensor._shape, TAIL, end, nbytes))
                    end += nbytes
                else:
                    places.append((tensor._name, tensor._datatype, tensor._shape, *self._share(data, nbytes), nbytes))
        except BaseException:
            self.free(places)
            raise
        finally:
            tail.nbytes = end
        return places

    def write_placed(
        self, tensors: "Sequence[Tensor]", tail: OutputTail, wanted: "Dict[str, Optional[Tuple[int, int, int]]]"
    ) -> "List[Any]":
        """Copy tensors' bytes to clients' regions, or to memory that the host can read.

        Args:
            wanted: region, offset and size for each tensor that its client wants in its own memory, by name.

        Raises:
            RegionError: a tensor does not fit into its region.
        """
        places: List[Any] = []
        try:
            for tensor in tensors:
                place = wanted.get(tensor._name)
                places += self.write([tensor], tail) if place is None else [self._write_to_region(tensor, *place)]
        except BaseException:
            self.free(places)
            raise
        return places

    def _write_to_region(self, tensor: Tensor, region: int, offset: int, most_bytes: int) -> TensorPlace:
        payload = tensor._payload()
        nbytes = payload.nbytes if isinstance(payload, np.ndarray) else memoryview(payload).nbytes
        if nbytes > most_bytes:
            raise RegionError(ErrorCode.INTERNAL, too_small_text(tensor._name, most_bytes, nbytes))
        if nbytes:
            self._regions.write(region, offset, payload)
        return TensorPlace(tensor._name, tensor._datatype, tensor._shape, region, offset, nbytes)

    def free(self, places: "Sequence[Any]") -> None:
        """Free tensors that were written but not sent: the host never learns of these blocks and cannot free them."""
        for _, _, _, segment, offset, _ in places:
            if segment != TAIL:
                self._memory.free_output(segment, offset)

    def _share(self, payload: Any, nbytes: int) -> "Tuple[int, int]":
        """Place a tensor in output memory."""
        is_array = type(payload) is np.ndarray
        if self._memory.lends and is_array:
            given = self._memory.give(payload.__array_interface__["data"][0], nbytes)
            if given is not None:
                payload.flags.writeable = False  # a later edit would change a response that is on its way
                return given.segment, given.offset
        block = self.allocate(nbytes)
        target = np.frombuffer(block.view, dtype=np.uint8)
        source = payload if is_array else np.frombuffer(payload, dtype=np.uint8)
        np.copyto(target, source.reshape(-1).view(np.uint8))
        return block.segment, block.offset

    def allocate(self, nbytes: int) -> OutputBlock:
        """Allocate a block of output memory. Raises OutputMemoryExhausted if the host refuses more memory."""
        return self._memory.allocate_output(nbytes) or self._grow(nbytes)

    def buffer(self, nbytes: int) -> "Optional[memoryview]":
        """Memory from which an output is sent without a copy; None if it is so small that it travels in a frame."""
        return self._memory.lend(self.allocate(nbytes)) if nbytes > INLINE_BYTES else None

    def _grow(self, nbytes: int) -> OutputBlock:
        """Wait for a block of memory that the host adds or frees."""
        with self._growing:
            self._refused = None
            while True:
                block = self._memory.allocate_output(nbytes)
                if block is not None:
                    return block
                if self._refused is not None:
                    raise OutputMemoryExhausted(
                        f"an output of {nbytes} bytes does not fit into the output memory that instance "
                        f"'{self._instance_name}' may use: {self._refused}"
                    )
                self._growth = Waiter()
                self._channel.say(NeedOutput(nbytes))
                self._receiver.wait(self._growth)

    def on_grown(self) -> None:
        """Continue: the host has attached a segment."""
        self._receiver.finish(self._growth)

    def on_refused(self, reason: str) -> None:
        """Fail the waiting writer: the host refuses more memory."""
        self._refused = reason
        self._receiver.finish(self._growth)
