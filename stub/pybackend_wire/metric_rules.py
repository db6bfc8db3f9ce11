"""Rules for the names and sizes of custom metrics: families and series.

The SDK checks them first and reports faults to the model. The host checks what arrives against the same rules, because
it writes names and labels to a page that other programs parse.
"""

import re
from typing import Dict, Optional, Sequence

from pybackend_wire.messages import MetricKind

MOST_TEXT = 8192
"""Most characters of a family's name and description together, and of a series' label names and values together."""
MOST_BUCKETS = 1000

_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def family_problem(name: str, description: str) -> "Optional[str]":
    """Describe the fault of a family in a sentence; None if there is none."""
    length = len(name) + len(description)
    if length > MOST_TEXT:
        return f"name and description of a metric family may have {MOST_TEXT} characters together, these have {length}."
    if not _FAMILY_NAME.fullmatch(name):
        return (
            f"'{name}' is no name for a metric family: it must be made of letters, digits, '_' and ':', and must not "
            "begin with a digit."
        )
    return None


def series_problem(kind: int, labels: "Dict[str, str]", buckets: "Optional[Sequence[float]]") -> "Optional[str]":
    """Describe the fault of a series of this kind of family in a sentence; None if there is none."""
    length = sum(len(name) + len(value) for name, value in labels.items())
    if length > MOST_TEXT:
        return f"the labels of a metric may have {MOST_TEXT} characters together, these have {length}."
    for name in labels:
        if not _LABEL_NAME.fullmatch(name):
            return (
                f"'{name}' is no name for a label: it must be made of letters, digits and '_', and must not begin with "
                "a digit."
            )
        if name.startswith("__"):
            return f"'{name}' is no name for a label: names that begin with '__' are kept for Prometheus itself."
        if name == "le" and kind == MetricKind.HISTOGRAM:
            return "'le' is no name for a label of a histogram: it tells its buckets apart."
    return None if buckets is None else _buckets_problem(buckets)


def _buckets_problem(buckets: "Sequence[float]") -> "Optional[str]":
    if len(buckets) > MOST_BUCKETS:
        return f"a histogram may have {MOST_BUCKETS} buckets, these are {len(buckets)}."
    for bound in buckets:
        if not abs(bound) < float("inf"):
            return (
                f"a bucket ends at a finite number, not at {bound}: the last bucket, up to infinity, is always there."
            )
    for below, above in zip(buckets, buckets[1:]):
        if not below < above:
            return f"the bounds of a histogram's buckets must be strictly increasing, but {above} follows {below}."
    return None
