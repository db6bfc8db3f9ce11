"""The models that are measured, written as a model repository that every server under test loads unchanged."""

from __future__ import annotations

from pathlib import Path

ADD_SUB = "add_sub"
IDENTITY = "identity"

_ADD_SUB_CODE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [
                pb_utils.Tensor("OUTPUT0", np.add(left, right)),
                pb_utils.Tensor("OUTPUT1", np.subtract(left, right)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

_IDENTITY_CODE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", data)]))
        return responses
"""


def write_pair(repository: Path) -> None:
    """One add_sub and one identity: what the load is put on."""
    write_add_sub(repository, [ADD_SUB])
    _write(repository, IDENTITY, _IDENTITY_CODE, inputs=["INPUT0"], outputs=["OUTPUT0"], dims=-1)


def write_copies(repository: Path, copies: int) -> list[str]:
    """So many models, all of them add_sub; returns their names."""
    names = [f"{ADD_SUB}_{number:03d}" for number in range(copies)]
    write_add_sub(repository, names)
    return names


def write_add_sub(repository: Path, names: list[str]) -> None:
    """The sum and the difference of two FP32 tensors of four elements, unbatched, one instance."""
    for name in names:
        _write(repository, name, _ADD_SUB_CODE, inputs=["INPUT0", "INPUT1"], outputs=["OUTPUT0", "OUTPUT1"], dims=4)


def _write(repository: Path, name: str, code: str, *, inputs: list[str], outputs: list[str], dims: int) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code, encoding="utf-8")
    lines = ['backend: "python"', "max_batch_size: 0"]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        lines += [f'{kind} {{ name: "{tensor}" data_type: TYPE_FP32 dims: [ {dims} ] }}' for tensor in tensors]
    lines.append("instance_group { count: 1 kind: KIND_CPU }")
    (repository / name / "config.pbtxt").write_text("\n".join(lines) + "\n", encoding="utf-8")
