"""Sequences that outlast the version on which they began: their requests go on to it until they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.modelconfig.signature import ModelSignature
from pybackend.scheduler.scheduler import Scheduler
from pybackend.scheduler.sequence_batcher import SequenceBatcher

log = logging.getLogger(__name__)


class Replaced(Protocol):
    """A version that is being replaced."""

    sequences: VersionSequences

    def continue_sequence(
        self, request: InferenceRequest, on_response: OnResponse, checked: ModelSignature
    ) -> PendingRequest:
        """Queue a request of a sequence that began here.

        Raises:
            InferenceError: the request is refused; the caller must release its memory.
        """


class VersionSequences:
    """The active sequences of one version, and of those that it replaces.

    Attributes:
        predecessors: the versions that are being replaced and have active sequences.
    """

    def __init__(self) -> None:
        self.predecessors: Sequence[Replaced] = ()
        self._sequencer: SequenceBatcher | None = None
        self._is_replaced = False

    def serve(self, scheduler: Scheduler) -> None:
        """The version is loaded."""
        self._sequencer = scheduler if isinstance(scheduler, SequenceBatcher) else None

    @property
    def are_active(self) -> bool:
        """True while further requests of a sequence may come."""
        return self._sequencer is not None and self._sequencer.has_active

    def begun_at(self, request: InferenceRequest) -> Replaced | None:
        """The predecessor on which a request's sequence began, None for any other request."""
        return next((model for model in self.predecessors if model.sequences.continues(request)), None)

    def continues(self, request: InferenceRequest) -> bool:
        """True if a request belongs to a sequence that may end here although the version was replaced."""
        sequencer = self._sequencer
        return sequencer is not None and self._is_replaced and sequencer.continues(request.correlation_id)

    def run(self, request: InferenceRequest) -> bool:
        """True if a request belongs to an active sequence of this version, or of one that it replaces."""
        sequencer = self._sequencer
        if sequencer is not None and sequencer.continues(request.correlation_id):
            return True
        return self.begun_at(request) is not None

    def keep(self) -> None:
        """The version is being replaced: its sequences may go on until :meth:`ended_within` returns."""
        self._is_replaced = True

    async def ended_within(self, timeout_s: float | None, version: str) -> None:
        """Wait for the end of the sequences of a version that was replaced; return at once for any other.

        Args:
            timeout_s: the time limit, None for no limit. Sequences that have not ended by then are cut short.
            version: names the version in the log.
        """
        sequencer = self._sequencer
        if sequencer is not None and self._is_replaced and sequencer.has_active:
            ended = asyncio.Event()
            sequencer.on_all_ended = ended.set
            try:
                async with asyncio.timeout(timeout_s):
                    await ended.wait()
            except TimeoutError:
                log.warning(
                    "%s was replaced %.1f s ago, and its sequences that go on are cut short", version, timeout_s
                )
            finally:
                sequencer.on_all_ended = None
        self._is_replaced = False
