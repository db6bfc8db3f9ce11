"""Forwards custom-metric requests from stubs to the registry."""

from __future__ import annotations

from pybackend.errors import InferenceError
from pybackend.instance.services import CallingStub
from pybackend.ipc import stub_messages as heard
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend_wire.messages import MetricChange, MetricKind

MetricQuestion = heard.NewFamily | heard.NewMetric | heard.ChangeMetric | heard.ReadMetric | heard.DropMetric


class MetricQuestions:
    """Handles stubs' messages about metrics in the order in which they arrive."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics

    def on_question(self, caller: CallingStub, question: MetricQuestion) -> None:
        """Answer a question, or apply a change.

        Raises:
            RemoteProtocolError: the stub names a metric of another owner, or sends something that its SDK refuses.
        """
        match question:
            case heard.ChangeMetric(metric, change, value):
                self._metrics.change(caller, metric, MetricChange(change), float(value))
            case heard.DropMetric(handle):
                self._metrics.drop(caller, handle)
            case _:
                try:
                    caller.answer(question.call, self._answer(caller, question))
                except InferenceError as error:
                    caller.refuse(question.call, error)

    def _answer(self, caller: CallingStub, question: heard.NewFamily | heard.NewMetric | heard.ReadMetric) -> float:
        """The handle or value that answers a question.

        Raises:
            InferenceError: the question cannot be answered; the text gives the reason.
        """
        metrics = self._metrics
        match question:
            case heard.NewFamily(_, name, description, kind):
                return metrics.new_family(
                    caller, caller.instance, caller.model_name, name, description, MetricKind(kind)
                )
            case heard.NewMetric(_, family, labels, buckets):
                return metrics.new_series(caller, family, labels, buckets)
            case heard.ReadMetric(_, metric):
                return metrics.value(caller, metric)

    def on_gone(self, caller: CallingStub) -> None:
        """The stub has ended."""
        self._metrics.on_gone(caller)

    def on_retired(self, instance: object) -> None:
        """This instance's last stub has ended."""
        self._metrics.on_retired(instance)
