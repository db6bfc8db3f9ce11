"""Answers of a few small tensors: all that surrounds the tensors recurs, and is remembered.

The last station of the shortcut for calls of ``ModelInfer``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from pybackend.frontend.grpc.errors import HEAD, OK_TRAILERS
from pybackend.frontend.grpc.framing import PREFIX, PREFIX_BYTES
from pybackend.http2 import AnswerForm, Stream
from pybackend.inference.response import InferenceResponse
from pybackend.protocol.grpc_response import id_field, message_format

MOST_FORMS, LONGEST_FORM_BYTES = 512, 4096
"""Limits of the cache of forms, a few MB in all: stubs choose the names of outputs."""

_kind, _shape, _data = attrgetter("name", "datatype"), attrgetter("shape"), attrgetter("data")

_forms: dict[tuple[Any, ...], tuple[AnswerForm, int]] = {}
"""And the size of the message without an id."""


def answer_small(stream: Stream, response: InferenceResponse) -> bool:
    """Send a result as a whole call's answer; its memory may be released afterwards.

    Args:
        stream: of the call.
        response: a result without parameters, whose outputs are all wanted.

    Returns:
        False if nothing was sent: the answer is large, or must wait.
    """
    outputs = response.outputs
    data = [*map(_data, outputs)]
    key = (
        response.model_name,
        response.model_version,
        *map(_kind, outputs),
        *map(tuple, map(_shape, outputs)),
        *map(len, data),
    )
    known = _forms.get(key)
    if known is None:
        known = _make_form(key, response)
        if known is None:
            return False
    form, nbytes = known
    identifier = b""
    if response.id:
        identifier = id_field(response.id)
        nbytes += len(identifier)
    return stream.respond_in(form, nbytes + PREFIX_BYTES, (PREFIX.pack(0, nbytes), identifier, *data))


def _make_form(key: tuple[Any, ...], response: InferenceResponse) -> tuple[AnswerForm, int] | None:
    """The form of such answers; None if they are large."""
    made = message_format(response)
    if made is None or len(made[0]) > LONGEST_FORM_BYTES:
        return None
    message, nbytes = made
    form = AnswerForm(HEAD, b"%b" + message, OK_TRAILERS)
    if len(_forms) >= MOST_FORMS:
        _forms.clear()
    _forms[key] = form, nbytes
    return form, nbytes
