"""Trace files in the format of Triton's server: a JSON array of fragments, which belong together by their ``id``."""

import json
import os
from operator import attrgetter
from pathlib import Path
from typing import Any

from pybackend.errors import SettingError
from pybackend.observability.tracing.recorder import TraceLossError, TraceSink
from pybackend.observability.tracing.request_trace import RequestTrace, described

MOST_HELD_BYTES = 16 * 1024 * 1024
"""Fragments that wait for a file to be full. Beyond it, the file is written with fewer traces."""


class TraceFile(TraceSink):
    """Writes ``path``, or ``path.0``, ``path.1``, ... with a number of traces each.

    Each file is complete at any time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._end = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._index = 0
        try:
            if path.is_dir():
                raise IsADirectoryError(0, "Is a directory")
            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
            if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
                raise PermissionError(0, "Permission denied")
        except OSError as error:
            raise SettingError(
                f"the trace file {path} cannot be written: {error.strerror}. Give a file in a directory that the "
                "server's user may write"
            ) from None

    def write(self, traces: list[RequestTrace]) -> None:
        try:
            for trace in traces:
                text = b",".join(json.dumps(each, separators=(",", ":")).encode() for each in fragments(trace))
                frequency = trace.settings.log_frequency
                if not frequency:
                    self._append(text)
                    continue
                self._held.append(text)
                self._held_bytes += len(text)
                if len(self._held) >= frequency or self._held_bytes > MOST_HELD_BYTES:
                    self._write_held()
        except OSError as error:
            raise TraceLossError(f"the trace file {self._path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Write the last file, which may have fewer traces than the others."""
        if self._held:
            try:
                self._write_held()
            except OSError as error:
                raise TraceLossError(f"the trace file {self._path} cannot be written: {error.strerror}") from None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, text: bytes) -> None:
        """Put fragments before the last bracket of the one file."""
        if self._descriptor is None:
            self._descriptor = _opened(self._path)
            self._end = 0
        piece = (b"," if self._end else b"[") + text
        try:
            _write_all(self._descriptor, piece + b"]", self._end)
        except OSError:
            if self._end:
                os.ftruncate(self._descriptor, self._end)
                os.pwrite(self._descriptor, b"]", self._end)
            raise
        self._end += len(piece)

    def _write_held(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        path = self._path.with_name(f"{self._path.name}.{self._index}")
        self._index += 1
        descriptor = _opened(path)
        try:
            _write_all(descriptor, b"[" + b",".join(held) + b"]", 0)
        finally:
            os.close(descriptor)


def _opened(path: Path) -> int:
    """A descriptor of an empty file. A new one is for its owner alone: it may hold what clients have sent."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def fragments(trace: RequestTrace) -> list[dict[str, Any]]:
    """The fragments of a trace: the request, its times in order, its tensors."""
    head: dict[str, Any] = {
        "id": trace.number,
        "model_name": trace.model_name,
        "model_version": int(trace.model_version),
    }
    if trace.namespace:
        head["namespace"] = trace.namespace
    if trace.request_id:
        head["request_id"] = trace.request_id
    if trace.parent is not None:
        head["parent_id"] = trace.parent.number
    found: list[dict[str, Any]] = [head]
    events = sorted(trace.events, key=attrgetter("ns"))
    found += [{"id": trace.number, "timestamps": [{"name": each.name, "ns": each.ns}]} for each in events]
    for tensor in trace.tensors:
        shown: dict[str, Any] = {**described(tensor)}
        if tensor.nbytes > len(tensor.data):
            shown["bytes_left_out"] = tensor.nbytes - len(tensor.data)
        found.append({"id": trace.number, "activity": tensor.activity, "tensor": shown})
    return found
