"""The path of responses from a model to the sender of the request.

The path is composed once, when a model is loaded. It consists of stages: objects with a method of the type
:data:`ResponsePath`, usually named ``on_response``, that pass responses on to the next stage. A stage receives the rest
of the path at construction and keeps it. A stage stores its state for a request under the :class:`PendingRequest` until
it has passed on the final response or the request is withdrawn from it; it passes on responses to unknown requests
unchanged. A model has only the stages that it needs, in this order:

1. ``scheduler/ordered_delivery.py``: sends responses in the order of their requests.
2. ``scheduler/sequence_batcher.py``: keeps state tensors, and lets the sequence continue.
3. ``model/cached_answers.py``: copies the response into the cache.
4. ``inference/queued_bytes.py``: stops counting the request's bytes.

A model that needs none of them uses :func:`to_sender`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse

log = logging.getLogger(__name__)

ResponsePath = Callable[[PendingRequest, InferenceResponse], None]
"""Accepts a response to a request; called on the event loop, never from inside ``submit``."""


def to_sender(pending: PendingRequest, response: InferenceResponse) -> None:
    """The end of every path. If the receiver fails, the response is released, and no other request is affected."""
    try:
        pending.on_response(response)
    except Exception:
        log.exception("the receiver of a response of model '%s' failed", response.model_name)
        response.release()


def guarded(path: ResponsePath) -> ResponsePath:
    """The same path for callers that must answer other requests too: an exception in a stage loses one response."""
    if path is to_sender:
        return path

    def guard(pending: PendingRequest, response: InferenceResponse) -> None:
        try:
            path(pending, response)
        except Exception:
            log.exception("a response of model '%s' was lost on its way to its receiver", response.model_name)
            response.release()

    return guard
