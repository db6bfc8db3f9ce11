"""A runtime that remembers what model code asked it for."""

import pytest

from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import InferenceResponseSender, ResponseStream
from pybackend_sdk.runtime import Runtime, bind_runtime


class RecordingRuntime(Runtime):
    """Serves everything, and keeps each call as ``(name, *arguments)``."""

    def __init__(self):
        self.calls = []
        self.lines = []
        self.cancelled = False
        self.model_directory = "/models/m/1"
        self.response = InferenceResponse()

    def _record(self, *call):
        self.calls.append(call)

    def log(self, level, file, line, message):
        self.lines.append((level, file, line, message))

    def infer(self, request, decoupled):
        self._record("infer", request, decoupled)
        return self.response

    def infer_async(self, request, decoupled):
        self._record("infer_async", request, decoupled)
        return self.response

    def response_sender(self, request):
        def transmit(response, final):
            self._record("send", request, response, final)

        return InferenceResponseSender._create(ResponseStream(transmit, lambda: self.cancelled, decoupled=True))

    def is_cancelled(self, request):
        self._record("is_cancelled", request)
        return self.cancelled

    def create_metric_family(self, name, description, kind):
        self._record("create_metric_family", name, description, kind)
        return "family"

    def create_metric(self, family, labels, buckets):
        self._record("create_metric", family, labels, buckets)
        return "metric"

    def increment_metric(self, metric, value):
        self._record("increment_metric", metric, value)

    def set_metric(self, metric, value):
        self._record("set_metric", metric, value)

    def observe_metric(self, metric, value):
        self._record("observe_metric", metric, value)

    def metric_value(self, metric):
        self._record("metric_value", metric)
        return 2.5

    def load_model(self, model_name, config, files):
        self._record("load_model", model_name, config, files)

    def unload_model(self, model_name, unload_dependents):
        self._record("unload_model", model_name, unload_dependents)

    def is_model_ready(self, model_name, model_version):
        self._record("is_model_ready", model_name, model_version)
        return True

    def free_memory_bytes(self):
        return 4096


@pytest.fixture
def runtime():
    """A :class:`RecordingRuntime`, bound for the length of the test."""
    recording = RecordingRuntime()
    previous = bind_runtime(recording)
    yield recording
    bind_runtime(previous)
