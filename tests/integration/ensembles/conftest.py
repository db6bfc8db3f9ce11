"""One engine for all tests that only send requests: its loop runs while a test asks it to."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from tests.integration.models.conftest import Run, running_engine
from tests.support import ensembles
from tests.support.ensembles import FP32, nothing_held, step, write_ensemble, write_mix
from tests.support.repositories import tensors, write_model
from tests.support.streams import DECOUPLED, write_streams

CODE, TEXT, INT32 = ("TYPE_STRING", [1]), ("TYPE_STRING", [-1]), ("TYPE_INT32", [-1])

_TELL = """
import json

class TritonPythonModel:
    def execute(self, requests):
        return [self.tell(request) for request in requests]

    def tell(self, request):
        array = request.inputs()[0].as_numpy()
        told = {
            "id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags(),
            "timeout": request.timeout(), "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
        }
        text = pb_utils.Tensor("TOLD", np.array([json.dumps(told)], dtype=object))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), text])
"""
"""Hands its input on, and tells what came with the request."""

NAMES = """
import json

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        parameters = json.loads(request.parameters() or "{}")
        wanted = {key: value for key, value in parameters.items() if key.startswith("sequence_")}
        out = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
        return [pb_utils.InferenceResponse([out], parameters={**wanted, "other": 1})]
"""
"""Hands its input on, with those parameters of the request as the response's that name a sequence."""


@dataclass
class Lab:
    """The engine, and short ways to ask it."""

    engine: InferenceEngine
    run: Run

    def ask(self, name: str, arrays: dict[str, np.ndarray] | None = None, **members: Any) -> dict[str, np.ndarray]:
        """All outputs of a request; nothing is held afterwards."""
        outputs = self.run(ensembles.ask(self.engine, name, arrays or {}, **members))
        self.run(nothing_held(self.engine))
        return outputs

    def refusal(self, name: str, arrays: dict[str, np.ndarray] | None = None, **members: Any) -> InferenceError:
        """The error of a request that fails; nothing is held afterwards."""
        error = self.run(ensembles.refusal(self.engine, name, arrays or {}, **members))
        self.run(nothing_held(self.engine))
        return error


def passing(model: str, source: str, target: str) -> str:
    """A step of a model that takes IN and gives OUT."""
    return step(model, {"IN": source}, {"OUT": target})


def coded(model: str, code: str, source: str | None = None, **outputs: str) -> str:
    """A step of a model that runs the code in a tensor."""
    return step(model, {"CODE": code, **({"IN": source} if source else {})}, outputs)


def write_models(repository: Path) -> None:
    """The models that do the work: ``mix``, ``batched``, ``fixed``, ``tell``, ``names``, ``lab`` and ``streams``."""
    write_mix(repository)
    write_mix(repository, "batched", extra="max_batch_size: 8")
    write_mix(repository, "fixed", dims="[ 2 ]")
    io = f"input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=FP32, TOLD=CODE)} ]"
    write_model(repository, "tell", _TELL, f'backend: "python" {io}')
    io = f"input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=FP32)} ]"
    write_model(repository, "names", NAMES, f'backend: "python" {io}')
    write_streams(repository, "lab", "instance_group { count: 2 kind: KIND_CPU }")
    write_streams(repository, "streams", f"{DECOUPLED} instance_group {{ count: 2 kind: KIND_CPU }}")


