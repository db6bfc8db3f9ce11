"""The flags of the metrics page: its families, and how often figures of the machine are taken."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence

from pybackend.cli.flag_values import add_switch, boolean, integer
from pybackend.settings import MetricsSettings

_DEFAULT_INTERVAL_MS = 2000
_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 20

MetricsSetting = tuple[str, bool | tuple[float, ...] | None]
"""A key of ``--metrics-config`` and its value; None for a key without meaning."""


def add_metrics_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = serve.add_argument_group("metrics")
    add_switch(group, "--allow-cpu-metrics", default=True, text="show CPU and memory of the machine")
    add_switch(group, "--allow-gpu-metrics", default=True, text="show the machine's GPUs")
    group.add_argument(
        "--metrics-interval-ms",
        type=integer(1),
        default=_DEFAULT_INTERVAL_MS,
        metavar="MS",
        help=f"pause between looks at CPUs and GPUs [{_DEFAULT_INTERVAL_MS}]",
    )
    group.add_argument(
        "--metrics-config",
        type=metrics_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="counter_latencies, summary_latencies, histogram_latencies (BOOL), or summary_quantiles (0.5:0.05,0.99:0.001)",
    )


def metrics_setting(text: str) -> MetricsSetting:
    """Read ``<key>=<value>``.

    Raises:
        ArgumentTypeError: the form or the value is wrong.
    """
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


def metrics_settings(given: argparse.Namespace) -> MetricsSettings:
    """The settings that the flags select; of a key that is given twice, the last value counts."""
    chosen = {key: value for key, value in given.metrics_config if value is not None}
    return MetricsSettings(
        cpu=given.allow_cpu_metrics, gpu=given.allow_gpu_metrics, interval_s=given.metrics_interval_ms / 1000, **chosen
    )


def metrics_warnings(settings: Iterable[MetricsSetting]) -> Sequence[str]:
    """A sentence for each key of ``--metrics-config`` that has no effect."""
    known = ", ".join((*_SWITCHES, _QUANTILES))
    return [
        f"--metrics-config={key} has no effect: the settings are {known}" for key, value in settings if value is None
    ]
