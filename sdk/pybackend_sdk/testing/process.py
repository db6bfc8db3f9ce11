"""The process of a model under test, as its host sees it, and the memory that both share."""

import threading
from itertools import accumulate, count
from typing import Any, Dict, List, Optional, Sequence, Tuple

from pybackend_sdk.tensor import Tensor
from pybackend_sdk.testing.request import Exchange, wire_bytes
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import Execute, FreeOutput, FromHost, Initialize, ModelToLoad, NoOutput
from pybackend_wire.messages import TAIL, SegmentRole
from pybackend_wire.stub_messages import NeedOutput

_ALIGNMENT = 64
_LEAST_SEGMENT_BYTES = 1 << 20


class ModelProcess:
    """Where a model runs. Loading and initialising raise ``LoadError``, with the reason as a server shows it."""

    is_here = True
    """Whether that is the test's process: then calls of other models run in the thread that makes them."""

    @property
    def model(self) -> Any:
        """The model object, or something that says where it is."""
        raise NotImplementedError

    def load(self, model: ModelToLoad, config_json: Optional[str]) -> "Optional[Dict[str, Any]]":
        """Import the model; returns the configuration that it completed, if one is given."""
        raise NotImplementedError

    def initialize(self, plan: Initialize) -> bool:
        """Initialise the model; returns whether it has ``is_ready``."""
        raise NotImplementedError

    def send(self, message: FromHost) -> None:
        """Send a message that is not about the model's life."""
        raise NotImplementedError

    def execute(self, execution: "Execution", message: Execute) -> None:
        """Run ``execute``; returns when it does, or when the next execution may begin."""
        raise NotImplementedError

    def attach(self, number: int, size: int, role: SegmentRole) -> Any:
        """Share memory with the model; returns a writable buffer."""
        raise NotImplementedError

    def runs(self, execution: int) -> bool:
        """Whether the coroutine of an execution is known not to have ended."""
        return False

    def whereabouts(self) -> str:
        """Describe where the model's code is, while ``execute`` runs."""
        raise NotImplementedError

    def finalize(self) -> Tuple[str, Optional[BaseException]]:
        """Finalize the model; returns what went wrong, ``""`` if nothing did, and the exception if there is one."""
        raise NotImplementedError

    def release(self) -> None:
        """Remove everything of the model."""
        raise NotImplementedError


class Execution:
    """One call of ``execute``; ``done`` is set when the result has come, or the process has ended."""

    def __init__(self, exchanges: "Sequence[Exchange]") -> None:
        self.exchanges = exchanges
        self.requests: List[Any] = []
        self.again: List[Exchange] = []
        self.done = threading.Event()


class TensorMemory:
    """The segments of one model."""

    def __init__(self, process: ModelProcess) -> None:
        self._process = process
        self._segment_numbers = count(1)
        self._outputs: Dict[int, Any] = {}

    def placed(self, tensors: "Sequence[Tensor]") -> "Tuple[int, List[Any], List[Tensor]]":
        """Write tensors to a new segment; returns its number, their places, and tensors that view the memory."""
        chunks = [wire_bytes(tensor) for tensor in tensors]
        ends = list(accumulate(len(chunk) + -len(chunk) % _ALIGNMENT for chunk in chunks))
        segment = next(self._segment_numbers)
        buffer = memoryview(self._process.attach(segment, max([1, *ends]), SegmentRole.INPUT))
        places, views = [], []
        for tensor, chunk, offset in zip(tensors, chunks, [0, *ends]):
            view = buffer[offset : offset + len(chunk)]
            view[:] = chunk
            where = (segment, offset) if chunk else (TAIL, 0)
            places.append((tensor.name(), tensor._datatype, tensor.shape(), *where, len(chunk)))
            views.append(Tensor._from_wire(tensor.name(), tensor._datatype, tensor.shape(), view))
        return segment, places, views

    def tensors(self, places: "Sequence[Any]", tail: bytes) -> "List[Tensor]":
        """Copy tensors that the model has written, and give it its memory back."""
        tensors, blocks = [], []
        for name, datatype, shape, segment, offset, nbytes in places:
            source = tail if segment == TAIL else self._outputs.get(segment, b"")
            data = bytearray(memoryview(source)[offset : offset + nbytes])
            if len(data) != nbytes:
                raise RemoteProtocolError(f"output '{name}' lies outside of the model's memory")
            if segment != TAIL:
                blocks.append((segment, offset))
            tensors.append(Tensor._from_wire(name, datatype, shape, data))
        if blocks:
            self._process.send(FreeOutput(blocks))
        return tensors

    def on_need_output(self, message: NeedOutput, _tail: bytes) -> None:
        number = next(self._segment_numbers)
        size = max(_LEAST_SEGMENT_BYTES, message.nbytes + -message.nbytes % 4096)
        try:
            self._outputs[number] = self._process.attach(number, size, SegmentRole.OUTPUT)
        except (OSError, ValueError, OverflowError) as error:
            self._process.send(NoOutput(str(error)))
