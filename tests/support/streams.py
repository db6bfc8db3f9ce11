"""Requests whose responses come one by one: a model that runs the test's code, and an in-process client that takes its
time.

The model answers through response senders; the client sees each response when the host has it, and may pause, resume
and cancel, as front ends do.
"""

import asyncio
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.engine.engine import InferenceEngine
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from tests.support.engine import input_tensor, output_array
from tests.support.gates import GATE, Gate
from tests.support.inference import infer, strings
from tests.support.repositories import model_code, tensors, write_model
from tests.support.server import ServerProcess

DEADLINE_S = 60

DECOUPLED = "model_transaction_policy { decoupled: true }"
ONE = "instance_group { count: 1 kind: KIND_CPU }"

_CODE = GATE + model_code("streams")


def write_streams(repository: Path, name: str, extra: str = DECOUPLED) -> Path:
    """Write a model that runs the code it is sent: ``CODE``, and an optional input ``IN``; outputs OUT and TEXT."""
    config = f"""
backend: "python"
input [
    {{ name: "CODE" data_type: TYPE_STRING dims: 1 }},
    {{ name: "IN" data_type: TYPE_INT32 dims: -1 optional: true }}
]
output [ {tensors(OUT=("TYPE_INT32", [-1]), TEXT=("TYPE_STRING", [-1]))} ]
{ONE if "instance_group" not in extra else ""}
{extra}
"""
    return write_model(repository, name, _CODE, config)


def function(code: str, *, takes: str = "request", asynchronous: bool = False) -> np.ndarray:
    """The input CODE of such a model: the body of what ``execute`` does.

    Args:
        code: sees ``request``, ``sender``, ``state``, ``out``, ``text``, ``failed``, ``FINAL``, ``in_thread``, ...
        takes: the names of the requests; "*requests" for any number.
        asynchronous: it is a coroutine's.
    """
    sender = "    sender = request.get_response_sender()\n" if takes == "request" and "sender" in code else ""
    head = f"{'async ' if asynchronous else ''}def run({takes}):\n"
    return strings(head + sender + textwrap.indent(textwrap.dedent(code), "    "))


DROPPED = "The model dropped this request's response sender without having sent the final flag"
"""How the error begins that ends such a request's stream."""


@dataclass(frozen=True)
class Received:
    """A response, its tensors copied out of shared memory."""

    out: list[int] | None
    text: list[str] | None
    error: str | None
    code: str | None
    final: bool
    empty: bool
    parameters: dict[str, Any] | None

    @property
    def content(self) -> Any:
        return self.error or self.text or self.out


END = Received(out=None, text=None, error=None, code=None, final=True, empty=True, parameters=None)
"""A final flag that came alone."""


class Stream:
    """One request to a model in this process, as a front end sees it.

    Args:
        engine: has the model.
        model: its name.
        inputs: arrays.
        keep: responses are kept as they are, their memory in use, instead of being read and released.
        members: attributes of the request.
    """

    def __init__(
        self, engine: InferenceEngine, model: str, inputs: dict[str, np.ndarray], *, keep: bool = False, **members: Any
    ) -> None:
        request = InferenceRequest(model, inputs=[input_tensor(name, array) for name, array in inputs.items()])
        for name, value in members.items():
            setattr(request, name, value)
        self._keep = keep
        self._responses: asyncio.Queue[Any] = asyncio.Queue()
        self.count = 0
        self.pending = engine.submit(engine.repository.catalogue.find(model), request, self._on_response)

    def _on_response(self, response: InferenceResponse) -> None:
        self.count += 1
        self._responses.put_nowait(response if self._keep else received(response))

    async def next(self) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await self._responses.get()

    async def rest(self) -> list[Any]:
        """All responses from here on to the final one."""
        responses = [await self.next()]
        while not responses[-1].final:
            responses.append(await self.next())
        return responses

    def has_more(self) -> bool:
        """True if there are responses that :meth:`next` has not returned."""
        return not self._responses.empty()


def received(response: InferenceResponse) -> Received:
    """Read a response and give its memory back."""
    names = set() if response.error else {output.name for output in response.outputs}
    found = Received(
        out=output_array(response, "OUT").ravel().tolist() if "OUT" in names else None,
        text=[item.decode() for item in output_array(response, "TEXT").ravel()] if "TEXT" in names else None,
        error=None if response.error is None else response.error.message,
        code=None if response.error is None else response.error.code.name,
        final=response.final,
        empty=response.empty,
        parameters=None if response.parameters is None else dict(response.parameters),
    )
    response.release()
    return found


async def reached(gate: Gate, arrivals: int = 1) -> None:
    """Wait until the model has come to a gate, while the loop goes on."""
    await asyncio.to_thread(gate.wait_reached, arrivals)


async def quiet(count: Callable[[], int]) -> None:
    """Wait until a number has stayed the same for a fifth of a second, while the loop goes on."""
    async with asyncio.timeout(DEADLINE_S):
        still, before = 0, -1
        while still < 10:
            await asyncio.sleep(0.02)
            still, before = (still + 1, before) if count() == before else (0, count())


def contents(responses: list[Received]) -> list[Any]:
    """What responses carry, without a final flag that came alone."""
    return [response.content for response in responses if not response.empty]


_FRONT = model_code("front")


def write_front(repository: Path, count: int = 2) -> None:
    """Write ``front``: it brings a request to a decoupled model, which HTTP alone cannot, and all responses back."""
    config = f"""
backend: "python"
input [
    {{ name: "CODE" data_type: TYPE_STRING dims: 1 }},
    {{ name: "IN" data_type: TYPE_INT32 dims: -1 optional: true }}
]
output [ {tensors(TOLD=("TYPE_STRING", [1]))} ]
instance_group {{ count: {count} kind: KIND_CPU }}
"""
    write_model(repository, "front", _FRONT, config)


def through_front(
    server: ServerProcess, target: str, code: str, *, asynchronous: bool = False, values: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """Run code in a decoupled model, over HTTP: its responses, the empty one with the final flag too, as the caller
    sees them."""
    inputs = {"CODE": function(code, asynchronous=asynchronous)}
    if values:
        inputs["IN"] = np.array(values, np.int32)
    answer = infer(server, "front", inputs, parameters={"target": target})
    return json.loads(answer["TOLD"][0])
