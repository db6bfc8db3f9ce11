"""The settings of the log and of traces as clients read and change them, over HTTP and gRPC."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend.observability.log_lines import LogFormat, LogSettings
from pybackend.observability.tracing.settings import SIGNED_32, UNSIGNED_32, TraceLevel, TraceMode, TraceSettings
from pybackend.protocol.json.document import as_array, as_bool, as_object, as_string, as_unsigned, parse_document
from pybackend.spelling import closest

MOST_VERBOSE = 2**32 - 1
"""The largest level that a gRPC message can say."""

_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_CHECKS = {**dict.fromkeys(_SWITCHES, as_bool), "log_verbose_level": as_unsigned, "log_format": as_string}
_NAMES = ("log_file", *_CHECKS)


def log_values(settings: LogSettings) -> dict[str, bool | int | str]:
    """The settings by their names in the protocol, in its order."""
    return {
        "log_file": "" if settings.file is None else str(settings.file),
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose_level,
        "log_format": settings.format.value,
    }


def log_document(settings: LogSettings) -> bytes:
    """The document of ``/v2/logging``."""
    return msgspec.json.encode(log_values(settings))


def log_changes_in(body: bytes) -> dict[str, Any]:
    """The changes that a body asks for, as :func:`log_changes`; null leaves a setting as it is."""
    given = as_object(parse_document(body), "settings")
    changes = {name: value for name, value in given.items() if value is not None}
    for name, check in _CHECKS.items():
        if name in changes:
            check(changes[name], name)
    return log_changes(changes)


def log_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by names in the protocol, as attributes of :class:`LogSettings`; values have the right types."""
    if "log_file" in given:
        raise InferenceError(
            "log file location can not be updated through network protocol: restart the server with --log-file",
            ErrorCode.UNSUPPORTED,
        )
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name in _SWITCHES:
            changes[_SWITCHES[name]] = value
        elif name == "log_verbose_level":
            if value > MOST_VERBOSE:
                raise invalid(f"log_verbose_level is {value}: write a number up to {MOST_VERBOSE}")
            changes["verbose_level"] = value
        elif name == "log_format":
            changes["format"] = _format(value)
        else:
            near = closest(name, _NAMES)
            advice = f"Did you mean '{near}'?" if near else f"The settings are {', '.join(_NAMES[1:])}"
            raise invalid(f"'{name[:100]}' is no setting of the log. {advice}")
    return changes


def _format(text: str) -> LogFormat:
    try:
        return LogFormat(text)
    except ValueError:
        raise InferenceError(
            f"invalid argument for --log_format, got: {text[:100]}. Write default, ISO8601, json or short",
            ErrorCode.UNAVAILABLE,
        ) from None


# Traces: all values are strings

_NUMBERS = {
    "trace_rate": ("rate", 0, UNSIGNED_32),
    "trace_count": ("count", -SIGNED_32 - 1, SIGNED_32),
    "log_frequency": ("log_frequency", 0, UNSIGNED_32),
}
_LEVEL = "trace_level"
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")


def trace_values(settings: TraceSettings) -> dict[str, str | list[str]]:
    """The settings by their names in the protocol, in its order."""
    values: dict[str, str | list[str]] = {
        _LEVEL: [level.value for level in settings.levels] or ["OFF"],
        "trace_rate": str(settings.rate),
        "trace_count": str(settings.count),
    }
    if settings.mode is TraceMode.TRITON:
        values["log_frequency"] = str(settings.log_frequency)
        values["trace_file"] = settings.file
    elif settings.mode is TraceMode.OPENTELEMETRY:
        export = settings.export
        values["url"] = export.url
        values["resource"] = ",".join(f"{name}={value}" for name, value in export.resource.items())
        values["bsp_max_queue_size"] = str(export.max_queue_size)
        values["bsp_schedule_delay"] = str(export.schedule_delay_ms)
        values["bsp_max_export_batch_size"] = str(export.max_export_batch_size)
    values["trace_mode"] = settings.mode.value
    return values


def trace_document(settings: TraceSettings) -> bytes:
    """The document of ``/v2/trace/setting``."""
    return msgspec.json.encode(trace_values(settings))


def trace_changes_in(body: bytes) -> dict[str, Any]:
    """The changes that a body asks for, as attributes of :class:`TraceSettings`; None ends an earlier change."""
    given = as_object(parse_document(body), "settings")
    values: dict[str, list[str] | None] = {}
    for name, value in given.items():
        if value is None or name not in {_LEVEL, *_NUMBERS}:
            values[name] = None
        elif name == _LEVEL:
            values[name] = [as_string(each, name) for each in as_array(value, name)]
        else:
            values[name] = [as_string(value, name)]
    return trace_changes(values)


def trace_changes(given: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """Changes by names in the protocol, as attributes of :class:`TraceSettings`; None ends an earlier change."""
    if "trace_file" in given:
        raise InferenceError(
            "trace file location can not be updated through network protocol: restart the server with "
            "--trace-config=triton,file=FILE",
            ErrorCode.UNSUPPORTED,
        )
    changes: dict[str, Any] = {}
    for name, values in given.items():
        if name == _LEVEL:
            changes["levels"] = None if values is None else _levels(values)
        elif name in _NUMBERS:
            attribute, least, most = _NUMBERS[name]
            changes[attribute] = None if values is None else _number(name, values, least, most)
        else:
            raise invalid(
                f"'{name[:100]}' is no trace setting that can be changed at run time. Those are {_LEVEL}, "
                f"{', '.join(_NUMBERS)}"
            )
    return changes


def _levels(values: Sequence[str]) -> tuple[TraceLevel, ...]:
    if "OFF" in values:
        if len(values) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified: leave it out, or the others")
        return ()
    try:
        return tuple(dict.fromkeys(map(TraceLevel, values)))
    except ValueError:
        raise invalid(
            f"Unable to parse '{_LEVEL}', got: {', '.join(values)[:100]}. Write OFF, or TIMESTAMPS and TENSORS"
        ) from None


def _number(name: str, values: Sequence[str], least: int, most: int) -> int:
    if len(values) != 1:
        raise invalid(f"expect only 1 value for '{name}', got {len(values)}")
    text = values[0].strip()
    if not _NUMBER.fullmatch(text):
        raise invalid(f"Unable to parse '{name}', got: {text[:100]}. Write a whole number as text")
    number = int(text)
    if not least <= number <= most:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    if name == "trace_count" and number < -1:
        raise invalid(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{number}")
    return number
