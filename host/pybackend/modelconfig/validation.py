"""Rules that span the fields of a configuration, and what this release does not support.

Every error names the mistake, the field and the file. Settings without effect are warnings.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.known_backends import PYTHON, known_backend
from pybackend.modelconfig.schema import InstanceGroup, InstanceKind, ModelConfig, Scheduling, TensorConfig
from pybackend.modelconfig.sequences import sequence_faults
from pybackend.modelconfig.text_form import REPLACEMENT
from pybackend.spelling import closest
from pybackend_wire.model_options import OPTION_NAMES

_VARIABLE = -1
_BATCH_INPUT_TYPES = ("TYPE_INT32", "TYPE_FP32")
_YES_OR_NO = ("yes", "no")


def validate_model_file(config: ModelConfig) -> None:
    """Check everything that must hold before the model's code runs: its file name and the backend's own parameters.

    Raises ModelConfigError: UNSUPPORTED for a parameter's value, else INVALID_ARG.
    """
    if config.backend == PYTHON:  # the file of any other backend is part of the backend
        _validate_filename(config)
    force_cpu = config.parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes")
    if force_cpu not in _YES_OR_NO:
        text = f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {force_cpu}'"
        raise _wrong(config, text, 'It is "yes" or "no".', ErrorCode.UNSUPPORTED)
    for name in ("INPUT_COPY", "VALIDATE_OUTPUTS"):
        value = config.parameters.get(name, "no")
        if value not in _YES_OR_NO:
            text = f"Incorrect value for {name}: '{value}'."
            raise _wrong(config, text, 'It is "yes" or "no".', ErrorCode.UNSUPPORTED)


def _validate_filename(config: ModelConfig) -> None:
    filename = config.default_model_filename
    if not filename.endswith(".py"):
        raise _wrong(
            config,
            f"Model name must end with '.py'. Model name is \"{filename}\".",
            'See default_model_filename: write "model.py".',
        )
    # One level up is the model's directory, which may hold a file shared by versions.
    if os.path.isabs(filename) or os.path.normpath(os.path.join("version", filename)).startswith(".."):
        raise _wrong(config, f"'default_model_filename' \"{filename}\" of {config.name} leaves the model's directory")


def validate(config: ModelConfig, gpu_count: int, gpus: str = "") -> None:
    """Check a completed and normalised configuration; ``gpus`` is a sentence about the GPUs of this machine."""
    validate_interface(config)
    for batch_input in config.document["batch_input"]:
        _validate_batch_input(config, batch_input)
    if "dynamic_batching" in config.document:
        _validate_dynamic_batching(config, config.document["dynamic_batching"])
    if "sequence_batching" in config.document:
        for text, advice in sequence_faults(config):
            raise _wrong(config, text, advice)
    validate_cache(config, [config])
    validate_instances(config, gpu_count, gpus)
    for control in config.document.get("model_metrics", {}).get("metric_control", ()):
        _validate_metric_control(config, control)


def validate_instances(config: ModelConfig, gpu_count: int, gpus: str) -> None:
    """Check the instance groups, which no model completes; ``gpus`` is for :func:`validate`."""
    for group in config.instance_groups:
        _validate_instance_group(config, group, gpu_count, gpus)
    if all(group.passive for group in config.instance_groups):
        raise _wrong(
            config, f"all instance groups of model {config.name} are passive", "No instance could take a request."
        )


def validate_interface(config: ModelConfig) -> None:
    """Check the part of a configuration that requests are checked against: batch size, inputs, outputs."""
    if config.max_batch_size < 0:
        text = f"'max_batch_size' must be non-negative value for {config.name}"
        raise _wrong(config, text, f"It is {config.max_batch_size}: write 0 for a model that gets no batches.")
    _validate_tensors(config, "input", config.inputs)
    _validate_tensors(config, "output", config.outputs)


def _wrong(
    config: ModelConfig, text: str, advice: str = "", code: ErrorCode = ErrorCode.INVALID_ARG
) -> ModelConfigError:
    """``text`` first, word for word as in the reference, then the advice."""
    separator = "" if not advice else " " if text.endswith(".") else ". "
    return ModelConfigError(f"{text}{separator}{advice} ({config.source})", code)


# --- tensors --------------------------------------------------------------------------------------------------------


def _validate_tensors(config: ModelConfig, field: str, tensors: Sequence[TensorConfig]) -> None:
    if not tensors:
        return
    for tensor, document in zip(tensors, config.document[field], strict=True):
        for text in _tensor_faults(tensor, document, field, config.max_batch_size):
            advice = f"See {field} '{tensor.name}', dims {list(tensor.dims)}.{_tensor_advice(tensor)}"
            raise _wrong(config, f"{text} for {config.name}", advice)
    name, uses = Counter(tensor.name for tensor in tensors).most_common(1)[0]
    if uses > 1:
        raise _wrong(
            config,
            f"model {field} '{name}' is specified {uses} times for {config.name}",
            "Requests and responses tell tensors apart by name: use unique names.",
        )


def _tensor_advice(tensor: TensorConfig) -> str:
    if not tensor.datatype:
        return " Write data_type: TYPE_FP32, or another type."
    if not tensor.dims or not _are_dimensions(tensor.dims):
        return " Write dims: [ -1, 4 ], for example: -1 is a dimension of any size."
    return ""


def _tensor_faults(tensor: TensorConfig, document: Mapping[str, Any], field: str, max_batch_size: int) -> Iterator[str]:
    if not tensor.name:
        yield f"model {field} must specify 'name'"
    subject = f"model {field} '{tensor.name}'"
    if not tensor.datatype:
        yield f"{subject} must specify 'data_type'"
    if not tensor.dims:
        yield f"{subject} must specify 'dims'"
    if tensor.reshape == () and max_batch_size == 0:
        yield f"{subject} cannot have empty reshape for non-batching model as scalar tensors are not supported"
    if not _are_dimensions(tensor.dims):
        yield f"{subject} dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    if tensor.reshape is not None:
        yield from _reshape_faults(subject, tensor.dims, tensor.reshape)
    if document.get("format", "FORMAT_NONE") != "FORMAT_NONE" and len(tensor.dims) != 3:
        yield f"model {field} NHWC/NCHW require 3 dims"
    for flag in ("is_shape_tensor", "is_non_linear_format_io"):
        if document.get(flag, False):
            yield f"{subject} must not set the TensorRT flag '{flag}'"


def _are_dimensions(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == _VARIABLE for dim in dims)


def _reshape_faults(subject: str, dims: Sequence[int], reshape: Sequence[int]) -> Iterator[str]:
    if not _are_dimensions(reshape):
        yield f"{subject} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    sizes, reshaped_sizes = _sizes_between_variables(dims), _sizes_between_variables(reshape)
    if len(sizes) != len(reshaped_sizes):
        yield f"{subject} has different number of variable-size dimensions for dims and reshape"
    if sizes != reshaped_sizes:
        yield f"{subject} has different size for dims and reshape"


def _sizes_between_variables(dims: Sequence[int]) -> list[int]:
    """Element counts of the runs of fixed dimensions. Variable ones keep their place, so runs must match in pairs."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == _VARIABLE:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]


