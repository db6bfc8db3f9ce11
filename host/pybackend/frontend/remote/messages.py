"""All messages between the engine's process and a front end's: msgspec checks each while it is decoded.

A message is a struct on its way as an array: its tag, then its fields. Numbers have bounds, so that nothing behind the
decoder meets one that does not fit.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pybackend.engine.answers import RefusalReason
from pybackend.frontend.remote.channel import decoders
from pybackend.inference.request import PACKED_ALIGNMENT_BYTES
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.settings import GrpcSettings, HttpSettings, KeyExemption
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import MOST_DIMENSIONS

# Tags: 1 to 31 are of requests on their way to the engine, 32 to 63 of what comes back; 64 to 95 are of what a front
# end says about itself and of its clients' tunnels, 96 to 127 are orders.

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Unsigned32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]

MOST_ITEMS = 65_536
"""Most items of a list or table in a message."""

Shape = Annotated[list[Natural], Meta(max_length=MOST_DIMENSIONS)]
Blocks = Annotated[list[tuple[Natural, Natural]], Meta(max_length=MOST_ITEMS)]
"""Blocks of input memory: the number of the segment, and the offset."""

ClientProtocol = Literal["http", "grpc"]
"""The protocol of a client, or of a port."""

MOST_RELEASED = 1024
"""Most responses in a message that releases them."""

MOST_OPEN_REQUESTS = 100_000
"""Most requests of one front end that have no final response."""

MOST_NAME_CHARACTERS = 8192
"""Longer than the full name of any model, and than any version."""

Name = Annotated[str, Meta(max_length=MOST_NAME_CHARACTERS)]

Place = tuple[Annotated[str, Meta(max_length=200)], Annotated[int, Meta(ge=0, le=65535)]]
"""An address and a port."""


# Requests: to the engine


class Open(Struct, array_like=True, frozen=True, gc=False, tag=1):
    """Which version answers requests for this name and version now? :class:`Opened` or :class:`Unopened` answers."""

    name: Name
    version: Name
    protocol: ClientProtocol


class InputLayout(Struct, array_like=True, frozen=True, gc=False):
    """An input; ``place`` says where its bytes are: :data:`INLINE`, :data:`IN_BLOCK` or :data:`IN_REGION`."""

    name: str
    datatype: str
    shape: Shape
    nbytes: Natural
    place: Literal[0, 1, 2]


INLINE, IN_BLOCK, IN_REGION = 0, 1, 2
"""In the message; in a block of input memory; in a region that a client has registered."""


PADDING = [bytes(-size % PACKED_ALIGNMENT_BYTES) for size in range(PACKED_ALIGNMENT_BYTES)]
"""The bytes between an input and the next one, by the remainder of its size."""


def padded(nbytes: int) -> int:
    """How many bytes an input takes in a message."""
    return nbytes + -nbytes % PACKED_ALIGNMENT_BYTES


class Preamble(Struct, array_like=True, frozen=True, gc=False):
    """The part of a request that recurs: all but its id and its bytes."""

    inputs: Annotated[list[InputLayout], Meta(max_length=MOST_ITEMS)]
    requested_outputs: Annotated[list[str], Meta(max_length=MOST_ITEMS)]


class RareFields(Struct, array_like=True, frozen=True, gc=False):
    """Fields that few requests have."""

    correlation_id: Annotated[int, Meta(ge=0)] | str
    flags: Unsigned32
    priority: Annotated[int, Meta(ge=0)]
    timeout_us: Annotated[int, Meta(ge=0)]
    parameters: Annotated[dict[str, bool | int | float | str], Meta(max_length=MOST_ITEMS)] | None


class RegionPlace(Struct, array_like=True, frozen=True, gc=False):
    """A part of a client's region, by the region's name; the offset counts from the region's beginning.

    Both are a client's words.
    """

    region: str
    offset: Annotated[int, Meta(ge=0)]
    nbytes: Annotated[int, Meta(ge=0)]


class Regions(Struct, array_like=True, frozen=True, gc=False):
    """The regions of a request: where the inputs in regions are, in order, and where outputs go."""

    inputs: Annotated[list[RegionPlace], Meta(max_length=MOST_ITEMS)]
    outputs: Annotated[dict[str, RegionPlace], Meta(max_length=MOST_ITEMS)]


class Infer(Struct, array_like=True, frozen=True, gc=False, tag=2):
    """A request."""

    ticket: Natural  # the front end's number for it
    handle: Natural  # of the version against whose signature it was checked
    accepted_ns: Natural  # ``time.monotonic_ns()`` when the front end had all of it
    id: str
    preamble: bytes  # an encoded :class:`Preamble`: the engine remembers those that it has checked
    data: bytes  # the bytes of the inputs that do not lie elsewhere, in order, each :func:`padded`
    blocks: Blocks | None  # of the other inputs, in order
    regions: Regions | None
    options: RareFields | None


class CancelTicket(Struct, array_like=True, frozen=True, gc=False, tag=3):
    """Nobody waits for this request any more."""

    ticket: Natural


class SetPaused(Struct, array_like=True, frozen=True, gc=False, tag=4):
    """The sender of a request takes no more responses for now, or goes on."""

    ticket: Natural
    paused: bool


class Release(Struct, array_like=True, frozen=True, gc=False, tag=5):
    """The outputs of these responses were sent."""

    numbers: Annotated[list[Natural], Meta(max_length=MOST_RELEASED)]


class NeedMemory(Struct, array_like=True, frozen=True, gc=False, tag=6):
    """An input of a version needs more memory than is free; :class:`InputSegment` or :class:`NoMemory` answers."""

    handle: Natural
    input_name: str
    nbytes: Natural


class Return(Struct, array_like=True, frozen=True, gc=False, tag=7):
    """This segment of input memory is not needed any more."""

    segment: Natural


class Forget(Struct, array_like=True, frozen=True, gc=False, tag=8):
    """No request will name this handle any more."""

    handle: Natural


class Refused(Struct, array_like=True, frozen=True, gc=False, tag=9):
    """A request was refused before a model had it."""

    protocol: ClientProtocol
    reason: RefusalReason
    message: Annotated[str, Meta(max_length=100_000)]
    model: Name
    sender: Annotated[str, Meta(max_length=1000)]


class Counted(Struct, array_like=True, frozen=True, gc=False, tag=10):
    """So many answers more had this code."""

    protocol: ClientProtocol
    code: Annotated[str, Meta(max_length=32)]
    count: Natural


class Settled(Struct, array_like=True, frozen=True, gc=False, tag=11):
    """The answer to :class:`Settle`: all answers were counted that clients had when it came."""

    number: Natural


class Dropped(Struct, array_like=True, frozen=True, gc=False, tag=12):
    """The answer to :class:`DropReaders`: the responses of the clients that had to leave are released."""

    number: Natural


class Room(Struct, array_like=True, frozen=True, gc=False, tag=13):
    """The answer to :class:`MakeRoom`: what could be returned was."""

    number: Natural


# Requests: to a front end


class Opened(Struct, array_like=True, frozen=True, gc=False, tag=32):
    """The answer to :class:`Open`."""

    name: str
    version: str
    protocol: ClientProtocol
    handle: Natural
    full_name: str
    model_name: str
    model_version: str
    is_decoupled: bool
    signature_name: str
    max_batch_size: int
    inputs: list[TensorSignature]
    outputs: list[TensorSignature]

    def signature(self) -> ModelSignature:
        return ModelSignature(
            self.signature_name,
            self.max_batch_size,
            {each.name: each for each in self.inputs},
            {each.name: each for each in self.outputs},
        )


class Unopened(Struct, array_like=True, frozen=True, gc=False, tag=33):
    """No version answers them, and why; ``kind`` is 1 if there is none, 2 if it does not serve."""

    name: str
    version: str
    protocol: ClientProtocol
    kind: int
    code: ErrorCode
    message: str


class Closed(Struct, array_like=True, frozen=True, gc=False, tag=34):
    """This version answers no more, or not all requests; ask again."""

    handle: Natural


class Output(OutputTensor, array_like=True):
    """An output with its bytes."""

    data: bytes


class Answered(Struct, array_like=True, frozen=True, gc=False, tag=35):
    """The whole answer to a request, as most are."""

    ticket: Natural
    model_version: str
    outputs: list[Output]  # the engine sends those of the response as they are


class OutputSlice(Struct, array_like=True, frozen=True, gc=False):
    """Where an output lies whose bytes are not in the message; segment 0 stands for a region of the client."""

    segment: Natural
    offset: Natural
    nbytes: Natural


class TicketFailure(Struct, array_like=True, frozen=True, gc=False):
    """An error."""

    code: ErrorCode
    message: str


class Responded(Struct, array_like=True, frozen=True, gc=False, tag=36):
    """A response to a request."""

    ticket: Natural
    model_version: str
    outputs: list[Output]  # those without bytes have a place
    places: list[OutputSlice | None] | None
    number: Natural  # of the response, if it has places: its memory is lent until :class:`Release`
    parameters: dict[str, bool | int | float | str] | None
    failure: TicketFailure | None
    final: bool
    empty: bool


class InputSegment(Struct, array_like=True, frozen=True, gc=False, tag=37):
    """A segment of input memory; its descriptor comes along. Segments of a pool serve the same inputs."""

    pool: Natural
    segment: Natural
    size_bytes: Natural
    is_kept: bool  # it may be kept for a while when it is not used


class NoMemory(Struct, array_like=True, frozen=True, gc=False, tag=38):
    """There is no memory, and why."""

    code: ErrorCode
    message: str
    is_of_all: bool  # all models together have too much


class Freed(Struct, array_like=True, frozen=True, gc=False, tag=39):
    """These blocks of input memory are yours again."""

    blocks: list[tuple[int, int]]


class Attached(Struct, array_like=True, frozen=True, gc=False, tag=40):
    """A segment in which outputs lie; its descriptor comes along."""

    segment: Natural
    size_bytes: Natural


class DetachedOutput(Struct, array_like=True, frozen=True, gc=False, tag=41):
    """No more outputs lie in this segment."""

    segment: Natural


class DropReaders(Struct, array_like=True, frozen=True, gc=False, tag=44):
    """Memory for outputs is short: disconnect slow clients whose unread responses lie in these segments; :class:`Dropped` answers."""

    number: Natural
    segments: list[int]
    nbytes: Natural


class MakeRoom(Struct, array_like=True, frozen=True, gc=False, tag=45):
    """Others need memory for inputs: return segments of this pool that are not used, and let a slow client leave if there are none.

    Pool 0 stands for all. :class:`Room` answers.
    """

    number: Natural
    pool: Natural


class Tracing(Struct, array_like=True, frozen=True, gc=False, tag=42):
    """Whether some requests may be traced: then the engine's process answers all."""

    active: bool


