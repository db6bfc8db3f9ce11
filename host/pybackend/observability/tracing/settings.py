"""The settings of traces: of the whole server, and of single models where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pybackend.errors import invalid

UNSIGNED_32 = 2**32 - 1
SIGNED_32 = 2**31 - 1


class TraceMode(StrEnum):
    """Where traces go."""

    TRITON = "triton"
    """Files in the format of Triton's server."""
    OPENTELEMETRY = "opentelemetry"
    """A collector that speaks OTLP over HTTP."""
    MEMORY = "memory"
    """The server's memory alone, which has the last traces in every mode."""


class TraceLevel(StrEnum):
    """The parts of a request that are recorded."""

    TIMESTAMPS = "TIMESTAMPS"
    """When a request reached each station of its path."""
    TENSORS = "TENSORS"
    """The inputs and outputs."""


@dataclass(frozen=True)
class ExportSettings:
    """How spans reach a collector. More waiting spans than ``max_queue_size`` are dropped."""

    url: str = "http://localhost:4318/v1/traces"
    resource: Mapping[str, str] = field(default_factory=lambda: {"service.name": "triton-inference-server"})
    max_queue_size: int = 2048
    schedule_delay_ms: int = 5000
    max_export_batch_size: int = 512


@dataclass(frozen=True)
class TraceSettings:
    """The settings at the start."""

    mode: TraceMode = TraceMode.TRITON
    levels: tuple[TraceLevel, ...] = ()  # what is recorded; empty for no traces
    # one of ``rate`` requests is sampled. With OpenTelemetry, 0 samples only requests that continue a trace.
    rate: int = 1000
    count: int = -1  # how many more requests may be sampled; -1 for any number
    log_frequency: int = 0  # traces per file; 0 for one file
    file: str = ""
    export: ExportSettings = ExportSettings()

    @property
    def invalid_reason(self) -> str:
        """Why traces that are switched on cannot be recorded; empty if they can, or are switched off."""
        if not self.levels:
            return ""
        if self.mode is TraceMode.OPENTELEMETRY:
            return ""
        if self.rate == 0:
            return "sample rate must be non-zero"
        return "" if self.file or self.mode is TraceMode.MEMORY else "trace file name is not given"

    def changed(self, changes: Mapping[str, Any]) -> TraceSettings:
        """These settings with other values of some attributes."""
        made = replace(self, **changes)
        if made.invalid_reason:
            advice = "" if made.rate == 0 else ": restart the server with --trace-config=triton,file=FILE"
            raise invalid(f"Attempting to set invalid trace setting :{made.invalid_reason}{advice}")
        return made


class TraceSettingsBook:
    """The settings in force. Models take the server's value for each setting that they do not set."""

    def __init__(self, initial: TraceSettings) -> None:
        self._initial = initial
        self._changes: dict[str, dict[str, Any]] = {}

    def of(self, model_name: str = "") -> TraceSettings:
        return replace(self._initial, **{**self._changes.get("", {}), **self._changes.get(model_name, {})})

    @property
    def models(self) -> list[str]:
        return [name for name in self._changes if name]

    def change(self, model_name: str, changes: Mapping[str, Any]) -> None:
        """Change attributes for a model, or the whole server; None ends an earlier change."""
        changed = {**self._changes.get(model_name, {}), **changes}
        kept = {name: value for name, value in changed.items() if value is not None}
        if model_name:
            self._initial.changed({**self._changes.get("", {}), **kept})
        else:
            self._initial.changed(kept)
            for name in self.models:
                self._initial.changed({**kept, **self._changes[name]})
        if kept:
            self._changes[model_name] = kept
        else:
            self._changes.pop(model_name, None)
