"""A model that runs code which the test sends, so that a test shows what happens inside ``execute`` and what comes of
it."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.inference import Answer, Input, infer, strings
from tests.support.repositories import model_code, write_model
from tests.support.server import ServerProcess

Laboratory = Callable[..., Answer]

_CODE = model_code("laboratory")

_DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "STRING",
)  # fmt: skip


def write_laboratory(repository: Path, name: str = "laboratory", extra: str = "") -> None:
    """Write the model: optional inputs named as their datatypes (``BYTES`` and ``PLANE`` too), outputs OUT, OUT0, OUT1."""
    inputs = ['{ name: "CODE" data_type: TYPE_STRING dims: 1 }']
    for datatype in _DATATYPES:
        label = "BYTES" if datatype == "STRING" else datatype
        inputs.append(f'{{ name: "{label}" data_type: TYPE_{datatype} dims: -1 optional: true }}')
    inputs.append('{ name: "PLANE" data_type: TYPE_FP32 dims: [ -1, -1 ] optional: true }')
    inputs.append('{ name: "PAGE" data_type: TYPE_STRING dims: [ -1, -1 ] optional: true }')
    outputs = [f'{{ name: "{output}" data_type: TYPE_FP32 dims: -1 }}' for output in ("OUT", "OUT0", "OUT1")]
    if "instance_group" not in extra:
        extra += " instance_group { kind: KIND_CPU }"  # one process, whatever the machine has: it keeps the state
    config = f'backend: "python"\ninput [ {", ".join(inputs)} ]\noutput [ {", ".join(outputs)} ]\n{extra}'
    write_model(repository, name, _CODE, config)


def laboratory(server: ServerProcess, model: str = "laboratory") -> Laboratory:
    """A function that sends code, the body of ``execute``, with arrays; ``members`` of the document go as ``_name``.

    The code sees ``request``, ``tensor(name)``, ``array(name)``, ``out(OUT=array)``, ``text(*elements)``, ``state`` and
    the usual modules, and has to return what ``execute`` is to return. None of these names outlives it.
    """

    def run(code: str, /, **arguments: object) -> Answer:
        members = {name[1:]: value for name, value in arguments.items() if name.startswith("_")}
        inputs: dict[str, Input] = {"CODE": strings(textwrap.dedent(code))}
        inputs |= {name: value for name, value in arguments.items() if isinstance(value, (np.ndarray, tuple))}
        return infer(server, model, inputs, **members)

    return run