class Settle(Struct, array_like=True, frozen=True, gc=False, tag=43):
    """Report the answers that you have counted; :class:`Settled` answers."""

    number: Natural


# A front end about itself and its clients' tunnels


class Ready(Struct, array_like=True, frozen=True, gc=False, tag=64):
    """I can accept connections."""


class Accepting(Struct, array_like=True, frozen=True, gc=False, tag=70):
    """I accept the connections of a port, or cannot: then ``failure`` says why."""

    service: ClientProtocol
    failure: Annotated[str, Meta(max_length=200)]


class OpenTunnel(Struct, array_like=True, frozen=True, gc=False, tag=65):
    """I need a tunnel for a client: ``client`` and ``server`` are the ends of its connection, None for a Unix socket."""

    number: Natural
    service: ClientProtocol
    client: Place | None
    server: Place | None
    is_secure: bool


class Alive(Struct, array_like=True, frozen=True, gc=False, tag=66):
    """The answer to :class:`Look`: I have done all that I was told before it."""

    number: Natural
    connections: Natural


class Line(Struct, array_like=True, frozen=True, gc=False, tag=67):
    """A line for the log."""

    level: Annotated[int, Meta(ge=0, le=50)]
    file: Annotated[str, Meta(max_length=100)]
    number: Natural
    text: Annotated[str, Meta(max_length=20_000)]


