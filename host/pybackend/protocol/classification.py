"""Outputs as classes: the largest elements with their places and labels, in place of the whole tensor.

Where: ``infer_response`` comes here for responses to requests that asked for it, just before they are encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.tensor import OutputTensor
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES

MOST_ELEMENTS = 1_000_000
"""Per batch item; sorting more would keep everybody else waiting."""

_UNSUPPORTED = frozenset({"BOOL", "FP16", "BF16", "BYTES"})


@dataclass(frozen=True, slots=True)
class ClassRequest:
    """What a client wants to know of an output.

    Attributes:
        count: how many classes, at least 1.
        batches: the output has a batch dimension, and each item classes of its own.
        labels: by place; places beyond have none.
    """

    count: int
    batches: bool
    labels: tuple[bytes, ...]


def classes_of(tensor: OutputTensor, asked: ClassRequest) -> OutputTensor:
    """A BYTES tensor ``[batch, k]``, or ``[k]``, of ``value:index`` or ``value:index:label``, the largest value first.

    Raises:
        InferenceError: INVALID_ARG, the output has no order or too many elements.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise InferenceError(
            f"class result not available for output due to unsupported type '{tensor.datatype}'. It is output "
            f"'{tensor.name}'",
            ErrorCode.INVALID_ARG,
        )
    shape = tuple(tensor.shape)
    items, per_item = (shape[0], prod(shape[1:])) if asked.batches and shape else (1, prod(shape))
    if per_item > MOST_ELEMENTS:
        raise InferenceError(
            f"classification output tensor too large: output '{tensor.name}' has {per_item} elements per batch item, at "
            f"most {MOST_ELEMENTS} can be put in order",
            ErrorCode.INVALID_ARG,
        )
    count = min(asked.count, per_item)
    rows = np.frombuffer(tensor.data, DATATYPES[tensor.datatype].numpy).reshape(items, per_item)
    elements = [element for row in rows for element in _classes(row, count, asked.labels)]
    return OutputTensor(tensor.name, "BYTES", (items, count) if asked.batches else (count,), encode_elements(elements))


def _classes(row: np.ndarray[Any, Any], count: int, labels: tuple[bytes, ...]) -> list[bytes]:
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    places = np.arange(len(row))
    if count < len(row):
        places = np.argpartition(keys, len(row) - count)[len(row) - count :]
    # By value, and where that is equal by place; the sort is ascending, so the last comes first.
    order = places[np.lexsort((-places, keys[places]))[::-1]]
    return [_class(value, place, labels) for value, place in zip(row[order].tolist(), order.tolist(), strict=True)]


def _class(value: float, place: int, labels: tuple[bytes, ...]) -> bytes:
    text = b"%.6f:%d" % (value, place)
    label = labels[place] if place < len(labels) else b""
    return text + b":" + label if label else text
