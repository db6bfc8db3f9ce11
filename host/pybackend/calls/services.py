"""The server's side of ``pb_utils``: dispatches models' calls and questions to their handlers."""

from __future__ import annotations

from pybackend.calls.deadlock import WaitGraph
from pybackend.calls.metric_questions import MetricQuestions
from pybackend.calls.model_calls import ModelCalls, OpenCall
from pybackend.calls.model_control import ModelControl
from pybackend.calls.open_bytes import OpenBytes
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.instance.services import CallingStub
from pybackend.instance.shared_core import SharedCore
from pybackend.ipc import stub_messages as heard
from pybackend.observability.custom_metrics import CustomMetrics


class ModelServices:
    """See :class:`pybackend.instance.services.StubServices`. It serves once :meth:`open` was called.

    Args:
        shared_core: hears of executions that wait for calls.

    Attributes:
        metrics: the custom metrics of all models.
    """

    def __init__(self, shared_core: SharedCore) -> None:
        self.metrics = CustomMetrics()
        self._metric_questions = MetricQuestions(self.metrics)
        self._open_bytes = OpenBytes()
        self._shared_core = shared_core
        self._engine: InferenceEngine | None = None
        self._calls: ModelCalls | None = None
        self._control: ModelControl | None = None

    def open(self, engine: InferenceEngine) -> None:
        """Forward requests to this engine."""
        self._engine = engine
        self._calls = ModelCalls(engine, self._open_bytes, self._shared_core, self._check_cycle)
        self._control = ModelControl(engine, self._open_bytes)

    def on_call(self, caller: CallingStub, call: heard.Call, tail: bytes) -> None:
        """The model runs another model."""
        assert self._calls is not None
        self._calls.on_call(caller, call, tail)

    def _check_cycle(self, call: OpenCall) -> None:
        """Fail a call that would wait for itself; the scheduler has already dispatched everything it could."""
        assert self._calls is not None
        pending = call.pending
        if pending is None or pending.answered:
            return
        if pending.holder.is_running(pending):
            return  # true for nearly every call; every cycle contains one for which it is false
        cycle = WaitGraph(call, self._calls.open_calls).cycle(call)
        if cycle:
            name = call.message.model_name
            call.failure = InferenceError(
                f"Model {name} - Error when running inference: the call can never be served, as models wait for each "
                f"other and no instance is free: {' -> '.join(cycle)}. Give one of them more instances "
                "(instance_group { count: ... }), or do without the call",
                ErrorCode.UNAVAILABLE,
            )
            pending.cancel()

    def on_cancel_call(self, caller: CallingStub, call: int) -> None:
        """The model wants no more responses to a call."""
        assert self._calls is not None
        self._calls.on_cancel_call(caller, call)

    def on_cancelled(self, caller: CallingStub, execution: int) -> None:
        """Nobody waits for an execution any more."""
        assert self._calls is not None
        self._calls.on_cancelled(caller, execution)

    def on_question(self, caller: CallingStub, question: heard.Question, tail: bytes) -> None:
        """The model asks about metrics or models."""
        if isinstance(question, heard.LoadModel | heard.UnloadModel | heard.IsModelReady):
            assert self._control is not None
            self._control.on_question(caller, question, tail)
        else:
            self._metric_questions.on_question(caller, question)

    def on_gone(self, caller: CallingStub) -> None:
        """The stub has ended."""
        if self._calls is not None:
            self._calls.on_gone(caller)
        self._open_bytes.on_gone(caller)
        self.metrics.on_gone(caller)

    def on_given_up(self) -> None:
        """An instance does not come back soon."""
        self.check_cycles()

    def on_turn(self, model_name: str) -> None:
        """A model has lost its last instance, or has one again."""
        assert self._engine is not None
        self._engine.repository.ensembles.on_change(model_name)

    def check_cycles(self) -> None:
        """Fail calls that now wait for themselves, because the models that run them wait for something new."""
        if self._calls is not None:
            for call in self._calls.all_open_calls():
                self._check_cycle(call)

    def on_retired(self, instance: object) -> None:
        """This instance will have no more stubs."""
        self.metrics.on_retired(instance)
