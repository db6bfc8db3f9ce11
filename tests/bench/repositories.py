"""The models that are measured, written as a model repository that every server under test loads unchanged."""

from collections.abc import Mapping, Sequence
from pathlib import Path

ADD_SUB = "add_sub"
IDENTITY = "identity"
BLS_ADD_SUB = "bls_add_sub"
BLS_GATHER = "bls_gather"
STREAM = "stream"
STREAM_COUNT = "stream_count"
STRINGS = "reversed_strings"
BATCHED = "add_sub_batched"
MULTIPLY = "multiply"
ADD_SUB_MULTIPLY = "add_sub_multiply"
IDENTITY_CHAIN = "identity_chain"
LARGE_CALLS = "large_calls"
IDENTITY_VIEW = "identity_view"
FIRST_ELEMENT = "first_element"
MIXED = "mixed"
MIXED_STRINGS = "mixed_strings"
MIXED_SEQUENCES = "mixed_sequences"

GATHERED_CALLS = 4
STREAMED_ELEMENTS = 256
CHAINED_STEPS = 3
MAX_BATCH_SIZE = 64
QUEUE_DELAY_US = 500

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

_MIXED_CODE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            outputs = [pb_utils.Tensor(name, data) for name in request.requested_output_names()]
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

_FIRST_ELEMENT_CODE = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            data = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUTPUT0", data[:1].copy())]))
        return responses
"""

_VIEW = 'parameters { key: "CLIENT_MEMORY" value: { string_value: "view" } }'

_BLS_CODE = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="{ADD_SUB}",
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=request.inputs(),
            )
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            responses.append(pb_utils.InferenceResponse(output_tensors=answer.output_tensors()))
        return responses
"""

_GATHER_CODE = f"""\
import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            calls = [
                pb_utils.InferenceRequest(
                    model_name="{ADD_SUB}",
                    requested_output_names=["OUTPUT0", "OUTPUT1"],
                    inputs=request.inputs(),
                )
                for _ in range({GATHERED_CALLS})
            ]
            answers = await asyncio.gather(*(call.async_exec() for call in calls))
            for answer in answers:
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
            responses.append(pb_utils.InferenceResponse(output_tensors=answers[0].output_tensors()))
        return responses
"""

_MULTIPLY_CODE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", np.multiply(left, right))]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

# Response number n holds nothing but the number n.
_STREAM_CODE = f"""\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
            for number in range(count):
                tensor = pb_utils.Tensor("OUTPUT0", np.full({STREAMED_ELEMENTS}, number, np.float32))
                sender.send(pb_utils.InferenceResponse(output_tensors=[tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

_STREAM_COUNT_CODE = f"""\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="{STREAM}",
                requested_output_names=["OUTPUT0"],
                inputs=request.inputs(),
            )
            count = total = 0
            for answer in call.exec(decoupled=True):
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                tensors = answer.output_tensors()
                if tensors:
                    count += 1
                    total += int(tensors[0].as_numpy()[-1])
            outputs = [pb_utils.Tensor("OUTPUT0", np.array([count, total], np.float32))]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

