"""The log's settings as clients read and change them, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pybackend.errors import ErrorCode, InferenceError
from pybackend.observability.log_settings import LogFormat, LogSettings
from pybackend.protocol.json.document import as_bool, as_object, as_string, as_unsigned, parse_document
from pybackend.spelling import closest

MOST_VERBOSE = 2**32 - 1
"""The largest level that a gRPC message can say."""

_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_NAMES = ("log_file", *_SWITCHES, "log_verbose_level", "log_format")


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
    """The changes that a body asks for, as :func:`log_changes`; null leaves a setting as it is.

    Raises:
        InferenceError: the body is no JSON object, or asks for something that cannot be.
    """
    given = as_object(parse_document(body), "settings")
    changes = {name: value for name, value in given.items() if value is not None}
    for name in _SWITCHES:
        if name in changes:
            as_bool(changes[name], name)
    if "log_verbose_level" in changes:
        as_unsigned(changes["log_verbose_level"], "log_verbose_level")
    if "log_format" in changes:
        as_string(changes["log_format"], "log_format")
    return log_changes(changes)


def log_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by names in the protocol, as attributes of :class:`LogSettings`; values have the right types.

    Raises:
        InferenceError: there is no such setting, or it cannot have this value, or not be changed.
    """
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
                raise InferenceError(
                    f"log_verbose_level is {value}: write a number up to {MOST_VERBOSE}", ErrorCode.INVALID_ARG
                )
            changes["verbose_level"] = value
        elif name == "log_format":
            changes["format"] = _format(value)
        else:
            near = closest(name, _NAMES)
            advice = f"Did you mean '{near}'?" if near else f"The settings are {', '.join(_NAMES[1:])}"
            raise InferenceError(f"'{name[:100]}' is no setting of the log. {advice}", ErrorCode.INVALID_ARG)
    return changes


def _format(text: str) -> LogFormat:
    try:
        return LogFormat(text)
    except ValueError:
        raise InferenceError(
            f"invalid argument for --log_format, got: {text[:100]}. Write default, ISO8601, json or short",
            ErrorCode.UNAVAILABLE,
        ) from None