def write_graphs(repository: Path) -> None:
    """Ensembles of models that answer once."""
    mix = {"A": "IN", "B": "y"}
    write_ensemble(
        repository,
        "diamond",
        [
            step("mix", {"A": "x", "B": "y"}, {"S": "OUT"}),
            step("mix", {"A": "IN"}, {"S": "x", "D": "y"}),
        ],
    )
    write_ensemble(
        repository,
        "outputs",
        [
            step("mix", {"A": "IN"}, {"S": "OUT", "D": "y"}),
            coded("lab", "CODE", TEXT="TEXT"),
            step("mix", mix, {"D": "LAST"}),
        ],
        inputs=tensors(IN=FP32, CODE=CODE),
        outputs=tensors(OUT=FP32, TEXT=TEXT, LAST=FP32),
    )
    write_ensemble(repository, "same", [step("mix", {"A": "IN", "B": "IN", "C": "IN"}, {"S": "OUT"})])
    write_ensemble(
        repository,
        "through",
        [step("mix", {"A": "IN"}, {"S": "OUT"})],
        outputs=tensors(OUT=FP32, IN=FP32),
    )
    write_ensemble(
        repository,
        "optional",
        [
            step("mix", {"A": "IN", "B": "MORE"}, {"S": "x"}),
            step("mix", {"A": "x", "B": "LEFT", "C": "MORE"}, {"S": "OUT"}),
        ],
        inputs=", ".join(
            [tensors(IN=FP32), *(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}' for name in ("MORE", "LEFT"))]
        ),
    )  # fmt: skip
    write_ensemble(
        repository,
        "told",
        [step("tell", {"IN": "IN"}, {"OUT": "x", "TOLD": "FIRST"}), step("tell", {"IN": "x"}, {"TOLD": "SECOND"})],
        outputs=tensors(FIRST=CODE, SECOND=CODE),
        extra="max_batch_size: 0",
    )
    write_ensemble(
        repository,
        "named",
        [passing("names", "IN", "x"), step("tell", {"IN": "x"}, {"OUT": "y", "TOLD": "FIRST"}), step("tell", {"IN": "y"}, {"TOLD": "SECOND", "OUT": "OUT"})],
        outputs=tensors(FIRST=CODE, SECOND=CODE, OUT=FP32),
    )  # fmt: skip
    write_ensemble(repository, "inner", [step("mix", {"A": "IN"}, {"S": "x"}), step("mix", {"A": "x"}, {"D": "OUT"})])
    write_ensemble(repository, "outer", [passing("inner", "IN", "x"), passing("inner", "x", "OUT")])
    write_ensemble(
        repository,
        "pair",
        [coded("lab", "CODE1", TEXT="x"), coded("lab", "CODE2", OUT="OUT"), step("joined", {"A": "x", "B": "OUT"}, {"TEXT": "TEXT"})],
        inputs=tensors(CODE1=CODE, CODE2=CODE),
        outputs=tensors(TEXT=TEXT, OUT=INT32),
    )  # fmt: skip
    write_model(
        repository,
        "joined",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (request,) = requests
                text = pb_utils.get_input_tensor_by_name(request, "A")
                return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text.as_numpy())])]
        """,
        f'backend: "python" input [ {tensors(A=TEXT, B=INT32)} ] output [ {tensors(TEXT=TEXT)} ]',
    )
    write_ensemble(
        repository,
        "row",
        [coded("lab", "CODE1", OUT="x"), coded("lab", "CODE2", "x", OUT="OUT")],
        inputs=tensors(CODE1=CODE, CODE2=CODE),
        outputs=tensors(OUT=INT32),
    )
    write_ensemble(
        repository,
        "late",
        [coded("lab", "CODE1", OUT="x"), coded("lab", "CODE2", TEXT="TEXT"), step("plus", {"A": "x", "B": "IN"}, {"OUT": "OUT"})],
        inputs=tensors(CODE1=CODE, CODE2=CODE, IN=INT32),
        outputs=tensors(OUT=INT32, TEXT=TEXT),
    )  # fmt: skip
    write_ensemble(repository, "two", [coded("lab", "CODE1", OUT="OUT", TEXT="TEXT")], tensors(CODE1=CODE), tensors(OUT=INT32, TEXT=TEXT))  # fmt: skip
    write_model(
        repository,
        "if_given",
        """
        class TritonPythonModel:
            def execute(self, requests):
                (request,) = requests
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.as_numpy()) for each in request.inputs()])]
        """,
        f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: -1 optional: true }} output [ {tensors(OUT=FP32)} ]',
    )
    write_ensemble(
        repository,
        "either",
        [step("if_given", {"IN": "A"}, {"OUT": "A_OUT"}), step("if_given", {"IN": "B"}, {"OUT": "B_OUT"})],
        ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}' for name in "AB"),
        tensors(A_OUT=FP32, B_OUT=FP32),
    )
    write_ensemble(repository, "row_outer", [step("row", {"CODE1": "CODE1", "CODE2": "CODE2"}, {"OUT": "OUT"})],
                   inputs=tensors(CODE1=CODE, CODE2=CODE), outputs=tensors(OUT=INT32))  # fmt: skip


def write_batches(repository: Path) -> None:
    """Ensembles that convert between models with and without batches."""
    matrix = tensors(IN=("TYPE_FP32", [-1, -1])), tensors(OUT=("TYPE_FP32", [-1, -1]))
    write_ensemble(repository, "all_batched", [step("batched", {"A": "IN"}, {"S": "x"}), step("batched", {"A": "x"}, {"D": "OUT"})], extra="max_batch_size: 4")  # fmt: skip
    write_ensemble(repository, "within", [step("mix", {"A": "IN"}, {"S": "x"}), step("batched", {"A": "x"}, {"S": "y"}), step("mix", {"A": "y"}, {"D": "OUT"})])  # fmt: skip
    write_ensemble(repository, "dimension", [step("batched", {"A": "IN"}, {"S": "OUT"})], *matrix)
    write_ensemble(repository, "around", [step("fixed", {"A": "IN"}, {"S": "x"}), step("batched", {"A": "x"}, {"D": "OUT"})], extra="max_batch_size: 4")  # fmt: skip
    reshaped = 'name: "{}" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape {{ shape: 4 }}'
    write_ensemble(repository, "reshaped", [step("mix", {"A": "IN"}, {"S": "OUT"})], f"{{ {reshaped.format('IN')} }}", f"{{ {reshaped.format('OUT')} }}")  # fmt: skip


def write_stream_ensembles(repository: Path) -> None:
    """Ensembles with parts that answer any number of times; the code of each step is an input of its own."""
    codes = tensors(CODE1=CODE, CODE2=CODE)
    both = tensors(OUT=INT32, TEXT=TEXT)
    chain = [coded("streams", "CODE1", OUT="x"), coded("lab", "CODE2", "x", OUT="OUT")]
    one = tensors(OUT=INT32)
    write_ensemble(repository, "s_chain", chain, codes, one)
    write_ensemble(repository, "s_limited", chain, codes, one, limit=2)
    write_ensemble(
        repository, "s_last", [coded("lab", "CODE1", OUT="x"), coded("streams", "CODE2", "x", OUT="OUT")], codes, one
    )
    write_ensemble(
        repository,
        "s_nested",
        [coded("streams", "CODE1", OUT="x"), coded("streams", "CODE2", "x", OUT="OUT")],
        codes,
        one,
    )
    write_ensemble(
        repository, "s_side", [coded("streams", "CODE1", OUT="OUT"), coded("lab", "CODE2", TEXT="TEXT")], codes, both
    )
    write_ensemble(
        repository, "s_two", [coded("streams", "CODE1", OUT="OUT"), coded("streams", "CODE2", TEXT="TEXT")], codes, both
    )
    write_ensemble(
        repository, "s_parts", [coded("streams", "CODE1", OUT="OUT", TEXT="TEXT")], tensors(CODE1=CODE), both
    )
    write_ensemble(
        repository,
        "s_join",
        [
            coded("streams", "CODE1", OUT="x"),
            coded("lab", "CODE2", OUT="y"),
            step("plus", {"A": "x", "B": "y"}, {"OUT": "OUT"}),
        ],
        codes,
        one,
    )
    write_ensemble(repository, "s_outer", [step("s_chain", {"CODE1": "CODE1", "CODE2": "CODE2"}, {"OUT": "x"}), coded("lab", "CODE3", "x", OUT="OUT")],
                   tensors(CODE1=CODE, CODE2=CODE, CODE3=CODE), one)  # fmt: skip
    write_model(
        repository,
        "plus",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [self.answer(request) for request in requests]

            def answer(self, request):
                a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "AB")
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", a + b)])
        """,
        f'backend: "python" input [ {tensors(A=INT32, B=INT32)} ] output [ {tensors(OUT=INT32)} ]',
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("ensembles")
    write_models(repository)
    write_graphs(repository)
    write_batches(repository)
    write_stream_ensembles(repository)
    return repository


@pytest.fixture(scope="module")
def lab(repository: Path) -> Iterator[Lab]:
    with running_engine(repository) as (engine, run):
        table = {row.name: row.status for row in engine.repository.catalogue.table()}
        assert set(table.values()) == {"READY"}, table
        yield Lab(engine, run)
