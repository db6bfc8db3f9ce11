"""The engine as the front ends of HTTP and gRPC see it from a separate process.

Requests leave as messages, and responses come back as such. Signatures are known from :class:`~.messages.Opened` until
the engine says that they changed; a request that was checked against an old one is checked once more by the engine.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct

from pybackend.engine.admission import ClientAdmission, Route, Sender
from pybackend.engine.answers import AnswerCounts, RefusalReason, Refusals
from pybackend.errors import ErrorCode, InferenceError, NotServingError, UnknownModelError
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import MOST_BACKLOG_BYTES, MOST_FRAME_BYTES, Channel, OnEnd
from pybackend.frontend.remote.memory import LATE_BYTES, BlockLease, FrontEndMemory, InputPool, LateLease
from pybackend.inference.region import IN_REGION, FindRegion, Region, RegionPart, source_of
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.inference.validation import Checked, validate_bytes_tensors, validate_header
from pybackend.observability.tracing.tracer import Tracer
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode

_MOST_INFER_BYTES = MOST_FRAME_BYTES // 2
"""Most bytes of a request that do not lie in memory: names, parameters and small tensors."""

_MOST_UTF8_BYTES = 4
"""Most bytes of a character."""

_SHORTAGE_NS = 10_000_000
"""For so long after the engine had no memory, nobody asks it for as much: the front end waits for each answer."""

_ERRORS = {0: InferenceError, 1: UnknownModelError, 2: NotServingError}


class RemotePending(Struct, eq=False):
    """A request that the engine has; see :class:`pybackend.inference.pending.PendingRequest`."""

    engine: RemoteEngine
    ticket: int
    model_name: str
    id: str
    on_response: OnResponse

    def cancel(self) -> None:
        """Tell the engine that nobody waits any more."""
        self._post(messages.CancelTicket(self.ticket))

    def pause(self) -> None:
        """Stop accepting responses."""
        self._post(messages.SetPaused(self.ticket, paused=True))

    def resume(self) -> None:
        """Accept responses again."""
        self._post(messages.SetPaused(self.ticket, paused=False))

    def _post(self, message: Struct) -> None:
        if self.ticket in self.engine.waiting:
            self.engine.channel.post(message)


class RemoteVersion:
    """A version of a model, as it was when the engine told of it."""

    def __init__(self, engine: RemoteEngine, told: messages.Opened) -> None:
        self.engine = engine
        self.key = (told.name, told.version, told.protocol)
        self.handle = told.handle
        self.full_name = told.full_name
        self.model_name = told.model_name
        self.model_version = told.model_version
        self.is_decoupled = told.is_decoupled
        self.signature = told.signature()
        self.is_closed = False
        self.pools: dict[str, InputPool] = {}
        self._shortage: tuple[int, int, InferenceError] | None = None

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> RemotePending | None:
        """The route to it; see :data:`pybackend.engine.admission.Route`."""
        return None if self.is_closed else self.engine.submit(self, request, on_response)

    def block(self, nbytes: int, input_name: str) -> BlockLease | None:
        """A block for an input; None if the version has ended.

        Raises InferenceError UNAVAILABLE if there is no memory.
        """
        try:
            return None if self.is_closed else self.allocate(nbytes, input_name)
        except InferenceError:
            if self.is_closed:  # it has ended just now
                return None
            raise

    def allocate(self, nbytes: int, input_name: str) -> BlockLease:
        """A block for an input of a version that serves; otherwise as :meth:`block`."""
        pool = self.pools.get(input_name)
        lease = None if pool is None else pool.allocate(nbytes)
        if lease is not None:
            return lease
        now_ns = time.monotonic_ns()
        if self._shortage is not None:
            until_ns, refused_bytes, error = self._shortage
            if now_ns < until_ns and nbytes >= refused_bytes:
                raise error.again()
        try:
            pool = self.pools[input_name] = self.engine.memory.more(self.handle, input_name, nbytes)
        except InferenceError as error:
            self._shortage = now_ns + _SHORTAGE_NS, nbytes, error.again()
            raise
        lease = pool.allocate(nbytes)
        assert lease is not None
        return lease


class RemoteAdmission:
    """The admission to a version of which the engine has told.

    See :class:`pybackend.engine.admission.ClientAdmission`.
    """

    __slots__ = ("_leases", "_sender", "_version", "signature")

    def __init__(self, version: RemoteVersion, sender: Sender) -> None:
        self._version = version
        self._sender = sender
        self._leases: list[BlockLease] = []
        self.signature = version.signature

    @property
    def model_name(self) -> str:
        return self._version.model_name

    @property
    def full_name(self) -> str:
        return self._version.full_name

    @property
    def model_version(self) -> str:
        return self._version.model_version

    @property
    def find_region(self) -> FindRegion:
        return self._version.engine.find_region

    @property
    def is_decoupled(self) -> bool:
        return self._version.is_decoupled

    @property
    def is_current(self) -> bool:
        """False once the engine has said that the version was replaced."""
        return not self._version.is_closed

    @property
    def holds_memory(self) -> bool:
        return any(lease.has_block for lease in self._leases)

    def shares_memory_with(self, other: ClientAdmission) -> bool:
        if not isinstance(other, RemoteAdmission):
            return False
        own, others = self._version, other._version
        if own is others or own.engine.memory.is_short_of_all:
            return True
        return not {*map(id, own.pools.values())}.isdisjoint(map(id, others.pools.values()))

    def can_serve(self, place: object) -> bool:
        return any(each is place for each in self._version.pools.values())

    def renew(self) -> None:
        """Switch to the version's successor if the engine has said that it was replaced."""
        engine = self._version.engine
        engine.look()
        if self._version.is_closed:
            name, version, _ = self._version.key
            self._version = engine.version(name, version, self._sender)
            self.signature = self._version.signature

    def allocate(self, nbytes: int, input_name: str, *, arriving: bool = False) -> BlockLease | None:
        version = self._version
        if nbytes <= INLINE_BYTES or version.is_closed:
            return None
        lease: BlockLease | None
        if arriving and nbytes > LATE_BYTES:
            lease = LateLease(partial(version.block, nbytes, input_name), nbytes)
        else:
            lease = version.block(nbytes, input_name)
        if lease is not None:
            self._leases.append(lease)
        return lease

    def route(self) -> Route:
        return self._version.submit

    def submit(
        self, request: InferenceRequest, on_response: OnResponse, checked: Checked = Checked.NOTHING
    ) -> RemotePending:
        """Check a request against the signature, as far as that was not done, and send it."""
        try:
            if checked is not Checked.ALL:
                if checked is Checked.NOTHING:
                    validate_header(request, self.signature)
                validate_bytes_tensors(request, self.signature)
            pending = self._version.engine.submit(self._version, request, on_response)
        except BaseException:  # whatever the reason, the caller leaves the memory to this admission
            request.release()
            self.release()
            raise
        self._leases = []
        return pending

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()


