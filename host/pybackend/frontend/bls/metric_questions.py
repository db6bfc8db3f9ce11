"""What models want of custom metrics, between the stubs that ask and the registry that answers."""

from __future__ import annotations

from pybackend.errors import InferenceError
from pybackend.instance.services import Caller
from pybackend.ipc import stub_messages as heard
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend_wire.messages import MetricChange, MetricKind

MetricQuestion = heard.NewFamily | heard.NewMetric | heard.ChangeMetric | heard.ReadMetric | heard.DropMetric


class MetricQuestions:
    """Carries out what stubs say about metrics, in the order in which they say it."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics

    def on_question(self, caller: Caller, question: MetricQuestion) -> None:
        """Answer a question, or make the change it is about.

        Raises:
            RemoteProtocolError: the stub names a metric that is not its own, or does what its SDK refuses.
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

    def _answer(self, caller: Caller, question: heard.NewFamily | heard.NewMetric | heard.ReadMetric) -> float:
        """A handle or a value.

        Raises:
            InferenceError: why there is none.
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

    def on_gone(self, caller: Caller) -> None:
        """The stub's life is over."""
        self._metrics.on_gone(caller)

    def on_retired(self, instance: object) -> None:
        """The stub's life was the last one of this instance."""
        self._metrics.on_retired(instance)