class Accessed(Struct, array_like=True, frozen=True, gc=False, tag=68):
    """I have answered a request: the fields of :class:`pybackend.observability.access_log.AccessRecord`."""

    protocol: ClientProtocol
    client: Annotated[str, Meta(max_length=200)]
    method: Annotated[str, Meta(max_length=1000)]
    path: Annotated[str, Meta(max_length=2000)]
    status: Annotated[int, Meta(ge=0, le=999)] | Annotated[str, Meta(max_length=40)] | None
    received_bytes: int
    sent_bytes: int
    duration_ns: Natural
    ended_s: Annotated[float, Meta(ge=0, lt=2**33)]
    about: Annotated[dict[str, str], Meta(max_length=10)]


class Quiet(Struct, array_like=True, frozen=True, gc=False, tag=69):
    """I was told to stop, and models have all that may still come on connections that clients have."""


# Orders to a front end


class Certificates(Struct, array_like=True, frozen=True, gc=False, tag=96):
    """The contents of a port's PEM files, now or from now on."""

    service: ClientProtocol
    chain: bytes
    key: bytes
    root: bytes | None
    mutual: bool


class Begin(Struct, array_like=True, frozen=True, gc=False, tag=97):
    """The ports to serve.

    Attributes:
        sockets: the descriptors of your listening sockets.
        http, grpc: the operator's settings, with digests in the place of secrets, and without files.
        keys: digests of the API keys; None if calls need none.
        exempt: calls that need no key.
        memory_limit_bytes: your part of the memory for slow clients.
        logs_access: every answered request is reported.
    """

    sockets: dict[ClientProtocol, Natural]
    certificates: list[Certificates]
    http: HttpSettings
    grpc: GrpcSettings
    keys: list[bytes] | None
    exempt: frozenset[KeyExemption]
    memory_limit_bytes: Natural
    fast_paths: bool
    logs_access: bool
    verbose_level: Natural


