"""What models ask of this server, handed to those who answer: the server's side of ``pb_utils``."""

from __future__ import annotations

from pybackend.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.bls.calls import ModelCalls, OpenCall
from pybackend.frontend.bls.deadlock import WaitGraph, is_under_way
from pybackend.frontend.bls.metric_questions import MetricQuestions
from pybackend.frontend.bls.model_control import ModelControl
from pybackend.instance.services import Caller
from pybackend.ipc import stub_messages as heard
from pybackend.observability.custom_metrics import CustomMetrics


class ModelServices:
    """See :class:`pybackend.instance.services.StubServices`. It serves from :meth:`open` on.

    Attributes:
        metrics: the custom metrics of all models.
    """

    def __init__(self) -> None:
        self.metrics = CustomMetrics()
        self._metric_questions = MetricQuestions(self.metrics)
        self._calls: ModelCalls | None = None
        self._control: ModelControl | None = None

    def open(self, engine: InferenceEngine) -> None:
        """Take requests to this engine."""
        self._calls = ModelCalls(engine, self._check_cycle)
        self._control = ModelControl(engine)

    def on_call(self, caller: Caller, call: heard.Call, tail: bytes) -> None:
        """The model runs another model."""
        assert self._calls is not None
        self._calls.on_call(caller, call, tail)

    def _check_cycle(self, call: OpenCall) -> None:
        """Fail a call that would wait for itself; by now the scheduler has handed out what it could."""
        assert self._calls is not None
        pending = call.pending
        if pending is None or pending.answered:
            return
        if is_under_way(pending):
            return  # as nearly every call is; in a circle, there is one that is not
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

    def on_cancel_call(self, caller: Caller, call: int) -> None:
        """The model wants no more responses to a call."""
        assert self._calls is not None
        self._calls.on_cancel_call(caller, call)

    def on_cancelled(self, caller: Caller, execution: int) -> None:
        """Nobody waits for an execution any more."""
        assert self._calls is not None
        self._calls.on_cancelled(caller, execution)

    def on_question(self, caller: Caller, question: heard.Question, tail: bytes) -> None:
        """The model asks about metrics or models."""
        if isinstance(question, heard.LoadModel | heard.UnloadModel | heard.IsModelReady):
            assert self._control is not None
            self._control.on_question(caller, question, tail)
        else:
            self._metric_questions.on_question(caller, question)

    def on_gone(self, caller: Caller) -> None:
        """The stub's life is over."""
        if self._calls is not None:
            self._calls.on_gone(caller)
        self.metrics.on_gone(caller)

    def on_given_up(self) -> None:
        """An instance will not come back."""
        self.check_cycles()

    def check_cycles(self) -> None:
        """Fail calls that would wait for themselves: what runs them waits for something else than when they were made."""
        if self._calls is not None:
            for call in self._calls.all_open_calls():
                self._check_cycle(call)

    def on_retired(self, instance: object) -> None:
        """No stub of this instance will come any more."""
        self.metrics.on_retired(instance)
