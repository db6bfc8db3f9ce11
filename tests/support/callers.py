"""Models that run code which the test sends, for tests of models that call models: what the code returns comes back as it is.

Python values travel as JSON; a response (or a list of tensors) becomes the model's own answer.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.gates import GATE
from tests.support.inference import Answer, Input, infer, strings
from tests.support.repositories import write_model
from tests.support.server import ServerProcess

Run = Callable[..., Any]

ONE = "instance_group { kind: KIND_CPU }"
"""One process, whatever the machine has: it keeps the state."""

HELPERS = f"""
import asyncio, gc, json, os, sys, textwrap, threading, time, weakref
{GATE}

state = {{}}
\"\"\"What code keeps from one execution to the next.\"\"\"


def call(model_name, outputs=(), inputs=None, model_version=-1, **arrays):
    \"\"\"A request for a model: arrays by the name of the input; what is no array is an option of the request.\"\"\"
    tensors = [tensor(name, value) for name, value in arrays.items() if isinstance(value, (list, np.ndarray))]
    options = {{name: value for name, value in arrays.items() if not isinstance(value, (list, np.ndarray))}}
    return pb_utils.InferenceRequest(
        model_name=model_name,
        inputs=tensors if inputs is None else inputs,
        requested_output_names=list(outputs),
        model_version=model_version,
        **options,
    )


def tensor(name, value):
    \"\"\"Numbers in a list become FP32, texts BYTES.\"\"\"
    if isinstance(value, list):
        value = np.array(value, object if value and isinstance(value[0], (str, bytes)) else np.float32)
    return pb_utils.Tensor(name, value)


def value(response, name="OUT"):
    \"\"\"The elements of an output; None if the response has none of that name.\"\"\"
    assert not response.has_error(), response.error().message()
    found = pb_utils.get_output_tensor_by_name(response, name)
    return None if found is None else [plain(item) for item in found.as_numpy().ravel().tolist()]


def plain(item):
    return item.decode() if isinstance(item, bytes) else item


def failure(response):
    \"\"\"Code and text of an error.\"\"\"
    assert response.has_error() and response.output_tensors() == []
    return [response.error().code().name, response.error().message()]


def seen(response):
    \"\"\"A response as plain data.\"\"\"
    if response.has_error():
        return failure(response)
    return {{item.name(): value(response, item.name()) for item in response.output_tensors()}}


def raised(function, *arguments, **options):
    \"\"\"Kind and text of what a call raises.\"\"\"
    try:
        return ["nothing", str(function(*arguments, **options))]
    except Exception as error:
        return [type(error).__name__, str(error)]


def in_threads(function, *rows):
    \"\"\"What a function gives for each row, all at once in threads; exceptions are raised again.\"\"\"
    found = [None] * len(rows)

    def run(index, row):
        try:
            found[index] = function(row)
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=entry) for entry in enumerate(rows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for item in found:
        if isinstance(item, BaseException):
            raise item
    return found


def answer(returned):
    if isinstance(returned, pb_utils.InferenceResponse):
        return returned
    if isinstance(returned, list) and returned and isinstance(returned[0], pb_utils.Tensor):
        return pb_utils.InferenceResponse(returned)
    return pb_utils.InferenceResponse([tensor("JSON", [json.dumps(returned)])])
"""
"""For the top of a model file."""

_RUN = """
def function(request, keyword):
    \"\"\"The request's code as a function of the request and its arrays; nothing else refers to it.\"\"\"
    code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
    names = {}
    source = f"{keyword} run(request, IN_tensor, DATA_tensor, BF16_tensor, IN, DATA):\\n" + textwrap.indent(code, "    ")
    exec(compile(source, "<caller>", "exec"), globals(), names)
    given = [pb_utils.get_input_tensor_by_name(request, name) for name in ("IN", "DATA", "BF16")]
    return lambda: names["run"](request, *given, *(None if item is None else item.as_numpy() for item in given[:2]))
"""

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
    return write_model(repository, name, HELPERS + _RUN + (_ASYNC if asynchronous else _SYNC), config)


def caller(server: ServerProcess, model: str = "caller") -> Run:
    """A function that sends code, with arrays; it gives what the code returns and fails if the request does.

    The code sees ``call(model, INPUT=...)``, ``value(response)``, ``failure(response)``, ``in_threads(function, *rows)``,
    ``state``, ``request`` and the usual modules.
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


TARGETS: dict[str, tuple[str, str]] = {
    "double": (
        """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 2)]) for request in requests
        ]
""",
        """
    input [ { name: "IN" data_type: TYPE_FP32 dims: -1 } ]
    output [ { name: "OUT" data_type: TYPE_FP32 dims: -1 } ]
""",
    ),
    "repeat": (
        """
class TritonPythonModel:
    # IN: how many responses; a second element k makes the response k an error; a third sends the flag with the last one.
    def execute(self, requests):
        for request in requests:
            numbers = request.inputs()[0].as_numpy().astype(int).tolist()
            count, wrong, together = numbers + [0, -1, 0][len(numbers):]
            sender = request.get_response_sender()
            for index in range(count):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([index], np.float32))])
                if index == wrong:
                    response = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"no {index}", pb_utils.TritonError.NOT_FOUND))
                sender.send(response, flags=1 if together and index == count - 1 else 0)
            if not (together and count):
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
""",
        """
    input [ { name: "IN" data_type: TYPE_FP32 dims: -1 } ]
    output [ { name: "OUT" data_type: TYPE_FP32 dims: -1 } ]
    model_transaction_policy { decoupled: true }
""",
    ),
    "describe": (
        """
import json


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        about = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "requested": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): [tensor.as_numpy().dtype.name, tensor.shape()] for tensor in request.inputs()},
        }
        outputs = [pb_utils.Tensor(name, np.array([json.dumps(about)], object)) for name in ("OUT0", "OUT1", "OUT2")]
        return pb_utils.InferenceResponse(outputs, parameters={"answered": True, "count": 7, "by": "describe"})
""",
        """
    input [
        { name: "IN" data_type: TYPE_FP32 dims: -1 optional: true },
        { name: "TEXT" data_type: TYPE_STRING dims: -1 optional: true }
    ]
    output [
        { name: "OUT0" data_type: TYPE_STRING dims: 1 },
        { name: "OUT1" data_type: TYPE_STRING dims: 1 },
        { name: "OUT2" data_type: TYPE_STRING dims: 1 }
    ]
""",
    ),
    "bytes": (
        """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
""",
        """
    input [ { name: "DATA" data_type: TYPE_UINT8 dims: -1 } ]
    output [ { name: "DATA" data_type: TYPE_UINT8 dims: -1 } ]
""",
    ),
}
"""Models to call: code and configuration by name."""


def write_targets(repository: Path, *names: str, extra: str = ONE) -> None:
    """Write some of :data:`TARGETS`."""
    for name in names:
        code, config = TARGETS[name]
        write_model(repository, name, code, f'backend: "python"\n{config}\n{extra}')
