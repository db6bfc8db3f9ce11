"""The methods that read and change settings of the running server: its log, and its traces."""

from __future__ import annotations

from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.observability.logging import LOG
from pybackend.protocol.documents.log import log_changes, log_values
from pybackend.protocol.documents.trace import trace_changes, trace_values
from pybackend.schema.messages import message_class

_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}
_WANTED = {
    "log_file": str,
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}


async def log_settings(request: Any) -> Any:
    """Change the settings that the request has, and answer with all of them."""
    given = {}
    for name, setting in request.settings.items():
        field = setting.WhichOneof("parameter_choice")
        if field is None:
            continue  # as null over HTTP
        wanted = _WANTED.get(name)
        if wanted is not None and field != _FIELDS[wanted]:
            raise InferenceError(f"expect {_FIELDS[wanted]} for '{name}', got {field}", ErrorCode.INVALID_ARG)
        given[name] = getattr(setting, field)
    LOG.change(**log_changes(given))
    answer = message_class("inference.LogSettingsResponse")()
    for name, value in log_values(LOG.settings).items():
        setattr(answer.settings[name], _FIELDS[type(value)], value)
    return answer


class TraceMethods:
    """The methods of traces.

    Args:
        engine: has the tracer.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine

    async def trace_setting(self, request: Any) -> Any:
        """Change the settings that the request has, and answer with all of them."""
        name, tracer = request.model_name, self._engine.tracer
        if name:
            name = self._engine.serving(name)
        given = {key: list(setting.value) or None for key, setting in request.settings.items()}
        if given:
            tracer.change(name, trace_changes(given))
        answer = message_class("inference.TraceSettingResponse")()
        for key, value in trace_values(tracer.settings_of(name)).items():
            answer.settings[key].value.extend([value] if isinstance(value, str) else value)
        return answer
