"""The models behind the HTTP tests: few, small, and each good for many questions."""

from pathlib import Path

from tests.support.repositories import IDENTITY, identity_config, tensors, write_model

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
)  # fmt: skip

SPACED = "späced name+%41"
"""A model name that no URL can hold as it is; it even holds what looks like an escape."""

ADD_SUB = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            tensors = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

TYPES = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
"""Answers every input as it came, under its own name."""

PROBE = """
import json
import threading


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        command = json.loads(pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().ravel()[0])
        if "raise" in command:
            raise ValueError(command["raise"])
        if "error" in command:
            error = pb_utils.TritonError(command["error"], getattr(pb_utils.TritonError, command["code"]))
            return pb_utils.InferenceResponse(error=error)
        if "wait_for" in command:
            with open(command["wait_for"]) as gate:
                gate.read()
        seen = {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "priority": getattr(request, "priority", lambda: 0)(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
        }
        tensors = [
            pb_utils.Tensor("SEEN", np.array([json.dumps(seen).encode()], dtype=object)),
            pb_utils.Tensor("BLOB", np.array([bytes.fromhex(command.get("blob", ""))], dtype=object)),
        ]
        return pb_utils.InferenceResponse(tensors, parameters=command.get("parameters"))
"""
"""Does what its one input says, and tells what it has seen of the request."""

GENERATOR = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count, start = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            out = np.arange(start, start + count, dtype=np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
"""A small question with an answer of any size: ``[count, start]`` gives ``start, start + 1, ...``."""


def write_models(repository: Path) -> None:
    numbers = {"INPUT0": ("TYPE_FP32", [4]), "INPUT1": ("TYPE_FP32", [4])}
    results = {"OUTPUT0": ("TYPE_FP32", [4]), "OUTPUT1": ("TYPE_FP32", [4])}
    write_model(repository, "add_sub", ADD_SUB, _config(numbers, results))
    every = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_{"STRING" if name == "BYTES" else name} dims: -1 optional: true }}'
        for name in DATATYPES
    )
    write_model(
        repository,
        "types",
        TYPES,
        f'backend: "python"\ninput [ {every} ]\noutput [ {every.replace(" optional: true", "")} ]',
    )
    probe = _config({"COMMAND": ("TYPE_STRING", [1])}, {"SEEN": ("TYPE_STRING", [1]), "BLOB": ("TYPE_STRING", [1])})
    write_model(repository, "probe", PROBE, probe)
    # The same for what takes long: nothing is sent ahead to a model that is known to be slow.
    write_model(repository, "patient", PROBE, probe)
    write_model(repository, "generator", GENERATOR, _config({"IN": ("TYPE_INT64", [2])}, {"OUT": ("TYPE_INT64", [-1])}))
    batched = """
        input [
          { name: "IN_X" data_type: TYPE_FP32 dims: 4 }, { name: "IN_Y" data_type: TYPE_FP32 dims: -1 },
          { name: "IN_Z" data_type: TYPE_FP32 dims: 4 optional: true }
        ]
        output [
          { name: "OUT_X" data_type: TYPE_FP32 dims: 4 }, { name: "OUT_Y" data_type: TYPE_FP32 dims: -1 },
          { name: "OUT_Z" data_type: TYPE_FP32 dims: 4 }
        ]
        max_batch_size: 8
    """
    write_model(repository, "batched", IDENTITY, 'backend: "python"' + batched)
    write_model(repository, "strings", IDENTITY, identity_config("TYPE_STRING", "16"))
    two = tensors(IN0=("TYPE_STRING", [16]), IN1=("TYPE_STRING", [16]))
    write_model(
        repository,
        "two_strings",
        IDENTITY,
        f'backend: "python" input [ {two} ] output [ {tensors(OUT=("TYPE_STRING", [16]))} ]',
    )
    write_model(repository, "identity", IDENTITY, identity_config())
    write_model(repository, SPACED, IDENTITY, identity_config())
    for version in (1, 3):
        write_model(
            repository, "versions", IDENTITY, identity_config(extra="version_policy { all {} }"), version=version
        )
    write_model(repository, "raw", IDENTITY, identity_config("TYPE_INT32", "[ -1, 2 ]", "max_batch_size: 4"))
    write_model(repository, "raw_text", IDENTITY, identity_config("TYPE_STRING", "1"))
    write_model(repository, "raw_plane", IDENTITY, identity_config("TYPE_FP32", "[ -1, -1 ]"))


def _config(inputs: dict[str, tuple[str, list[int]]], outputs: dict[str, tuple[str, list[int]]]) -> str:
    return f'backend: "python"\ninput [ {tensors(**inputs)} ]\noutput [ {tensors(**outputs)} ]'
