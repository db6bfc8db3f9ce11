"""Models that run code which the test sends, for tests of models that call models: what the code returns comes back as
it is.

Python values travel as JSON; a response (or a list of tensors) becomes the model's own answer.
"""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.gates import GATE
from tests.support.inference import Answer, Input, infer, strings
from tests.support.repositories import code_part, copy_model, write_model
from tests.support.server import ServerProcess

Run = Callable[..., Any]

ONE = "instance_group { kind: KIND_CPU }"
"""One process, whatever the machine has: it keeps the state."""

HELPERS = GATE + code_part("calling")
"""For the top of a model file."""


_SYNC = """
class TritonPythonModel:
    def initialize(self, args):
        state["directory"] = args["model_repository"]

    def execute(self, requests):
        return [answer(function(request, "def")()) for request in requests]
"""

_ASYNC = """
class TritonPythonModel:
    def initialize(self, args):
        state["directory"] = args["model_repository"]

    async def execute(self, requests):
        return [answer(await function(request, "async def")()) for request in requests]
"""


def write_caller(repository: Path, name: str = "caller", *, asynchronous: bool = False, extra: str = ONE) -> Path:
    """Write such a model and return its directory.

    Args:
        repository: the directory of models.
        name: the model's name.
        asynchronous: its code is a coroutine's.
        extra: of its configuration.
    """
    config = f"""
    backend: "python"
    input [
        {{ name: "CODE" data_type: TYPE_STRING dims: 1 }},
        {{ name: "IN" data_type: TYPE_FP32 dims: -1 optional: true }},
        {{ name: "DATA" data_type: TYPE_UINT8 dims: -1 optional: true }},
        {{ name: "BF16" data_type: TYPE_BF16 dims: -1 optional: true }}
    ]
    output [
        {{ name: "JSON" data_type: TYPE_STRING dims: 1 }},
        {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }},
        {{ name: "DATA" data_type: TYPE_UINT8 dims: -1 }},
        {{ name: "BF16" data_type: TYPE_BF16 dims: -1 }}
    ]
    {extra}
    """
    return write_model(repository, name, HELPERS + (_ASYNC if asynchronous else _SYNC), config)


def caller(server: ServerProcess, model: str = "caller") -> Run:
    """A function that sends code, with arrays; it gives what the code returns and fails if the request does.

    The code sees ``call(model, INPUT=...)``, ``value(response)``, ``failure(response)``,
    ``in_threads(function, *rows)``, ``state``, ``request`` and the usual modules.
    """
    send = sender(server, model)

    def run(code: str, /, **arguments: Any) -> Any:
        answer = send(code, **arguments)
        assert answer.status == 200, answer.document
        return json.loads(answer["JSON"][0])

    return run


def sender(server: ServerProcess, model: str = "caller") -> Callable[..., Answer]:
    """The same, but it gives the answer as it comes; ``members`` of the document go as ``_name``."""

    def send(code: str, /, **arguments: Any) -> Answer:
        members = {name[1:]: item for name, item in arguments.items() if name.startswith("_")}
        inputs: dict[str, Input] = {"CODE": strings(textwrap.dedent(code))}
        inputs |= {name: item for name, item in arguments.items() if not name.startswith("_")}
        return infer(server, model, inputs, **members)

    return send


def write_targets(repository: Path, *names: str, extra: str = ONE) -> None:
    """Copy models that others call: ``double``, ``repeat``, ``describe``, ``bytes``."""
    for name in names:
        copy_model(repository, name, extra)
