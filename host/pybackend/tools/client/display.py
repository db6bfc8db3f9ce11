"""Responses as text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pybackend.observability.log_lines import one_line
from pybackend.tools.client.inference import Answer, Output
from pybackend.tools.client.values import shape_text

_MOST_VALUES = 24
"""Arrays with more elements show only those at their ends."""

_EDGE = 3
_LONGEST_STRING = 60
_WIDTH = 110
_ABOUT = frozenset({"model_name", "model_version", "id"})


def answer_lines(answer: Answer) -> list[str]:
    """A response: model and version, what the response says of itself, and a line or block per output."""
    document = answer.document
    lines = [f"model {document.get('model_name')}, version {document.get('model_version')}"]
    if document.get("id"):
        lines.append(f"id: {one_line(str(document['id']))}")
    lines += [
        f"parameter {one_line(name)}: {json.dumps(value)}" for name, value in document.get("parameters", {}).items()
    ]
    return lines + [line for output in answer.outputs for line in _output_lines(output)]


def event_line(event: Mapping[str, Any], names: Sequence[str]) -> str:
    """A response of a stream on one line. ``names``: outputs to show; empty for all."""
    shown = [name for name in event if (name in names if names else name not in _ABOUT)]
    return "  ".join(f"{one_line(name)}: {_shortened(json.dumps(event[name], ensure_ascii=False))}" for name in shown)


def _shortened(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def _output_lines(output: Output) -> Sequence[str]:
    head = f"{output.name}  {output.datatype} {shape_text(output.values.shape)}"
    text = np.array2string(
        output.values,
        threshold=_MOST_VALUES,
        edgeitems=_EDGE,
        max_line_width=_WIDTH,
        separator=", ",
        formatter={"object": _string},
    )
    values = text.splitlines()
    if len(values) == 1 and len(head) + len(text) <= _WIDTH:
        return [f"{head}  {text}"]
    return [head, *(f"  {line}" for line in values)]


def _string(element: object) -> str:
    """An element of a BYTES tensor: quoted text, or bytes in Python's notation if it is not UTF-8."""
    data = element if isinstance(element, bytes) else str(element).encode()
    try:
        text = one_line(json.dumps(data.decode(), ensure_ascii=False))
    except UnicodeDecodeError:
        text = repr(data)
    if len(text) <= _LONGEST_STRING:
        return text
    return f"{text[:_LONGEST_STRING]}... ({len(data)} bytes)"
