"""Rescheduled requests: the changes that the server's sequence batcher makes to one before it is executed again."""

from itertools import count
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from pybackend_sdk.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from pybackend_sdk.testing.exchange import Exchange

MOST_TURNS = 10_000
"""Most executions of one request: a model that reschedules for ever must fail its test."""


class Turns:
    """The changes to a request for each of its executions.

    Args:
        starts: names of the control tensors that mark a request's beginning, with their values for "no".
        text_ids: whether correlation ids are strings.
    """

    def __init__(self, starts: "Mapping[str, Any]", *, text_ids: bool) -> None:
        self._starts = dict(starts)
        self._text_ids = text_ids
        self._ids: Iterator[int] = count(1)

    def begin(self, exchange: Exchange) -> None:
        """Prepare the first execution: each request begins a sequence."""
        options = exchange.options
        number = next(self._ids)
        exchange.options = options._replace(
            correlation_id=options.correlation_id or (str(number) if self._text_ids else number),
            flags=options.flags | TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        )

    def go_on(self, exchange: Exchange) -> None:
        """Prepare the next execution; the inputs are as the model has left them."""
        exchange.options = exchange.options._replace(flags=0)
        for tensor in exchange.inputs:
            if tensor.name() in self._starts:
                tensor.as_numpy()[...] = self._starts[tensor.name()]


def turns_of(document: "Mapping[str, Any]") -> "Optional[Turns]":
    """Return the turns of a model's requests; None if its configuration does not allow rescheduling."""
    batching = document.get("sequence_batching", {})
    if not batching.get("iterative_sequence", False):
        return None
    controls: List[Tuple[str, Dict[str, Any]]] = [
        (entry["name"], control) for entry in batching.get("control_input", ()) for control in entry.get("control", ())
    ]
    starts = {name: _false(control) for name, control in controls if control.get("kind") == "CONTROL_SEQUENCE_START"}
    text_ids = any(
        control.get("kind") == "CONTROL_SEQUENCE_CORRID" and control.get("data_type") == "TYPE_STRING"
        for _, control in controls
    )
    return Turns(starts, text_ids=text_ids)


def _false(control: "Mapping[str, Any]") -> Any:
    pairs = (control.get(f"{kind}_false_true") for kind in ("int32", "fp32", "bool"))
    return next((pair[0] for pair in pairs if pair), 0)
