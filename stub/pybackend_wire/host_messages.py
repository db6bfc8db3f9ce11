"""Messages from the host to a stub; see :mod:`pybackend_wire.messages`."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import (
    Failure,
    HostMessage,
    Natural,
    RequestOptions,
    RequestResult,
    SegmentRole,
    TensorPlace,
    by_kind,
)


class DebuggerPoint(NamedTuple):
    """The port where a debugger may attach, and whether the import of the model waits for one."""

    port: int
    waits: bool


class ModelToLoad(NamedTuple):
    """The model that a stub runs; the same for every process of an instance."""

    model_file: str
    model_name: str
    instance_name: str
    version_directory: str  # the result of ``get_model_dir()``
    of_backend: bool = False
    debugger: Optional[DebuggerPoint] = None
    backend_settings: Mapping[str, str] = {}
    followed_directory: str = ""  # the host wants to know what the model writes below it; empty for no such wish


class Load(NamedTuple):
    """Import the model and, if required, let it complete its configuration."""

    codec: str  # for both sides from now on
    auto_complete_config: Optional[str]  # the configuration to complete, None if it is complete
    model: ModelToLoad  # on the wire, a plain sequence in the order of the fields of :class:`ModelToLoad`


class InputSignature(NamedTuple):
    """An input of a model; its dimensions are those without the batch, -1 for any size."""

    name: str
    datatype: str
    dims: Sequence[int]
    optional: bool


class Signature(NamedTuple):
    """The form of requests to a model, for other models in its process that call it."""

    max_batch_size: Natural
    inputs: Sequence[InputSignature]
    member: Natural  # its number among the models of the server, by which THEN names it


class Initialize(NamedTuple):
    """Call ``initialize(args)`` and prepare to execute."""

    args: Dict[str, str]
    output_names: List[str]  # configured outputs, the default for requests that name none
    copy_inputs: bool
    decoupled: bool
    concurrency: int  # most executions of an ``async def execute`` that may overlap if each request is answered once
    reschedules: bool
    # whether outputs whose names are not configured are dropped; otherwise the host gets them too
    drops_unknown_outputs: bool
    maps_regions: bool  # whether the stub maps clients' regions, which are not expected to shrink, and models view them
    calls_neighbours: bool = False  # whether it may call other models in its process without the host
    # for calls of other models in its process; None if they must go to the host. On the wire a plain sequence.
    signature: Optional[Signature] = None


class Attach(NamedTuple):
    """Map a segment; its descriptor travels with the frame."""

    segment: Natural
    size_bytes: Natural
    role: SegmentRole


class Detach(NamedTuple):
    """Unmap a segment as soon as none of its memory is in use."""

    segment: Natural


VIEW = -1
"""The block of an input that the model views where it lies."""


class RegionSource(NamedTuple):
    """The source of an input that a client has in a region.

    It takes the place of the segment in a :class:`~pybackend_wire.messages.TensorPlace`, whose offset is then that of
    the block.
    """

    region: Natural
    offset: Natural  # first byte in the region's shared memory object
    # segment of input memory into which the stub copies the bytes; :data:`~pybackend_wire.messages.TAIL` for a private
    # copy, :data:`VIEW` for none
    block: int


class OutputPlace(NamedTuple):
    """Where a stub writes an output: at most ``nbytes`` bytes of a client's region."""

    segment: Natural
    offset: Natural
    nbytes: Natural


class ExecuteRequest(NamedTuple):
    """One request of an execution.

    ``requested_outputs`` None means every configured output. With places, each output that has one is written there,
    and the result says so instead of naming a block.
    """

    inputs: Sequence[TensorPlace]
    requested_outputs: Union[Sequence[str], Dict[str, Optional[OutputPlace]], None]
    options: Optional[RequestOptions]


class Execute(NamedTuple):
    """Run ``execute`` once on these requests; ``execution`` counts from 1 in each stub's life.

    The requests and their tensor places are plain sequences in the order of the fields of :class:`ExecuteRequest` and
    :class:`TensorPlace`: making tuples of these types would cost more than everything else done here for a small
    request. The host's channel encodes the message by hand for the same reason, and a stub keeps it as the list in
    which it has arrived.
    """

    execution: Natural
    requests: Sequence[Any]