class Keys(Struct, array_like=True, frozen=True, gc=False, tag=104):
    """The digests of the API keys from now on."""

    digests: list[bytes]


class Listen(Struct, array_like=True, frozen=True, gc=False, tag=98):
    """Accept connections now."""

    service: ClientProtocol


class TunnelOpened(Struct, array_like=True, frozen=True, gc=False, tag=99):
    """The tunnel that you have asked for; its descriptor comes along."""

    number: Natural


class NoTunnel(Struct, array_like=True, frozen=True, gc=False, tag=100):
    """There is none: the server has no descriptors left."""

    number: Natural


class Look(Struct, array_like=True, frozen=True, gc=False, tag=101):
    """Are you there? :class:`Alive` answers."""

    number: Natural


class LogLevel(Struct, array_like=True, frozen=True, gc=False, tag=102):
    """A client has changed which lines the log has."""

    verbose_level: Natural


class Stop(Struct, array_like=True, frozen=True, gc=False, tag=103):
    """Accept no more connections, and end once the last one is closed: its client is told with the next answer."""


class CloseIdle(Struct, array_like=True, frozen=True, gc=False, tag=105):
    """Wait no longer for clients that keep their connections."""


FromFrontEnd = (
    Open
    | Infer
    | CancelTicket
    | SetPaused
    | Release
    | NeedMemory
    | Return
    | Forget
    | Refused
    | Counted
    | Settled
    | Dropped
    | Room
    | Ready
    | Accepting
    | OpenTunnel
    | Alive
    | Line
    | Accessed
    | Quiet
)
FromEngine = (
    Opened
    | Unopened
    | Closed
    | Answered
    | Responded
    | InputSegment
    | NoMemory
    | Freed
    | Attached
    | DetachedOutput
    | Tracing
    | Settle
    | DropReaders
    | MakeRoom
    | Certificates
    | Begin
    | Listen
    | TunnelOpened
    | NoTunnel
    | Look
    | LogLevel
    | Stop
    | CloseIdle
    | Keys
)

from_front_end = decoders(FromFrontEnd)
"""Decode frames of a front end."""

from_engine = decoders(FromEngine)
"""Decode frames of the engine."""
