"""Models for harnesses, written for a test. Everything here and beside it runs on the SDK's oldest interpreter too."""

import builtins
import sys
import textwrap
import threading
import time

import pytest

from pybackend_sdk.runtime import current_runtime
from pybackend_testing import ModelHarness

PREAMBLE = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"


def tensors(**specs):
    """The configuration of inputs or outputs: ``tensors(IN="FP32 4 -1", OPTIONAL="STRING 1 optional")``."""
    return [
        {
            "name": name,
            "data_type": "TYPE_" + text.split()[0],
            "dims": [int(word) for word in text.split()[1:] if word != "optional"],
            **({"optional": True} if "optional" in text else {}),
        }
        for name, text in specs.items()
    ]


def configuration(inputs="FP32 -1", outputs="FP32 -1", **fields):
    """A configuration: of one input IN and one output OUT, or of the tensors that dicts name."""
    inputs = tensors(IN=inputs) if isinstance(inputs, str) else tensors(**inputs)
    outputs = tensors(OUT=outputs) if isinstance(outputs, str) else tensors(**outputs)
    return {"input": inputs, "output": outputs, **fields}


def wait_until(condition, deadline_s=60):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.001)


DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


@pytest.fixture
def write(tmp_path):
    """``write(code, "name", **files)`` writes a model and returns its directory; files are named by their stem."""

    def write(code, name="m", version=1, **files):
        directory = tmp_path / "models" / name
        (directory / str(version)).mkdir(parents=True, exist_ok=True)
        for stem, text in {"model": code, **files}.items():
            preamble = PREAMBLE if stem == "model" else ""
            (directory / str(version) / f"{stem}.py").write_text(preamble + textwrap.dedent(text))
        return directory

    return write


@pytest.fixture
def opened(write):
    """``opened(code, configuration, **arguments)`` writes a model and opens it until the test ends."""
    harnesses = []

    def opened(code, config=None, name="m", **arguments):
        config = configuration() if config is None else config
        harness = ModelHarness(write(code, name), config=config, **{"wait_s": 10.0, **arguments})
        harnesses.append(harness)
        return harness.open()

    yield opened
    for harness in reversed(harnesses):
        harness.close()


@pytest.fixture
def execute(opened):
    """``execute(body, ...)`` opens a model whose ``execute`` has this body; it sees ``requests`` and ``request``."""

    def execute(body, config=None, more="", **arguments):
        code = (
            "class TritonPythonModel:\n    def execute(self, requests):\n        request = requests[0]\n"
            + textwrap.indent(textwrap.dedent(body), " " * 8)
            + "\n"
            + textwrap.dedent(more)
        )
        return opened(code, config, **arguments)

    return execute


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """A closed harness leaves the process as it was."""

    def state():
        return list(sys.path), list(sys.meta_path), builtins.__import__, sys.dont_write_bytecode, current_runtime()

    modules, before, threads = set(sys.modules), state(), set(threading.enumerate())
    yield
    assert state() == before
    new = {name for name in set(sys.modules) - modules if name.partition(".")[0] in {"1", "2", "model", "helper"}}
    assert new == set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
        assert not thread.is_alive(), thread