def _named_part(name: str, offset: int, nbytes: int) -> RegionPart:
    """A part of a region, whether there is one or not; here the offset counts from the beginning of the region."""
    return RegionPart(Region(name), offset, nbytes)


class RemoteRefusals(Refusals):
    """Tells the engine of refused requests."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def add(self, protocol: str, reason: RefusalReason, message: str, model: str = "", sender: str = "") -> None:
        name = model[: messages.MOST_NAME_CHARACTERS]
        self._engine.channel.post(
            messages.Refused(cast("messages.ClientProtocol", protocol), reason, message[:10_000], name, sender[:1000])
        )


class RemoteEngine:
    """The engine behind a channel.

    Attributes:
        answers: counts of the front end's answers, which the engine adds to its own.
        handlers: of the engine's messages, by type; others may be added.
        descriptor_handlers: of those that bring a descriptor.
        waiting: the requests without a final response, by ticket.
        memory: the segments that the engine has lent.
        traces: new requests may be traced, as the engine has said.
        on_tracing: called when it has said so.
    """

    def __init__(self, sock: socket.socket, on_end: OnEnd) -> None:
        self.answers = {"http": AnswerCounts("200"), "grpc": AnswerCounts("OK")}
        self.refusals = RemoteRefusals(self)
        self.tracer = Tracer()  # traces nothing: the engine's process answers requests that may be traced
        self.traces = False
        self.find_region: FindRegion = _named_part
        self.on_tracing: Callable[[], None] = lambda: None
        self.waiting: dict[int, RemotePending] = {}
        self._ticket = 0
        self._versions: dict[tuple[str, str, str], RemoteVersion] = {}
        self._by_handle: dict[int, RemoteVersion] = {}
        self._closed: dict[int, weakref.ref[RemoteVersion]] = {}  # those that admissions may still name
        self._asked: set[tuple[str, str, str]] = set()
        self._unopened: dict[tuple[str, str, str], InferenceError] = {}
        self._counted: dict[tuple[str, str], int] = {}
        # The engine is trusted: what models answer may be large.
        self.channel = Channel(
            asyncio.get_running_loop(),
            sock,
            messages.from_engine,
            self._on_messages,
            on_end,
            takes_descriptors=True,
            most_frame_bytes=MOST_BACKLOG_BYTES,
        )
        self.memory = memory = FrontEndMemory(self.channel, self.wait_until)
        self._urgent: dict[type, Callable[[Any], None]] = {
            messages.Opened: self._on_opened,
            messages.Unopened: self._on_unopened,
            messages.Closed: self._on_closed,
            messages.NoMemory: memory.on_no_memory,
            messages.Freed: memory.on_freed,
            messages.MakeRoom: memory.on_make_room,
            messages.Tracing: self._on_tracing,
        }
        self._urgent_descriptors: dict[type, Callable[[Any, int], None]] = {
            messages.InputSegment: memory.on_memory,
            messages.Attached: memory.add_outputs,
        }
        self.handlers: dict[type, Callable[[Any], None]] = {
            messages.Answered: self._on_answered,
            messages.Responded: self._on_responded,
            messages.DetachedOutput: memory.drop_outputs,
            messages.Settle: self._on_settle,
            messages.DropReaders: memory.on_drop_readers,
            **self._urgent,
        }
        self.descriptor_handlers = {**self._urgent_descriptors}

    # Messages

    def _on_messages(self, heard: list[Any], descriptors: list[int]) -> list[Any]:
        handlers = self.handlers
        if len(heard) > 1:
            # Handlers may look ahead: the end of a version must not be heard before its beginning.
            heard, descriptors = self._take_urgent(heard, descriptors)
        for message in heard:
            handler = handlers.get(type(message))
            if handler is not None:
                handler(message)
            else:
                self.descriptor_handlers[type(message)](message, descriptors.pop(0))
        return []

    def _take_urgent(self, heard: list[Any], descriptors: list[int]) -> tuple[list[Any], list[int]]:
        """Handle the messages for which somebody waits; returns the others."""
        rest: list[Any] = []
        rest_descriptors: list[int] = []
        for message in heard:
            kind = type(message)
            if kind in self._urgent:
                self._urgent[kind](message)
            elif kind in self._urgent_descriptors:
                self._urgent_descriptors[kind](message, descriptors.pop(0))
            else:
                rest.append(message)
                if kind in self.descriptor_handlers:
                    rest_descriptors.append(descriptors.pop(0))
        return rest, rest_descriptors

    def look(self) -> None:
        """Hear what the engine has said so far about versions."""
        self.channel.look_ahead(self._take_urgent)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Do nothing else until the engine has answered, which it does at once."""
        self.channel.flush()
        self.channel.look_ahead(self._take_urgent, done)
        if not self.channel.is_open:
            raise InferenceError("the server is stopping", ErrorCode.UNAVAILABLE)

    # Versions

    def knows(self, name: str, version: str, protocol: str) -> bool:
        """True if the version is known that answers; if not, the engine is asked, and the next request may find it."""
        key = (name, version, protocol)
        if key in self._versions:
            return True
        if key not in self._asked and max(len(name), len(version)) <= messages.MOST_NAME_CHARACTERS:
            self._ask(key)
        return False

    def _ask(self, key: tuple[str, str, str]) -> None:
        self._asked.add(key)
        name, version, protocol = key
        self.channel.post(messages.Open(name, version, cast("messages.ClientProtocol", protocol)))

    def open(self, name: str, version: str, sender: Sender) -> RemoteAdmission:
        """Open an admission to the version that would answer a request now."""
        found = self._versions.get((name, version, sender.protocol))
        if found is None:
            found = self.version(name, version, sender)
        elif sender.refuse_stream is not None and found.is_decoupled:
            raise sender.refuse_stream(name)
        return RemoteAdmission(found, sender)

    def version(self, name: str, version: str, sender: Sender) -> RemoteVersion:
        """The version that would answer a request now; the engine is asked if it is not known."""
        most = messages.MOST_NAME_CHARACTERS  # of a longer one, the engine need not see more to say that it knows none
        key = (name[:most], version[:most], sender.protocol)
        if key not in self._versions:
            self._unopened.pop(key, None)
            if key not in self._asked:
                self._ask(key)
            self.wait_until(lambda: key not in self._asked)
            error = self._unopened.pop(key, None)
            if error is not None:
                raise error
        found = self._versions[key]
        if sender.refuse_stream is not None and found.is_decoupled:
            raise sender.refuse_stream(name)
        return found

    def _on_opened(self, told: messages.Opened) -> None:
        found = RemoteVersion(self, told)
        self._asked.discard(found.key)
        self._versions[found.key] = self._by_handle[found.handle] = found

    def _on_unopened(self, told: messages.Unopened) -> None:
        key = (told.name, told.version, told.protocol)
        self._asked.discard(key)
        if len(self._unopened) > 100:  # those that nobody waited for
            self._unopened.clear()
        self._unopened[key] = _ERRORS[told.kind](told.message, told.code)

    def _on_closed(self, told: messages.Closed) -> None:
        found = self._by_handle.pop(told.handle, None)
        if found is not None:
            found.is_closed = True
            self._closed[told.handle] = weakref.ref(found)
            if self._versions.get(found.key) is found:
                del self._versions[found.key]

    def _on_tracing(self, told: messages.Tracing) -> None:
        self.traces = told.active
        self.on_tracing()

    def trim(self) -> None:
        """Give back memory and handles that are not used, and report counts; call this about once a second."""
        self.memory.trim(time.monotonic_ns())
        for handle, version in list(self._closed.items()):
            if version() is None:
                del self._closed[handle]
                self.channel.post(messages.Forget(handle))
        self._report()

    # Requests

    def submit(self, version: RemoteVersion, request: InferenceRequest, on_response: OnResponse) -> RemotePending:
        """Send a request that was checked. Raises InferenceError if there is no memory for its tensors."""
        layout: list[tuple[Any, ...]] = []
        inline: list[Any] = []
        leases: list[BlockLease] | None = None
        regions: Any = None
        inputs = request.inputs
        if request.regions is not None:
            layout, inline, leases, regions = _places(version, request)
            inputs = []
        for tensor in inputs:
            data = tensor.data
            nbytes = len(data)  # type: ignore[arg-type]  # the bytes are there
            if tensor.lease is not None or nbytes > INLINE_BYTES:
                layout, inline, leases, regions = _places(version, request)
                break
            layout.append((tensor.name, tensor.datatype, tensor.shape, nbytes, messages.INLINE))
            inline.append(data)
            if nbytes & 15:
                inline.append(messages.PADDING[nbytes & 15])
        preamble = _encode((layout, request.requested_outputs))
        whole = b"".join(inline)
        size = len(preamble) + len(whole) + _MOST_UTF8_BYTES * len(request.id)
        options = _options(request) if request.has_options else None
        if options is not None or regions is not None:
            size += len(_encode((options, regions)))
        if size > _MOST_INFER_BYTES:
            raise InferenceError(
                f"{request.prefix}the request has {size} bytes of names, parameters and small tensors, and {_MOST_INFER_BYTES} are the "
                "most that a front end takes: send fewer of them",
                ErrorCode.UNAVAILABLE,
            )
        if len(self.waiting) >= messages.MOST_OPEN_REQUESTS:
            raise InferenceError(
                f"{request.prefix}{len(self.waiting)} requests have no answer yet, which are the most of a front end: try again later, "
                "or start the server with more of them (--front-ends)",
                ErrorCode.UNAVAILABLE,
            )
        self._ticket = ticket = self._ticket + 1
        pending = self.waiting[ticket] = RemotePending(self, ticket, request.model_name, request.id, on_response)
        now_ns = time.monotonic_ns()
        blocks = None if leases is None else [lease.send() for lease in leases]
        if self.memory.released:
            self.memory.post_released()
        self.channel.post(
            messages.Infer(ticket, version.handle, now_ns, request.id, preamble, whole, blocks, regions, options)
        )
        return pending

    def _on_answered(self, told: messages.Answered) -> None:
        pending = self.waiting.pop(told.ticket)
        response = InferenceResponse(pending.model_name, told.model_version, pending.id, told.outputs)  # type: ignore[arg-type]
        try:
            pending.on_response(response)
        except Exception:  # a receiver's fault must not end the others
            log.exception("the receiver of a response of model '%s' failed", pending.model_name)

    def _on_responded(self, told: messages.Responded) -> None:
        pending = self.waiting.pop(told.ticket) if told.final else self.waiting[told.ticket]
        outputs: list[OutputTensor] = list(told.outputs)
        for output, place in zip(outputs, told.places or (), strict=False):
            if place is not None:
                output.data = self.memory.output(place) if place.segment else IN_REGION
        failure = told.failure
        response = InferenceResponse(
            pending.model_name,
            told.model_version,
            pending.id,
            outputs,
            told.parameters,
            partial(self.memory.release, told.number) if told.number else None,
            None if failure is None else InferenceError(failure.message, failure.code),
            told.final,
            told.empty,
        )
        try:
            pending.on_response(response)
        except Exception:  # as above
            log.exception("the receiver of a response of model '%s' failed", pending.model_name)
            response.release()

    # Counts

    def _report(self) -> None:
        """Tell the engine how many answers were sent since the last report."""
        for protocol, counts in self.answers.items():
            for code, number in counts.counts():
                more = number - self._counted.get((protocol, code), 0)
                if more:
                    self._counted[protocol, code] = number
                    self.channel.post(messages.Counted(cast("messages.ClientProtocol", protocol), code, more))

    def _on_settle(self, told: messages.Settle) -> None:
        self._report()
        self.channel.post(messages.Settled(told.number))
        self.channel.flush()


