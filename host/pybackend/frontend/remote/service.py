"""The engine's side of one front end: its requests, which are checked here, and the way of their responses.

A front end is not trusted. A message that breaks the protocol raises RemoteProtocolError, which ends the channel, and
then the front end; other front ends and models notice nothing. Requests that reach a model have passed the checks that
requests of the engine's own ports pass: names, datatypes, shapes and sizes against the signature. A preamble is checked
once, and then known by its bytes.
"""

import asyncio
import socket
import struct
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from pybackend.engine.admission import Sender
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError, NotServingError, UnknownModelError
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.channel import MOST_FRAME_BYTES, Channel, OnEnd
from pybackend.frontend.remote.loans import InputLoans, OutputLoans
from pybackend.frontend.remote.open_questions import OpenQuestions
from pybackend.frontend.slices import SLICE_S, Slices, in_slices
from pybackend.inference.pending import PendingRequest
from pybackend.inference.region import RegionOutput, tensor_in_region
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked, validate_bytes_tensors, validate_header
from pybackend.ipc.arena import TensorArena
from pybackend.model.model import Model, ModelState
from pybackend.protocol.grpc.status import GrpcStatus
from pybackend.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import INLINE_BYTES

MOST_HANDLES = 10_000
"""Most versions that one front end has opened: names are clients', and each may be spelled in many ways."""

MOST_PREAMBLES, LARGEST_PREAMBLE_BYTES = 1024, 4096
"""Limits of the memory of preambles of each version."""

MOST_PREAMBLES_BYTES = 512 * 1024
"""Most bytes of the preambles of all versions that one front end has opened; what they mean takes up to 60 times as
much."""

_SLICE_NS = int(SLICE_S * 1e9)

_LONGEST_WAY_NS = 60 * 1_000_000_000
"""No request takes longer from a front end to here: whatever says so says nothing."""

_CODES = {"http": frozenset(map(str, range(100, 600))), "grpc": frozenset(each.name for each in GrpcStatus)}

_READY = ModelState.READY
_read_preamble = msgspec.msgpack.Decoder(messages.Preamble).decode

Handler = Callable[[Any], None]
Shortage = Callable[[TensorArena, Callable[[], None]], bool]


class KnownPreamble(Struct, eq=False):
    """A preamble that was read."""

    names: list[str]
    datatypes: list[str]
    shapes: list[list[int]]
    unpack: Callable[[bytes], tuple[bytes, ...]]  # cuts the inputs' bytes out of the message's; none for :attr:`others`
    others: list[tuple[int, int, bool]]  # the inputs that lie elsewhere: number, size, and whether that is a block
    # of all inputs, if they are small and there are no others
    packed: list[tuple[str, str, list[int], int, int]] | None
    inline_bytes: int  # how many bytes the message has
    # name and version of the model, the requested outputs, and the batch size
    template: tuple[str, str, tuple[str, ...], int]
    checked: Checked = Checked.NOTHING  # how far it was checked against the signature


