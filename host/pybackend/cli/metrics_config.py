"""``--metrics-config``: the families of latencies on the metrics page."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence

from pybackend.cli.flag_values import boolean

_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 20

MetricsSetting = tuple[str, bool | tuple[float, ...] | None]
"""A key of ``--metrics-config`` and its value; None for a key without meaning."""


def metrics_setting(text: str) -> MetricsSetting:
    """Read ``<key>=<value>``. Raises ArgumentTypeError if the form or the value is wrong."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise argparse.ArgumentTypeError(
            f"--metrics-config option format is '<setting>=<value>'. Got {text}. For example: summary_latencies=true"
        )
    if key in _SWITCHES:
        return key, boolean(value)
    return key, _quantiles(value) if key == _QUANTILES else None


def _quantiles(text: str) -> tuple[float, ...]:
    """The quantiles in ``<quantile>:<error>[,<quantile>:<error>]...``; errors are checked and have no effect."""
    found = []
    for pair in text.strip('"').split(","):
        quantile, colon, error = pair.partition(":")
        if not colon or not (_is_share(quantile) and _is_share(error)):
            raise argparse.ArgumentTypeError(
                f"summary_quantiles are pairs '<quantile>:<error>' of numbers from 0 to 1. Got {pair}. For example: "
                "0.5:0.05,0.99:0.001"
            )
        found.append(float(quantile))
    if len(found) > _MOST_QUANTILES:
        raise argparse.ArgumentTypeError(f"summary_quantiles are at most {_MOST_QUANTILES}. Got {len(found)}")
    return tuple(sorted(set(found)))


def _is_share(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= 1


def metrics_choices(given: Iterable[MetricsSetting]) -> Mapping[str, bool | tuple[float, ...]]:
    """The fields of :class:`pybackend.settings.MetricsSettings` that are chosen; of a key that is given twice, the last value counts."""
    return {key: value for key, value in given if value is not None}


def metrics_warnings(settings: Iterable[MetricsSetting]) -> Sequence[str]:
    """A sentence for each key of ``--metrics-config`` that has no effect."""
    known = ", ".join((*_SWITCHES, _QUANTILES))
    return [
        f"--metrics-config={key} has no effect: the settings are {known}" for key, value in settings if value is None
    ]
