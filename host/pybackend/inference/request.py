"""An inference request from a client or from another model."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from pybackend.inference.region import RegionOutputs
from pybackend.inference.tensor import InputTensor
from pybackend.observability.tracing.request_trace import RequestTrace
from pybackend_wire.host_messages import Program


def request_prefix(request_id: str) -> str:
    """The prefix of messages about a request: ``[request id: <id>] ``."""
    return f"[request id: {request_id or '<id_unknown>'}] "


ParameterValue = bool | int | float | str


class RequestFlags:
    """Sequence flags, with the values that models see in ``request.flags()``: plain numbers, because the operators of an enumeration are functions."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


PACKED_ALIGNMENT_BYTES = 16
"""Of packed inputs: compiled code may refuse arrays that are not aligned."""
PackedInputs = tuple[bytes, Sequence[tuple[str, str, Sequence[int], int, int]]]
"""The bytes of all inputs of a request, each aligned; and of each input its name, datatype, shape, and the place of its
bytes there."""


class FollowingSteps(NamedTuple):
    """The steps of an ensemble that may follow a request where it is executed, see :class:`pybackend_wire.host_messages.Then`."""

    program: Program
    tensors: Sequence[InputTensor]  # small ones that the steps use, besides those of the request


class InferenceRequest(Struct, eq=False):
    """One request to one model. It owns its inputs' memory until :meth:`release`."""

    model_name: str
    model_version: str = ""  # decimal version, or ``""`` for the newest ready version
    id: str = ""
    inputs: list[InputTensor] = field(default_factory=list)  # in the client's order
    requested_outputs: tuple[str, ...] = ()  # names in the client's order; empty means every configured output
    batch_size: int = 1  # the first dimension for models that batch, otherwise 1 (never 0)
    # custom parameters that the model may read; None if there are none
    parameters: Mapping[str, ParameterValue] | None = None
    correlation_id: int | str = 0  # sequence id, 0 or ``""`` if the request belongs to no sequence
    flags: int = 0  # :class:`RequestFlags` bits
    priority: int = 0  # 1 is the highest; 0 means the model's default
    timeout_us: int = 0  # the client's timeout in microseconds; 0 means none
    is_inner: bool = False  # True if a model sent the request while it executed another request
    # ``time.monotonic_ns()`` when the engine, or a front end in a separate process, accepted the request
    queued_ns: int = 0
    # the destinations of outputs that clients want in shared memory regions; empty if only inputs lie in regions, None
    # if no tensor does
    regions: RegionOutputs | None = None
    trace: RequestTrace | None = None
    # the small inputs once more, as they came in one piece; they count if none was added since. None if there are
    # others.
    packed: PackedInputs | None = None
    # outputs that may be missing even where outputs are validated: of a step of an ensemble, if all its readers can do
    # without
    dispensable_outputs: frozenset[str] = frozenset()
    following: FollowingSteps | None = None  # set for a step of an ensemble whose model shares its process

    @property
    def has_options(self) -> bool:
        """True if any option is set that most requests leave at its default."""
        return bool(
            self.parameters
            or self.correlation_id
            or self.flags
            or self.priority
            or self.timeout_us
            or self.trace is not None
        )

    def leave(self) -> None:
        """Copy the inputs out of the memory of the model they were sent to, so that another model can take them."""
        for tensor in self.inputs:
            tensor.leave()

    @property
    def prefix(self) -> str:
        """The prefix of messages about this request."""
        return request_prefix(self.id)

    def release(self) -> None:
        """Release the inputs' memory; the request's last owner calls this once."""
        for tensor in self.inputs:
            tensor.release()
