"""The shortcut through the HTTP protocol object: whole requests whose head and JSON part are known.

Nearly all requests of busy clients come this way. Requests with another head, a body in pieces, strings or a trace take
the ordinary way, which gives the same answers.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.config import Config
from uvicorn.server import ServerState

from pybackend.errors import InferenceError
from pybackend.frontend.http.infer_frontend import InferFrontend, KnownHead
from pybackend.frontend.http.serial_protocol import SerialProtocol
from pybackend.frontend.http.small_answer import small_answer, small_json_answer
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.validation import Checked
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON, OutputFormat

log = logging.getLogger(__name__)


class ShortcutProtocol(SerialProtocol):
    """One connection; a subclass takes the requests that have no shortcut."""

    def __init__(
        self, config: Config, server_state: ServerState, frontend: InferFrontend, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._frontend = frontend
        self._found: tuple[KnownHead, int] | None = None  # set if the next call recognises the same head
        self._took_shortcut = False
        self._takes_chunks = True
        self._format: OutputFormat | None = None
        self._pending: PendingRequest | None = None
        super().__init__(config, server_state, frontend, loop)

    # For subclasses

    def on_response(self, response: InferenceResponse) -> None:
        """The answer to the submitted request."""

    def answer_error(self, error: InferenceError) -> None:
        """Send an error response."""

    # The way

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if not self._take_shortcut(data):
            super().data_received(data)

    def _take_shortcut(self, data: bytes) -> bool:
        """Submit a whole request whose head and JSON part are known; False if these bytes are something else."""
        if not self._in_head or self._head_bytes or self._closing or self._kept:
            return False
        end = data.find(b"\r\n\r\n") + 4
        frontend = self._frontend
        known = frontend.heads.get(data[:end])
        if known is None:
            found = frontend.known_otherwise(data[:end])
            if found is None:
                return False
            known, body_bytes = found
        else:
            body_bytes = known.body_bytes
        shortcut = known.shortcut
        if shortcut is None or end + body_bytes != len(data) or self._watch.on or frontend.engine.tracer.active:
            self._found = known, body_bytes
            return False
        json_bytes, plans, route = shortcut
        plan = plans.whole(data, end, end + json_bytes) if json_bytes else plans.templates.filled(data[end:])
        if plan is None or plan.checked is not Checked.ALL:
            self._found = known, body_bytes
            return False
        try:
            pending = route.submit(plan.request, self.on_response)
        except InferenceError as error:
            self._begin_shortcut(data, known, plan.output_format)
            self._answer_refusal(known.model_name, error)
            return True
        except Exception:  # the client gets an answer, whatever it sent
            log.exception("A request could not be handled")
            self._begin_shortcut(data, known, plan.output_format)
            self.fail()
            return True
        if pending is None:
            known.shortcut = None
            return False
        self._begin_shortcut(data, known, plan.output_format)
        self._pending = pending
        return True

    def _begin_shortcut(self, data: bytes, known: KnownHead, output_format: OutputFormat) -> None:
        self._active_at = self._clock.seconds
        self._received_bytes += len(data)
        self._in_head = False
        self._took_shortcut = self._message_done = self._headers_done = self._claimed = True
        self._takes_chunks, self._format = known.takes_chunks, output_format

    def _answer_refusal(self, model_name: str, error: InferenceError) -> None:
        """Count and answer a request that no model accepted."""
        self._frontend.refused(model_name, error, self.address)
        self.answer_error(error)

    def _sent_small(self, response: InferenceResponse) -> bool:
        """Send a result if it is small and nothing about it is special; False if it must be sent otherwise."""
        if not self._took_shortcut or not self._keep_alive:
            return False
        if self._format is ALL_BINARY:
            whole = small_answer(response)
        elif self._format is ALL_JSON:
            whole = small_json_answer(response)
        else:
            return False
        if not whole:
            return False
        response.release()
        self._frontend.answers.ok += 1
        self.transport.write(whole)
        self.answered()
        return True

    def _end_shortcut(self) -> bool:
        """Get ready for the next message; True if nothing else has changed since the one before."""
        if not self._took_shortcut:
            return False
        self._took_shortcut = self._message_done = self._answer_done = self._headers_done = self._claimed = False
        self._in_head = True
        return True