class FreeOutput(NamedTuple):
    """The host has read these blocks of output memory, each a :class:`~pybackend_wire.messages.BlockPlace`."""

    blocks: Sequence[Tuple[Natural, Natural]]


class NoOutput(NamedTuple):
    """The host refuses to add output memory, and says why. Before this message it may have freed blocks."""

    reason: str = ""


class Cancel(NamedTuple):
    """The client of a request no longer waits for its responses."""

    execution: Natural
    request: Natural


class Flow(NamedTuple):
    """How many responses of a request the host accepts before the last one, counted from the stream's beginning.

    It is :data:`~pybackend_wire.messages.STREAM_WINDOW` until the host sets another number. 0 stops the stream: its
    receiver accepts nothing now. None ends the count: the request is answered.
    """

    execution: Natural
    request: Natural
    allowed: Optional[Natural]


class Reply(NamedTuple):
    """A response to a CALL, its outputs in input memory or in the tail. ``result`` None: the final flag alone.

    The result is a plain sequence in the order of the fields of :class:`RequestResult`.
    """

    call: Natural
    final: bool
    result: Optional[Union[RequestResult, Sequence[Any]]]


class Answer(NamedTuple):
    """The answer to a question: a value, or a failure."""

    call: Natural
    failure: Optional[Failure]
    value: Union[bool, int, float, None]


class Probe(NamedTuple):
    """Ask the model whether it is ready."""


class Collect(NamedTuple):
    """Run the garbage collector: response senders that the model has dropped may be part of reference cycles.

    An idle process makes no new objects, so its collector would never run by itself.
    """


class Join(NamedTuple):
    """Run another model in this process; its socket and its pipe for nudges travel with the frame."""

    process_name: str  # of the process, which several models share


class Offer(NamedTuple):
    """Whether calls that name no version are for this model, so that others in its process may run it."""

    offered: bool


Names = Sequence[Tuple[str, str]]
"""The name of an input or output of a model, and that of the ensemble's tensor, each."""


class NextStep(NamedTuple):
    """A step of an ensemble that may follow others in their process. On the wire a plain sequence."""

    member: Natural  # the model that runs it
    inputs: Names
    outputs: Names


class Program(NamedTuple):
    """The steps of an ensemble that may follow one of its steps in the same process."""

    inputs: Names  # those of the first step that later ones use, too
    outputs: Names  # of the first step
    steps: Sequence[NextStep]
    kept: Sequence[str]  # tensors that are needed after all these steps


class Then(NamedTuple):
    """The steps that may follow the next execution; comes before its EXECUTE, which has one request."""

    execution: Natural
    tensors: Sequence[TensorPlace]  # small ones in the tail, which the steps use and none of them makes
    program: Program  # on the wire a plain sequence


class Finalize(NamedTuple):
    """Call ``finalize`` and exit."""


FromHost = Union[
    Load,
    Initialize,
    Attach,
    Detach,
    Execute,
    FreeOutput,
    NoOutput,
    Cancel,
    Flow,
    Reply,
    Answer,
    Probe,
    Collect,
    Join,
    Offer,
    Then,
    Finalize,
]

HOST_MESSAGES = by_kind(HostMessage, FromHost)
"""The type of each kind."""

_KINDS = {message: int(kind) for kind, message in HOST_MESSAGES.items()}


def encoded(message: FromHost) -> Tuple[Any, ...]:
    """Encode a message for the wire."""
    return (_KINDS[type(message)], *message)


def decoded(fields: Sequence[Any]) -> FromHost:
    """Make a message from its fields on the wire. Their types are not checked: a stub trusts its host.

    Raises RemoteProtocolError if there is no such kind, or the number of fields is wrong.
    """
    try:
        message: FromHost = HOST_MESSAGES[fields[0]](*fields[1:])
    except (KeyError, TypeError, IndexError):
        raise RemoteProtocolError(f"the host sent a message of kind {fields[:1]} with {len(fields)} fields") from None
    return message


def too_small_text(output_name: str, region_bytes: int, output_bytes: int) -> str:
    """Return the error for an output that is larger than its place in a region."""
    return (
        f"shared memory size specified with the request for output '{output_name}' ({region_bytes} bytes) should be at "
        f"least {output_bytes} bytes to hold the results"
    )
