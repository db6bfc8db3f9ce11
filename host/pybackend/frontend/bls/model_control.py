"""Models that load, unload and look for other models: their questions, put to the engine and answered when it is done."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from pybackend.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.inference.tensor import Buffer
from pybackend.instance.services import Caller
from pybackend.ipc import stub_messages as heard
from pybackend_wire.errors import RemoteProtocolError

log = logging.getLogger(__name__)

MOST_OPEN_QUESTIONS = 1000
"""Of one stub; the threads of an honest one wait for an answer each."""

ControlQuestion = heard.LoadModel | heard.UnloadModel | heard.IsModelReady


class ModelControl:
    """Answers each question by a task of its own: a load takes as long as it takes, and nobody waits for it but its asker.

    A model may ask for itself. New processes are started beside the one that asks, which is told to end only when it
    has the answer and its request is done.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[Caller] = Counter()

    def on_question(self, caller: Caller, question: ControlQuestion, tail: bytes) -> None:
        """Take a question.

        Raises:
            RemoteProtocolError: the files of a load lie where the stub may not write, or it asks without end.
        """
        if self._open[caller] >= MOST_OPEN_QUESTIONS:
            raise RemoteProtocolError(f"{MOST_OPEN_QUESTIONS} questions about models are open already")
        files: dict[str, Buffer] = {}
        if isinstance(question, heard.LoadModel):
            files = {place.name: caller.take(place, tail) for place in question.files}
        # Who is being initialised keeps its own load waiting, and that one must not be waited for.
        asked_by = caller.model_name if caller.is_initializing else ""
        self._open[caller] += 1
        task = asyncio.create_task(self._answer(caller, question, files, asked_by))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, caller: Caller, question: ControlQuestion, files: Mapping[str, Buffer], asked_by: str
    ) -> None:
        try:
            value = await self._carry_out(question, files, asked_by)
        except InferenceError as error:
            caller.refuse(question.call, error)
        except Exception:  # whatever it is, a model waits for the answer
            log.exception("a question of instance '%s' about models failed", caller.instance_name)
            caller.refuse(question.call, InferenceError("internal error: see the server's log"))
        else:
            caller.answer(question.call, value)
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
            if isinstance(question, heard.LoadModel):
                caller.let_go(question.files)

    async def _carry_out(self, question: ControlQuestion, files: Mapping[str, Buffer], asked_by: str) -> bool | None:
        match question:
            case heard.LoadModel(_, name, config):
                await self._engine.load_model(name, config or None, files, asked_by=asked_by)
            case heard.UnloadModel(_, name, unload_dependents):
                await self._engine.unload_model(name, unload_dependents=unload_dependents, asked_by=asked_by)
            case heard.IsModelReady(_, name, version):
                return await self._engine.is_ready_by_name(name, version)
        return None
