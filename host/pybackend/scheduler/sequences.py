"""Sequences and their requests."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest


class StateValue(NamedTuple):
    """The tensor of an implicit state: its shape, including the batch dimension, and its bytes."""

    shape: tuple[int, ...]
    data: bytes


StateValues = dict[str, StateValue]
"""A sequence's implicit states, by input name."""


class Slot(NamedTuple):
    """A place for a sequence at one instance, which it keeps to its end: all its requests reach that instance.

    It is its number at the instance, and the instance's number: slots sort in the order of their use.
    """

    number: int
    instance: int


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A sequence that has started and not ended."""

    id: int | str
    active_ns: int  # time of its latest request or answer
    slot: Slot | None = None  # its slot; None while it waits for one, and after its end
    # its requests that are not running, in order
    waiting: OrderedDict[SequenceRequest, None] = field(default_factory=OrderedDict)
    current: SequenceRequest | None = None  # its request that is running, or about to run
    ended: bool = False  # True once its last request has arrived
    begun: bool = False  # True once an instance has worked for it; only that instance can continue it
    lost: InferenceError | None = None  # the reason why it cannot continue; None while it can
    over: bool = False  # True once it has ended and none of its requests remains
    states: StateValues = field(default_factory=dict)  # its implicit states

    @property
    def is_ready(self) -> bool:
        """True if its next request may run."""
        return self.current is None and bool(self.waiting) and self.lost is None

    @property
    def is_idle(self) -> bool:
        """True if none of its requests is running or waiting."""
        return self.current is None and not self.waiting

    @property
    def front(self) -> SequenceRequest:
        return next(iter(self.waiting))

    def pop(self) -> SequenceRequest:
        """Take its next request, which counts as running from now on."""
        request, _ = self.waiting.popitem(last=False)
        self.current = request
        return request

    def forget(self, request: SequenceRequest) -> None:
        """One of its requests was answered, or will be answered without being executed."""
        if self.current is request:
            self.current = None
        else:
            self.waiting.pop(request, None)

    def put_back(self, request: SequenceRequest) -> None:
        """Return the running request to the front of the waiting ones."""
        self.current = None
        self.waiting[request] = None
        self.waiting.move_to_end(request, last=False)


class SequenceRequest:
    """A request of a sequence."""

    __slots__ = ("deadline_ns", "input_count", "pending", "requested", "sequence")

    def __init__(self, pending: PendingRequest, sequence: LiveSequence) -> None:
        request = pending.request
        self.pending = pending
        self.sequence = sequence
        # number of the sender's inputs; inputs after them were added by the server
        self.input_count = len(request.inputs)
        self.requested = request.requested_outputs  # the outputs that its sender requested
        # deadline for its sequence to get a slot; 0 for none
        self.deadline_ns = request.queued_ns + request.timeout_us * 1000 if request.timeout_us else 0

    def strip(self) -> None:
        """Remove the inputs that the server added."""
        inputs = self.pending.request.inputs
        for tensor in inputs[self.input_count :]:
            tensor.release()
        del inputs[self.input_count :]