def _options(request: InferenceRequest) -> messages.RareFields:
    """The options of a request. Raises InferenceError if the engine would not take them."""
    parameters = request.parameters
    if parameters is not None and len(parameters) > messages.MOST_ITEMS:
        raise InferenceError(
            f"{request.prefix}the request has {len(parameters)} parameters, and {messages.MOST_ITEMS} are the most "
            "that a front end takes: send fewer",
            ErrorCode.UNAVAILABLE,
        )
    return messages.RareFields(
        request.correlation_id, request.flags, request.priority, request.timeout_us, cast("Any", parameters)
    )


def _places(version: RemoteVersion, request: InferenceRequest) -> tuple[Any, Any, Any, Any]:
    """The inputs of a request, the bytes of those that travel in the message, and where the others are: leases and regions.

    Raises InferenceError if there is no memory for them.
    """
    layout: list[tuple[Any, ...]] = []
    inline: list[Any] = []
    leases: list[BlockLease] = []
    regions: list[messages.RegionPlace] = []
    for tensor in request.inputs:
        data: Any = tensor.data
        nbytes, place = len(data), messages.IN_BLOCK
        source = source_of(tensor)
        lease = None if source is not None else cast("BlockLease | None", tensor.lease)
        if lease is not None and not lease.has_block:
            lease = tensor.lease = None  # its version ended while the bytes arrived
        if source is not None:
            place = messages.IN_REGION
            regions.append(messages.RegionPlace(source.region.name, source.offset, source.nbytes))
        elif lease is None and (nbytes <= INLINE_BYTES or version.is_closed):
            place = messages.INLINE
            inline += data, messages.PADDING[nbytes & 15]
        else:
            if lease is None:
                lease = tensor.lease = version.allocate(nbytes, tensor.name)
                lease.view[:] = data
            leases.append(lease)
        layout.append((tensor.name, tensor.datatype, tensor.shape, nbytes, place))
    outputs = None
    if request.regions is not None:
        outputs = {
            name: messages.RegionPlace(part.region.name, part.offset, part.nbytes)
            for name, part in request.regions.items()
        }
    return layout, inline, leases, None if outputs is None else messages.Regions(regions, outputs)
