"""The flags of traces: ``--trace-config``, and the older ones of Triton's server."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pybackend.errors import SettingError
from pybackend.flag import integer
from pybackend.observability.tracing.settings import (
    SIGNED_32,
    UNSIGNED_32,
    ExportSettings,
    TraceLevel,
    TraceMode,
    TraceSettings,
)

_FORMAT = "--trace-config option format is '<mode>,<setting>=<value>' or '<setting>=<value>'."

TraceSetting = tuple[str, str, Any]
"""A mode, empty for settings of all modes; a setting; its value."""

_BSP = {"bsp_max_queue_size": "max_queue_size", "bsp_max_export_batch_size": "max_export_batch_size"}
_DELAY = "bsp_schedule_delay"


def trace_level(text: str) -> str:
    """Parse ``OFF``, ``TIMESTAMPS`` or ``TENSORS``, in any case."""
    if text.upper() not in {"OFF", *TraceLevel}:
        raise argparse.ArgumentTypeError(
            f"invalid value for trace level option: {text}. Write OFF, TIMESTAMPS or TENSORS"
        )
    return text.upper()


def _mode(text: str) -> TraceMode:
    try:
        return TraceMode(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid value for trace mode option: {text}. Write triton, opentelemetry or memory"
        ) from None


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"resource is '{text}': write resource=<name>=<value>")
    return name, value


_READERS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "": {"level": trace_level, "rate": integer(0, UNSIGNED_32), "count": integer(-1, SIGNED_32), "mode": _mode},
    "triton": {"file": str, "log-frequency": integer(0, UNSIGNED_32)},
    "opentelemetry": {
        "url": str,
        "resource": _attribute,
        _DELAY: integer(0, UNSIGNED_32),
        **dict.fromkeys(_BSP, integer(1, UNSIGNED_32)),
    },
}


def trace_setting(text: str) -> TraceSetting:
    """Read one ``--trace-config``."""
    mode, comma, rest = text.partition(",")
    if not comma or "=" in mode:
        mode, rest = "", text
    name, equals, value = rest.partition("=")
    if not name or not equals or not value:
        raise argparse.ArgumentTypeError(f"{_FORMAT} Got {text}. For example: triton,file=/tmp/trace.json")
    if mode not in _READERS:
        raise argparse.ArgumentTypeError(f"unknown trace mode '{mode}'. Write triton or opentelemetry. Got {text}")
    reader = _READERS[mode].get(name)
    if reader is None:
        where = f"of mode {mode}" if mode else "of all modes"
        raise argparse.ArgumentTypeError(
            f"unknown trace setting '{name}'. The settings {where} are {', '.join(_READERS[mode])}. Got {text}"
        )
    return mode, name, reader(value)


def trace_settings(given: argparse.Namespace, variables: Mapping[str, str]) -> TraceSettings:
    """The settings that the flags, and the environment variables, select; ``--trace-config`` wins.

    Raises ServerError if the levels contradict each other.
    """
    older: list[TraceSetting] = [("", "level", level) for level in given.trace_level]
    for mode, name in (("triton", "file"), ("", "rate"), ("", "count"), ("triton", "log-frequency")):
        value = vars(given)[f"trace_{name.replace('-', '_')}"]
        if value is not None:
            older.append((mode, name, value))
    newer: list[TraceSetting] = given.trace_config
    named = {(mode, name) for mode, name, _ in newer}
    settings = [each for each in older if each[:2] not in named] + newer
    values = {(mode, name): value for mode, name, value in settings}
    made = TraceSettings(
        mode=values.get(("", "mode"), TraceMode.TRITON),
        levels=_levels(value for mode, name, value in settings if (mode, name) == ("", "level")),
        file=values.get(("triton", "file"), ""),
        export=_export(settings, variables),
    )
    names = {("", "rate"): "rate", ("", "count"): "count", ("triton", "log-frequency"): "log_frequency"}
    return replace(made, **{names[key]: value for key, value in values.items() if key in names})


def _levels(given: Iterable[str]) -> tuple[TraceLevel, ...]:
    levels = dict.fromkeys(given)
    if "OFF" in levels:
        if len(levels) > 1:
            raise SettingError("Expect only one trace level 'OFF' is specified: leave it out, or the others.")
        return ()
    return tuple(map(TraceLevel, levels))


def _export(settings: Iterable[TraceSetting], variables: Mapping[str, str]) -> ExportSettings:
    values: dict[str, Any] = {}
    for name in (*_BSP, _DELAY):
        text = variables.get(f"OTEL_{name.upper()}", "")
        if text.isdecimal() and int(text):
            values[name] = int(text)
    resource = dict(ExportSettings().resource)
    for mode, name, value in settings:
        if mode == "opentelemetry" and name == "resource":
            resource[value[0]] = value[1]
        elif mode == "opentelemetry":
            values[name] = value
    delay = {"schedule_delay_ms": values[_DELAY]} if _DELAY in values else {}
    url = {"url": values["url"]} if "url" in values else {}
    sizes = {attribute: values[name] for name, attribute in _BSP.items() if name in values}
    return ExportSettings(resource=resource, **delay, **url, **sizes)


def trace_warnings(given: argparse.Namespace) -> tuple[str, ...]:
    """Sentences about older flags, for the log."""
    older = [name for name in ("file", "level", "rate", "count", "log_frequency") if vars(given)[f"trace_{name}"]]
    if not older:
        return ()
    flags = ", ".join(f"--trace-{name.replace('_', '-')}" for name in older)
    return (f"{flags}: --trace-config has replaced these flags, which still work",)