def _validate_batch_input(config: ModelConfig, batch_input: Mapping[str, Any]) -> None:
    if batch_input["data_type"] not in _BATCH_INPUT_TYPES:
        raise _wrong(config, f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {config.name}")
    if len(batch_input["source_input"]) != 1:
        raise _wrong(
            config,
            f"batch input must have exactly one 'source_input' for {config.name}",
            f"It has {len(batch_input['source_input'])}.",
        )


# --- scheduling -----------------------------------------------------------------------------------------------------


def _validate_dynamic_batching(config: ModelConfig, batching: Mapping[str, Any]) -> None:
    for text in _dynamic_batching_faults(batching, config.max_batch_size):
        advice = f"See dynamic_batching; max_batch_size is {config.max_batch_size}."
        if "<= max batch size" in text:
            advice += " Lower preferred_batch_size, or raise max_batch_size."
        raise _wrong(config, f"{text} for {config.name}", advice)


def _dynamic_batching_faults(batching: Mapping[str, Any], max_batch_size: int) -> Iterator[str]:
    for size in batching["preferred_batch_size"]:
        if size <= 0:
            yield "dynamic batching preferred size must be positive"
        if size > max_batch_size:
            yield "dynamic batching preferred size must be <= max batch size"
    levels = batching["priority_levels"]
    if levels and not 1 <= batching["default_priority_level"] <= levels:
        yield f"default priority level must be in range [1, {levels}]"
    policies = batching["priority_queue_policy"]
    if not all(1 <= int(level) <= levels for level in policies):
        yield f"priority queue policy must have priority level in range [1, {levels}]"
    if batching["preserve_ordering"]:
        if levels > 1:
            yield "Only one priority level is allowed when 'preserve_ordering' is true"
        for policy in (batching.get("default_queue_policy", {}), *policies.values()):
            if policy.get("timeout_action") == "DELAY":
                yield "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"


def validate_cache(config: ModelConfig, runs_in: Iterable[ModelConfig]) -> None:
    """Refuse a response cache for a model that runs one, perhaps itself or in a nested ensemble, that cannot have it."""
    for part in runs_in if config.response_cache_enabled else ():
        if part.scheduling is Scheduling.SEQUENCE_BATCHING:
            reason = "sequence batching scheduler"
        elif part.decoupled:
            reason = "'decoupled' transaction policy"
        else:
            continue
        raise _wrong(
            config,
            f"Response Cache does not currently support model {config.name} with {reason}. Please disable the response "
            "cache.",
            "" if part is config else f"Its part '{part.name}' is such a model",
        )


_TO_CPU = "Set kind: KIND_CPU, or start the server with --gpu-models=cpu."


def _validate_instance_group(config: ModelConfig, group: InstanceGroup, gpu_count: int, gpus: str) -> None:
    subject = f"instance group {group.name} of model {config.name}"
    if group.kind is InstanceKind.GPU:
        if gpu_count == 0:
            text = f"{subject} has kind {group.kind} but server does not support GPUs"
            raise _wrong(config, text, f"{gpus} {_TO_CPU}".strip())
        if not known_backend(config.backend).on_gpu:
            text = f"{subject} has kind {group.kind} but backend '{config.backend}' computes on the CPU alone"
            raise _wrong(config, text, _TO_CPU)
        for gpu in group.gpus:
            if not 0 <= gpu < gpu_count:
                raise _wrong(
                    config,
                    f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                    f"CUDA compute compatibility of 6.000000 are: {', '.join(map(str, range(gpu_count)))}",
                    gpus,
                )
    elif group.gpus:
        raise _wrong(config, f"{subject} has kind {group.kind} but specifies one or more GPUs", "Remove 'gpus'.")
    if group.count < 1:
        raise _wrong(config, f"{subject} has count {group.count}", "It must be at least 1.")


def _validate_metric_control(config: ModelConfig, control: Mapping[str, Any]) -> None:
    if "metric_identifier" not in control:
        raise _wrong(config, "metric control must specify 'metric_identifier'", "See model_metrics.")
    if not control["metric_identifier"]["family"]:
        raise _wrong(config, "metric identifier must specify non-empty 'family'", "See model_metrics.")
    if "histogram_options" not in control:
        raise _wrong(config, "metric control must specify 'histogram_options'", "See model_metrics.")
    if not control["histogram_options"]["buckets"]:
        raise _wrong(config, "histogram options must specify non-empty 'buckets'", "See model_metrics.")


CHECKSUM = "checksum"
"""The repository agent that compares files with digests."""

_QUEUEING = {"priority_levels", "default_queue_policy", "priority_queue_policy", "preserve_ordering"}
"""Parts of ``dynamic_batching`` that concern the queue, which single requests have too."""

_PARAMETER_SIMILARITY = 0.85
"""Models may have parameters of any name: only slips of the pen are worth a warning."""


def refuse_unserved(config: ModelConfig) -> None:
    """Refuse a model that would fail or give wrong answers without an unsupported feature.

    Raises ModelConfigError: UNSUPPORTED; names the field and the way out.
    """
    for field, advice in _refused(config):
        raise ModelConfigError(
            f"model '{config.name}' asks for {field}, which this release does not support: {advice} ({config.source})",
            ErrorCode.UNSUPPORTED,
        )


def unserved_warnings(config: ModelConfig) -> tuple[str, ...]:
    """One sentence for each part of ``config`` that has no effect, and for each kind of tensor that it leaves out."""
    return tuple(f"model '{config.name}': {text} ({config.source})" for text in _ignored(config))


def _refused(config: ModelConfig) -> list[tuple[str, str]]:
    agents = config.document.get("model_repository_agents", {}).get("agents", ())
    others = dict.fromkeys(agent["name"] for agent in agents if agent["name"] != CHECKSUM)
    return [(f"the repository agent '{name}'", f"the only agent is '{CHECKSUM}'") for name in others]


def _ignored(config: ModelConfig) -> list[str]:
    ignored = []
    batching = config.document.get("dynamic_batching")
    if batching is not None and config.max_batch_size == 0 and not any(batching.get(field) for field in _QUEUEING):
        ignored.append(
            "dynamic_batching has no effect, because max_batch_size is 0: write max_batch_size: 8 (every input and output "
            "then has a batch dimension in front of its dims), or remove dynamic_batching"
        )
    for key in config.parameters:
        near = closest(key, OPTION_NAMES, _PARAMETER_SIMILARITY)
        if near and near != key:
            ignored.append(
                f"parameters {key} is no option of this server and reaches the model only: did you mean {near}?"
            )
    if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
        ignored.append("parameters TRITON_BATCH_STRATEGY_PATH names a custom batching library, which is not loaded")
    if REPLACEMENT in str(config.document):
        ignored.append(
            f"a text of it has bytes that are not UTF-8, which are read as {REPLACEMENT}: save the file as UTF-8"
        )
    ignored += [
        f"it has no {field}s. If that is a mistake, add an {field} block to config.pbtxt, or add_{field}() in the "
        "model's auto_complete_config"
        for field, tensors in (("input", config.inputs), ("output", config.outputs))
        if not tensors
    ]
    return ignored