class OpenVersion:
    """A version of a model that a front end has opened, as it was then."""

    def __init__(self, engine: InferenceEngine, asked: messages.Open, sender: Sender) -> None:
        self._engine = engine
        self._admission_of = partial(engine.open, asked.name, asked.version, sender)
        admission = self._admission_of()
        model = admission.model
        self.signature = admission.signature
        self.full_name = admission.full_name
        self.protocol = sender.protocol
        self.version = model.version
        self.is_direct = admission.route() is not None
        self._follows_newest = self.is_direct and not asked.version
        self._model = weakref.ref(model)
        self.preambles: Recurring[bytes, KnownPreamble] = Recurring(MOST_PREAMBLES, LARGEST_PREAMBLE_BYTES)
        self.was_closed = False

    @property
    def current(self) -> Model | None:
        """The version, while requests may be checked against its signature."""
        model = self._model()
        if (
            model is None
            or model.state is not _READY
            or model.signature is not self.signature
            or (self._follows_newest and not model.is_newest)
        ):
            return None
        return model

    def read(self, preamble: bytes) -> KnownPreamble:
        """The meaning of a preamble, which has no more inputs and outputs than the signature.

        Nothing else was checked against that.
        """
        try:
            read = _read_preamble(preamble)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"a preamble does not decode: {error}") from error
        if len(read.inputs) > len(self.signature.inputs) or len(read.requested_outputs) > len(self.signature.outputs):
            raise RemoteProtocolError("a request with more inputs or outputs than its model has")
        if len({each.name for each in read.inputs}) < len(read.inputs) or not all(
            each.datatype in ITEMSIZE for each in read.inputs
        ):
            raise RemoteProtocolError("a request with two inputs of one name, or with a datatype that there is not")
        others, packed, cuts, size = [], [], "", 0
        for number, each in enumerate(read.inputs):
            nbytes = each.nbytes
            if each.place != messages.INLINE:
                others.append((number, nbytes, each.place == messages.IN_BLOCK))
                nbytes = 0
            packed.append((each.name, each.datatype, each.shape, size, nbytes))
            end = size + nbytes
            size = messages.padded(end)
            if size > MOST_FRAME_BYTES:
                raise RemoteProtocolError("a preamble of more bytes than a message can have")
            cuts += f"{nbytes}s{size - end}x"
        is_packed = not others and all(each.nbytes <= INLINE_BYTES for each in read.inputs)
        return KnownPreamble(
            [each.name for each in read.inputs],
            [each.datatype for each in read.inputs],
            [each.shape for each in read.inputs],
            struct.Struct(cuts).unpack,
            others,
            packed if is_packed else None,
            size,
            (self.signature.model_name, self.version, tuple(read.requested_outputs), 1),
        )

    def check(self, request: InferenceRequest, known: KnownPreamble) -> None:
        """Check a request against the signature. Raises InferenceError if it is refused."""
        if known.checked is Checked.NOTHING:
            known.checked = validate_header(request, self.signature)
            known.template = (*known.template[:3], request.batch_size)
        # The bytes in blocks may change after this, so a look at them proves nothing; models' processes look
        # themselves.
        if known.checked is Checked.HEADER and not known.others:
            validate_bytes_tensors(request, self.signature)

    def submit_anew(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a request for the version that would answer now, which may have another signature."""
        admission = self._admission_of()
        if not all(each.lease is None or admission.model.owns(each.lease) for each in request.inputs):
            request.leave()
        request.model_version = admission.model_version
        return admission.submit(request, on_response)


class FrontEndService:
    """The data path of one front end."""

    def __init__(self, engine: InferenceEngine, sock: socket.socket, on_end: OnEnd) -> None:
        self._engine = engine
        self._senders = {protocol: Sender(protocol) for protocol in ("http", "grpc")}
        self._handles = count(1)
        self._versions: dict[int, OpenVersion] = {}
        self._open: dict[int, PendingRequest] = {}
        self._is_over = False
        self._needs_memory = False  # it waits for others to return some
        self._now_ns = 0
        self._preambles_bytes = 0  # of all versions, with those that were forgotten since
        self._settling = OpenQuestions()
        self._traces: bool | None = None
        # to the front end
        self.channel = Channel(asyncio.get_running_loop(), sock, messages.from_front_end, self._on_messages, on_end)
        self._inputs = InputLoans(self.channel)
        self._outputs = OutputLoans(self.channel)
        # called with the memory of a model of which there is none left for an input, and what to do once others have
        # returned some; returns False if none has any
        self.on_shortage: Shortage = self._inputs.make_room
        self.make_room = self._inputs.make_room  # asks the front end for unused memory
        # disconnects slow clients of the front end whose responses take the memory of a model's process
        self.drop_readers = self._outputs.drop_readers
        # of its messages, by type; others may be added
        self.handlers: dict[type, Handler] = {
            messages.Infer: self._infer,
            messages.Open: self._open_version,
            messages.CancelTicket: self._cancel,
            messages.SetPaused: self._flow,
            messages.Release: self._outputs.released,
            messages.NeedMemory: self._need_memory,
            messages.Return: lambda asked: self._inputs.returned(asked.segment),
            messages.Forget: self._forget,
            messages.Refused: lambda told: engine.refusals.add(*astuple(told)),
            messages.Counted: self._counted,
            messages.Settled: lambda told: self._settling.answered(told.number),
            messages.Dropped: self._outputs.dropped,
            messages.Room: self._inputs.room_made,
        }
        self.check()

    def _on_messages(self, heard: list[Any], _descriptors: list[int]) -> list[Any]:
        """Handle messages for as long as a client may keep a turn of the loop."""
        self._now_ns = now_ns = time.monotonic_ns()
        handlers, end_ns = self.handlers, now_ns + _SLICE_NS
        for number, message in enumerate(heard, 1):
            handlers[type(message)](message)
            if time.monotonic_ns() > end_ns:
                return heard[number:]
        return []

    # Versions

    def _open_version(self, asked: messages.Open) -> None:
        try:
            if len(self._versions) >= MOST_HANDLES:
                raise InferenceError(
                    "this front end has opened too many versions: try again later", ErrorCode.UNAVAILABLE
                )
            opened = OpenVersion(self._engine, asked, self._senders[asked.protocol])
        except InferenceError as error:
            kind = 1 if isinstance(error, UnknownModelError) else 2 if isinstance(error, NotServingError) else 0
            self.channel.post(
                messages.Unopened(asked.name, asked.version, asked.protocol, kind, error.code, error.message)
            )
        else:
            model, signature = opened.current, opened.signature
            assert model is not None
            handle = next(self._handles)
            self._versions[handle] = opened
            self.channel.post(
                messages.Opened(
                    asked.name,
                    asked.version,
                    asked.protocol,
                    handle,
                    model.full_name,
                    model.name,
                    model.version,
                    model.config.decoupled,
                    signature.model_name,
                    signature.max_batch_size,
                    list(signature.inputs.values()),
                    list(signature.outputs.values()),
                )
            )
        self.channel.flush()  # the front end may do nothing else until it hears this

    def _version(self, handle: int) -> OpenVersion:
        opened = self._versions.get(handle)
        if opened is None:
            raise RemoteProtocolError("a handle that stands for no version")
        return opened

    def _forget(self, asked: messages.Forget) -> None:
        self._version(asked.handle)
        del self._versions[asked.handle]

    def check(self) -> None:
        """Tell the front end what has changed: call this before clients can learn it from elsewhere, and once a second."""
        for handle, opened in self._versions.items():
            if not opened.was_closed and opened.current is None:
                opened.was_closed = True
                self.channel.post(messages.Closed(handle))
        if self._engine.tracer.active is not self._traces:
            self._traces = self._engine.tracer.active
            self.channel.post(messages.Tracing(self._traces))

    def trim(self, now_ns: int) -> None:
        """Let go of what is not needed; called about once a second."""
        self.check()
        self._outputs.trim(now_ns)

    def alive(self) -> None:
        """It has answered something. Raises RemoteProtocolError if there is a question that it means to leave open."""
        self._inputs.alive()
        self._outputs.alive()

    def _need_memory(self, asked: messages.NeedMemory) -> None:
        if self._needs_memory:
            raise RemoteProtocolError("a question before the answer to the one before")
        self._lend(asked, self._version(asked.handle))

    def _lend(self, asked: messages.NeedMemory, opened: OpenVersion) -> None:
        """Answer a front end that needs memory for an input, once others have returned theirs if there is none."""
        is_second, self._needs_memory = self._needs_memory, False
        if self._is_over:
            return
        model = opened.current
        try:
            if model is None or asked.nbytes <= INLINE_BYTES:
                self.check()  # the front end learns first that the version has ended
                raise InferenceError("the model was replaced: send the request again", ErrorCode.UNAVAILABLE)
            self._inputs.lend(model, asked)
        except InferenceError as error:
            if model is not None and not is_second:
                self._needs_memory = True
                if self.on_shortage(model.arena_of(asked.input_name), partial(self._lend, asked, opened)):
                    return
                self._needs_memory = False
            is_of_all = model is not None and model.arena_of(asked.input_name).budget.is_short
            self.channel.post(messages.NoMemory(error.code, error.message, is_of_all))
        self.channel.flush()

    # Requests

    def _infer(self, asked: messages.Infer) -> None:
        ticket, preamble, data = asked.ticket, asked.preamble, asked.data
        opened, open_requests, now_ns = self._versions.get(asked.handle), self._open, self._now_ns
        if opened is None or ticket in open_requests or len(open_requests) >= messages.MOST_OPEN_REQUESTS:
            raise RemoteProtocolError("a request with a handle that stands for no version, or with a ticket in use")
        known = opened.preambles.get(preamble) or opened.read(preamble)
        if len(data) != known.inline_bytes:
            raise RemoteProtocolError("a request with more or fewer bytes than its preamble says")
        name, version, requested, batch_size = known.template
        inputs = [*map(InputTensor, known.names, known.datatypes, known.shapes, known.unpack(data))]
        request = InferenceRequest(name, version, asked.id, inputs, requested, batch_size)
        accepted_ns = asked.accepted_ns
        request.queued_ns = accepted_ns if now_ns - _LONGEST_WAY_NS < accepted_ns < now_ns else now_ns
        if known.packed is not None:
            request.packed = data, known.packed
        if asked.options is not None:
            _set_options(request, asked.options)
        on_response = partial(self._on_response, ticket)
        try:
            if known.others or asked.regions is not None:
                self._find_inputs(request, asked, known)
                on_response = partial(self._post, ticket)
            model = opened.current if opened.is_direct else None
            if model is None:
                open_requests[ticket] = opened.submit_anew(request, on_response)
            else:
                if known.checked is not Checked.ALL:
                    is_new = known.checked is Checked.NOTHING
                    opened.check(request, known)
                    if is_new:
                        self._remember(opened, preamble, known)
                open_requests[ticket] = self._engine.submit(model, request, on_response)
        except InferenceError as error:
            request.release()
            self._engine.refusals.add_error(opened.protocol, opened.full_name, error)
            self._outputs.post(ticket, InferenceResponse(name, version, error=error))
        except RemoteProtocolError:
            request.release()
            raise

    def _remember(self, opened: OpenVersion, preamble: bytes, known: KnownPreamble) -> None:
        nbytes = len(preamble)
        if nbytes > LARGEST_PREAMBLE_BYTES or preamble in opened.preambles:
            return
        self._preambles_bytes += nbytes
        if self._preambles_bytes > MOST_PREAMBLES_BYTES:
            for each in self._versions.values():
                each.preambles.clear()
            self._preambles_bytes = nbytes
        opened.preambles.remember(preamble, known, nbytes)

    def _find_inputs(self, request: InferenceRequest, asked: messages.Infer, known: KnownPreamble) -> None:
        """Find the inputs that lie in blocks or regions; the others are there."""
        blocks, regions = iter(asked.blocks or ()), asked.regions
        if regions is not None and len(regions.outputs) > len(self._version(asked.handle).signature.outputs):
            raise RemoteProtocolError("a request with more places for outputs than its model has")
        parts = iter(() if regions is None else regions.inputs)
        find = self._engine.find_region
        try:
            for number, nbytes, in_block in known.others:
                tensor = request.inputs[number]
                if in_block:
                    lease = self._inputs.lease(next(blocks), nbytes)
                    tensor.data, tensor.lease = lease.view, lease
                    continue
                named = next(parts)
                part = find(named.region, named.offset, named.nbytes)
                if part.nbytes != nbytes:
                    raise RemoteProtocolError("a request with two sizes of a region")
                request.inputs[number] = tensor_in_region(tensor.name, tensor.datatype, tensor.shape, part)
        except StopIteration:
            raise RemoteProtocolError("a request with fewer places than its preamble says") from None
        if regions is not None:
            request.regions = {
                name: RegionOutput.of(find(part.region, part.offset, part.nbytes))
                for name, part in regions.outputs.items()
            }

    def _on_response(self, ticket: int, response: InferenceResponse) -> None:
        """Send a response to a request that has no memory; it is usually small."""
        if (
            response.on_release is not None
            or response.error is not None
            or response.parameters
            or not response.final
            or response.empty
            or self._is_over
        ):
            self._post(ticket, response)
            return
        nbytes = 0
        for output in response.outputs:
            nbytes += len(output.data)
        if nbytes > INLINE_BYTES:
            self._post(ticket, response)
            return
        del self._open[ticket]
        self.channel.post(messages.Answered(ticket, response.model_version, response.outputs))  # type: ignore[arg-type]

    def _post(self, ticket: int, response: InferenceResponse) -> None:
        if response.final:
            self._open.pop(ticket, None)
        if self._is_over:
            response.release()
        else:
            self._outputs.post(ticket, response)

    def _cancel(self, asked: messages.CancelTicket) -> None:
        pending = self._open.get(asked.ticket)
        if pending is not None:  # otherwise the answer is on its way
            pending.cancel()

    def _flow(self, asked: messages.SetPaused) -> None:
        pending = self._open.get(asked.ticket)
        if pending is None:
            return
        if asked.paused:
            pending.pause()
        else:
            pending.resume()

    # Counts

    def _counted(self, asked: messages.Counted) -> None:
        if asked.code not in _CODES[asked.protocol]:
            raise RemoteProtocolError("a count of answers with a code that there is not")
        self._engine.answers[asked.protocol].add(asked.code, asked.count)

    async def settle(self) -> None:
        """Return once all answers are counted that clients of the front end have got so far."""
        await self._settling.answer(lambda number: self.channel.post(messages.Settle(number)))

    # The end

    def end(self) -> None:
        """The front end is gone: its requests are cancelled, and its memory comes back."""
        self._is_over = True
        self.channel.close()
        Slices().add(in_slices(pending.cancel for pending in list(self._open.values())))
        self._outputs.end()
        self._inputs.end()
        self._versions.clear()
        self._settling.end()


def _set_options(request: InferenceRequest, options: messages.RareFields) -> None:
    request.correlation_id, request.flags = options.correlation_id, options.flags
    request.priority, request.timeout_us = options.priority, options.timeout_us
    request.parameters = options.parameters
