"""Classification extension: an output's largest elements with their indices and labels, instead of the whole tensor.

Used by: ``infer_response``, for requests with ``classification``, just before encoding.
"""

from collections.abc import Generator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pybackend.errors import invalid
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.steps import at_once
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import DATATYPES

MOST_ELEMENTS = 1_000_000
"""Elements per batch item. Sorting more would delay all other requests."""

_ELEMENTS_PER_STEP = 4096

_UNSUPPORTED = frozenset({"BOOL", "FP16", "BF16", "BYTES"})


@dataclass(frozen=True, slots=True)
class ClassRequest:
    """The classification requested for one output.

    ``batches`` says that the output has a batch dimension, and each item gets its own classes. Elements beyond
    ``labels`` have none.
    """

    count: int
    batches: bool
    labels: tuple[bytes, ...]


def classes_of(tensor: OutputTensor, asked: ClassRequest) -> OutputTensor:
    """A BYTES tensor ``[batch, k]``, or ``[k]``, of ``value:index`` or ``value:index:label``, the largest value first."""
    return at_once(classes_in_steps(tensor, asked))


def classes_in_steps(tensor: OutputTensor, asked: ClassRequest) -> Generator[bytes, None, OutputTensor]:
    """Returns the result of :func:`classes_of`; yields ``b""`` where other work may run."""
    if tensor.datatype in _UNSUPPORTED:
        raise invalid(
            f"class result not available for output due to unsupported type '{tensor.datatype}'. It is output "
            f"'{tensor.name}'"
        )
    shape = tuple(tensor.shape)
    items, per_item = (shape[0], prod(shape[1:])) if asked.batches and shape else (1, prod(shape))
    if per_item > MOST_ELEMENTS:
        raise invalid(
            f"classification output tensor too large: output '{tensor.name}' has {per_item} elements per batch item, at "
            f"most {MOST_ELEMENTS} can be put in order"
        )
    count = min(asked.count, per_item)
    rows = np.frombuffer(tensor.data, DATATYPES[tensor.datatype].numpy).reshape(items, per_item)
    elements: list[bytes] = []
    for row in rows:
        values, places = _in_order(row, count)
        yield b""
        for begin in range(0, count, _ELEMENTS_PER_STEP):
            part = slice(begin, begin + _ELEMENTS_PER_STEP)
            pairs = zip(values[part].tolist(), places[part].tolist(), strict=True)
            elements += [_class(value, place, asked.labels) for value, place in pairs]
            yield b""
    return OutputTensor(tensor.name, "BYTES", (items, count) if asked.batches else (count,), encode_elements(elements))


def _in_order(row: np.ndarray[Any, Any], count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The largest values and their indices."""
    keys = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    places = np.arange(len(row))
    if count < len(row):
        places = np.argpartition(keys, len(row) - count)[len(row) - count :]
    # By value, ties by index; the sort is ascending, so the result is reversed.
    order = places[np.lexsort((-places, keys[places]))[::-1]]
    return row[order], order


def _class(value: float, place: int, labels: tuple[bytes, ...]) -> bytes:
    text = b"%.6f:%d" % (value, place)
    label = labels[place] if place < len(labels) else b""
    return text + b":" + label if label else text
