"""Answers the questions of models: about their custom metrics, and about loading, unloading and querying other models."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.calls.open_bytes import OpenBytes, question_bytes
from pybackend.frontend.calls.other_servers import OtherServers
from pybackend.inference.tensor import Buffer
from pybackend.instance.services import CallingStub
from pybackend.ipc import stub_messages as heard
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.repository.names import ModelNames
from pybackend.sandbox.grant import Grant
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.messages import MetricChange, MetricKind

log = logging.getLogger(__name__)

MetricQuestion = heard.NewFamily | heard.NewMetric | heard.ChangeMetric | heard.ReadMetric | heard.DropMetric


def on_metric_question(metrics: CustomMetrics, caller: CallingStub, question: MetricQuestion) -> None:
    """Answer a question about metrics, or apply a change.

    Raises RemoteProtocolError: the stub names a metric of another owner, or sends something that its SDK refuses.
    """
    match question:
        case heard.ChangeMetric(metric, change, value):
            metrics.change(caller, metric, MetricChange(change), float(value))
        case heard.DropMetric(handle):
            metrics.drop(caller, handle)
        case _:
            try:
                caller.answer(question.call, _metric_answer(metrics, caller, question))
            except InferenceError as error:
                caller.refuse(question.call, error)


def _metric_answer(
    metrics: CustomMetrics, caller: CallingStub, question: heard.NewFamily | heard.NewMetric | heard.ReadMetric
) -> float:
    match question:
        case heard.NewFamily(_, name, description, kind):
            return metrics.new_family(caller, caller.instance, caller.model_name, name, description, MetricKind(kind))
        case heard.NewMetric(_, family, labels, buckets):
            return metrics.new_series(caller, family, labels, buckets)
        case heard.ReadMetric(_, metric):
            return metrics.value(caller, metric)


MOST_OPEN_QUESTIONS = 1000
"""Limit per stub; each thread of a well-behaved stub waits for one answer at a time."""

ControlQuestion = heard.LoadModel | heard.UnloadModel | heard.IsModelReady


class ModelQuestions:
    """Answers each question in its own task: a load may take long, and only its caller waits for it.

    A model may reload or unload itself. New processes start beside the calling one, which is told to end only after it
    has received the answer and finished its request.
    """

    def __init__(
        self, engine: InferenceEngine, names: ModelNames, open_bytes: OpenBytes, others: OtherServers | None = None
    ) -> None:
        self._engine = engine
        self._others = others
        self._names = names
        self._open_bytes = open_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[CallingStub] = Counter()

    def on_question(self, caller: CallingStub, question: ControlQuestion, tail: bytes) -> None:
        """Accept a question.

        Raises RemoteProtocolError: the files of a load lie where the stub may not write, or too many questions are
        open.
        """
        if self._open[caller] >= MOST_OPEN_QUESTIONS:
            raise RemoteProtocolError(f"{MOST_OPEN_QUESTIONS} questions about models are open already")
        files: dict[str, Buffer] = {}
        if isinstance(question, heard.LoadModel):
            files = {place.name: caller.outputs.read_tensor(place, tail) for place in question.files}
        nbytes = question_bytes(question)
        try:
            self._open_bytes.acquire(caller, nbytes)
        except InferenceError as error:
            caller.refuse(question.call, error)
            if isinstance(question, heard.LoadModel):
                caller.let_go(question.files)
            return
        # A model that is being initialised holds up its own load, so it must not wait for that load.
        asked_by = caller.model_name if caller.is_initializing else ""
        grant = None if isinstance(question, heard.IsModelReady) else caller.grant
        self._open[caller] += 1
        task = asyncio.create_task(self._answer(caller, question, files, asked_by, grant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _answered: self._open_bytes.release(caller, nbytes))

    async def _answer(
        self,
        caller: CallingStub,
        question: ControlQuestion,
        files: Mapping[str, Buffer],
        asked_by: str,
        grant: Grant | None,
    ) -> None:
        try:
            value = await self._carry_out(question, files, asked_by, grant, caller.namespace)
        except InferenceError as error:
            caller.refuse(question.call, error)
        except Exception:  # the model waits for an answer in any case
            log.exception("a question about models from instance '%s' failed", caller.instance_name)
            caller.refuse(question.call, InferenceError("internal error: see the server's log"))
        else:
            caller.answer(question.call, value)
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
            if isinstance(question, heard.LoadModel):
                caller.let_go(question.files)

    async def _carry_out(
        self, question: ControlQuestion, files: Mapping[str, Buffer], asked_by: str, grant: Grant | None, home: str
    ) -> bool | None:
        match question:
            case heard.LoadModel(_, name, config):
                await self._engine.control.load(name, config or None, files, asked_by=asked_by, grant=grant, home=home)
            case heard.UnloadModel(_, name, unload_dependents):
                await self._engine.control.unload(
                    name, unload_dependents=unload_dependents, asked_by=asked_by, grant=grant, home=home
                )
            case heard.IsModelReady(_, name, version) if self._others is not None and self._others.has(name):
                return await self._others.is_ready(name, version)
            case heard.IsModelReady(_, name, version):
                return await self._engine.is_ready_by_name(self._names.known(name, home), version)
        return None