# The other order makes sure that the strings were taken apart and put together again.
_STRINGS_CODE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            strings = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            reversed_strings = np.array(strings[::-1], dtype=np.object_)
            outputs = [pb_utils.Tensor("OUTPUT0", reversed_strings)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

# INPUT0 says how many calls, and how many elements each carries there and back.
_LARGE_CALLS_CODE = f"""\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            calls, elements = map(int, pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            right = 0
            for number in range(calls):
                data = np.full(elements, number, np.float32)
                call = pb_utils.InferenceRequest(
                    model_name="{IDENTITY}",
                    requested_output_names=["OUTPUT0"],
                    inputs=[pb_utils.Tensor("INPUT0", data)],
                )
                answer = call.exec()
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
                echoed = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0").as_numpy()
                right += echoed.size == elements and echoed[0] == echoed[-1] == number
            outputs = [pb_utils.Tensor("OUTPUT0", np.array([right], np.float32))]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""

_FP32 = "TYPE_FP32"
_SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"

_Step = tuple[str, Mapping[str, str], Mapping[str, str]]
"""Of an ensemble: a model, and the tensors of the ensemble by the names of its inputs and of its outputs."""


def write_pair(repository: Path) -> None:
    """One add_sub and one identity: what the load is put on."""
    write_add_sub(repository, [ADD_SUB])
    _write_identity(repository)


def write_mixed(repository: Path) -> None:
    """Models with an optional input, two outputs and batches: of numbers, of strings, and of sequences."""
    tensors = {"INPUT0": 4, "INPUT1": 4}, {"OUTPUT0": 4, "OUTPUT1": 4}
    kinds = ((MIXED, _FP32, ()), (MIXED_STRINGS, "TYPE_STRING", ()), (MIXED_SEQUENCES, _FP32, (_SEQUENCES,)))
    for name, datatype, settings in kinds:
        _write(repository, name, _MIXED_CODE, *tensors, datatype=datatype, max_batch_size=16, settings=settings)
        config = repository / name / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace('"INPUT1"', '"INPUT1" optional: true'), encoding="utf-8")


def write_client_memory(repository: Path) -> None:
    """Identity twice, and a model that reads a single element; one identity and that model view their clients' memory.

    A server that does not know the parameter takes it for one of the model's.
    """
    _write_identity(repository)
    _write(repository, IDENTITY_VIEW, _IDENTITY_CODE, {"INPUT0": -1}, {"OUTPUT0": -1}, settings=[_VIEW])
    _write(repository, FIRST_ELEMENT, _FIRST_ELEMENT_CODE, {"INPUT0": -1}, {"OUTPUT0": 1}, settings=[_VIEW])


def write_copies(repository: Path, copies: int) -> list[str]:
    """So many models, all of them add_sub; returns their names."""
    names = [f"{ADD_SUB}_{number:03d}" for number in range(copies)]
    write_add_sub(repository, names)
    return names


def write_add_sub(
    repository: Path, names: list[str], parameters: Mapping[str, str] | None = None, instances: int = 1
) -> None:
    """The sum and the difference of two FP32 tensors of four elements, unbatched."""
    settings = [
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in (parameters or {}).items()
    ]
    write_pairwise(repository, dict.fromkeys(names, _ADD_SUB_CODE), settings)
    for name in names if instances > 1 else ():
        config = repository / name / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace("count: 1", f"count: {instances}"), encoding="utf-8")


def write_calls(repository: Path) -> None:
    """add_sub, and two models that answer the same by calling it: once, and several times at the same moment."""
    write_pairwise(repository, {ADD_SUB: _ADD_SUB_CODE, BLS_ADD_SUB: _BLS_CODE, BLS_GATHER: _GATHER_CODE})


def write_stream(repository: Path) -> None:
    """A decoupled model that sends as many responses as it is asked for, and one that calls it and counts them."""
    _write(repository, STREAM, _STREAM_CODE, {"INPUT0": 1}, {"OUTPUT0": STREAMED_ELEMENTS}, decoupled=True)
    _write(repository, STREAM_COUNT, _STREAM_COUNT_CODE, {"INPUT0": 1}, {"OUTPUT0": 2})


def write_strings(repository: Path) -> None:
    """A model that turns the order of a BYTES tensor's elements round."""
    _write(repository, STRINGS, _STRINGS_CODE, {"INPUT0": -1}, {"OUTPUT0": -1}, datatype="TYPE_STRING")


def write_large_calls(repository: Path) -> None:
    """identity, and a model that calls it with large tensors, one after another."""
    _write_identity(repository)
    _write(repository, LARGE_CALLS, _LARGE_CALLS_CODE, {"INPUT0": 2}, {"OUTPUT0": 1})


def write_batched(repository: Path) -> None:
    """add_sub behind a dynamic batcher that may keep a request waiting for company."""
    inputs, outputs = {"INPUT0": 4, "INPUT1": 4}, {"OUTPUT0": 4, "OUTPUT1": 4}
    _write(
        repository,
        BATCHED,
        _ADD_SUB_CODE,
        inputs,
        outputs,
        max_batch_size=MAX_BATCH_SIZE,
        settings=[f"dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_DELAY_US} }}"],
    )


def write_ensemble(repository: Path) -> None:
    """add_sub, a model that multiplies, and the ensemble in which the second gets what comes out of the first."""
    write_add_sub(repository, [ADD_SUB])
    _write(repository, MULTIPLY, _MULTIPLY_CODE, {"INPUT0": 4, "INPUT1": 4}, {"OUTPUT0": 4})
    pair = {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}
    steps = [
        (ADD_SUB, pair, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
        (MULTIPLY, {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0"}),
    ]
    _write_ensemble(repository, ADD_SUB_MULTIPLY, dict.fromkeys(pair, 4), {"OUTPUT0": 4}, steps)


def write_chain(repository: Path) -> None:
    """identity, and the ensemble that sends one tensor through as many models of that kind, each in its own process."""
    _write_identity(repository)
    steps = []
    for number in range(CHAINED_STEPS):
        name = f"{IDENTITY}_{number}"
        _write(repository, name, _IDENTITY_CODE, {"INPUT0": -1}, {"OUTPUT0": -1})
        before = f"after_{number - 1}" if number else "INPUT0"
        after = f"after_{number}" if number < CHAINED_STEPS - 1 else "OUTPUT0"
        steps.append((name, {"INPUT0": before}, {"OUTPUT0": after}))
    _write_ensemble(repository, IDENTITY_CHAIN, {"INPUT0": -1}, {"OUTPUT0": -1}, steps)


def _write_identity(repository: Path) -> None:
    _write(repository, IDENTITY, _IDENTITY_CODE, {"INPUT0": -1}, {"OUTPUT0": -1})


def write_pairwise(repository: Path, code_of: Mapping[str, str], settings: Sequence[str] = ()) -> None:
    """Models of two FP32 tensors of four elements each way, with their code by name."""
    inputs, outputs = {"INPUT0": 4, "INPUT1": 4}, {"OUTPUT0": 4, "OUTPUT1": 4}
    for name, code in code_of.items():
        _write(repository, name, code, inputs, outputs, settings=settings)


def _write(
    repository: Path,
    name: str,
    code: str,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    datatype: str = _FP32,
    decoupled: bool = False,
    max_batch_size: int = 0,
    settings: Sequence[str] = (),
) -> None:
    """Write one model of one-dimensional tensors, given by name and size; -1 is any size. It may be there already."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(code, encoding="utf-8")
    lines = ['backend: "python"', f"max_batch_size: {max_batch_size}", *_signature(inputs, outputs, datatype)]
    if decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    lines.append("instance_group { count: 1 kind: KIND_CPU }")
    _write_config(repository / name, [*lines, *settings])


def _write_ensemble(
    repository: Path, name: str, inputs: Mapping[str, int], outputs: Mapping[str, int], steps: Sequence[_Step]
) -> None:
    (repository / name / "1").mkdir(parents=True)
    lines = ['platform: "ensemble"', "max_batch_size: 0", *_signature(inputs, outputs, _FP32)]
    lines.append("ensemble_scheduling {")
    for model, input_map, output_map in steps:
        maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in input_map.items()]
        maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in output_map.items()]
        lines.append(f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}')
    _write_config(repository / name, [*lines, "}"])


def _signature(inputs: Mapping[str, int], outputs: Mapping[str, int], datatype: str) -> list[str]:
    return [
        f'{kind} {{ name: "{tensor}" data_type: {datatype} dims: [ {dims} ] }}'
        for kind, tensors in (("input", inputs), ("output", outputs))
        for tensor, dims in tensors.items()
    ]


def _write_config(model: Path, lines: Sequence[str]) -> None:
    (model / "config.pbtxt").write_text("\n".join(lines) + "\n", encoding="utf-8")
