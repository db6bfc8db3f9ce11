"""Parameters of a PyTorch model, and what those for the whole process do."""

import json
from typing import Any, Callable, ContextManager, Dict, Mapping, NamedTuple, Optional

import torch

from pybackend_sdk.backend import (
    Ignored,
    boolean,
    keep_freed_memory,
    read_parameters,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.error import TritonModelException

PARAMETERS = {
    "INFERENCE_MODE": boolean(),
    "DISABLE_OPTIMIZED_EXECUTION": boolean(),
    "DISABLE_CUDNN": boolean(),
    "ENABLE_WEIGHT_SHARING": boolean(),
    "ENABLE_CACHE_CLEANING": boolean(),
    "INTER_OP_THREAD_COUNT": whole_number(at_least=1),
    "INTRA_OP_THREAD_COUNT": whole_number(at_least=1),
    "NUM_INTEROP_THREADS": whole_number(at_least=1),
    "NUM_THREADS": whole_number(at_least=1),
    "ENABLE_JIT_EXECUTOR": boolean(),
    "ENABLE_JIT_PROFILING": boolean(),
    "ENABLE_TENSOR_FUSER": boolean(),
    "ENABLE_NVFUSER": Ignored("torch has no nvFuser any more"),
    "TORCH_COMPILE": boolean(),
    "TORCH_COMPILE_OPTIONAL_PARAMETERS": text(),
    "MODEL_CLASS": text(),
}
"""Those of Triton's backend in native code and of its Python variant (``NUM_*``, ``TORCH_COMPILE_*``), and our own."""


class ProgramSettings(NamedTuple):
    """The parameters of a model that concern loading and running it.

    ``guard`` is entered around each run. None as ``compile_options`` runs the model without ``torch.compile``.
    """

    guard: Callable[[], ContextManager[Any]]
    share_weights: bool
    cleans_cache: bool
    class_name: str
    compile_options: Optional[Dict[str, Any]]


def read_settings(config: Mapping[str, Any]) -> ProgramSettings:
    """Read the parameters of a model."""
    values = read_parameters(config, PARAMETERS)
    return ProgramSettings(
        torch.inference_mode if values.get("INFERENCE_MODE", True) else torch.no_grad,
        values.get("ENABLE_WEIGHT_SHARING", True),
        values.get("ENABLE_CACHE_CLEANING", False),
        values.get("MODEL_CLASS", ""),
        _compile_options(config["name"], values),
    )


def apply_to_process(config: Mapping[str, Any]) -> None:
    """Set memory, threads, the executor of TorchScript and cuDNN for this process, which serves one instance."""
    keep_freed_memory()
    values = read_parameters(config, PARAMETERS)
    threads = values.get("INTRA_OP_THREAD_COUNT") or values.get("NUM_THREADS") or threads_per_instance(config)
    torch.set_num_threads(threads)
    between = values.get("INTER_OP_THREAD_COUNT") or values.get("NUM_INTEROP_THREADS")
    if between and between != torch.get_num_interop_threads():
        torch.set_num_interop_threads(between)
    if values.get("DISABLE_OPTIMIZED_EXECUTION"):
        torch._C._set_graph_executor_optimize(False)
    for name, switch in _SWITCHES.items():
        if name in values:
            switch(values[name])
    if values.get("DISABLE_CUDNN"):
        torch.backends.cudnn.enabled = False


_SWITCHES: Mapping[str, Callable[[bool], Any]] = {
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}


def _compile_options(model_name: str, values: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
    given = values.get("TORCH_COMPILE_OPTIONAL_PARAMETERS")
    if given is None or values.get("TORCH_COMPILE") is False:
        return {} if values.get("TORCH_COMPILE") else None
    try:
        options = json.loads(given)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise TritonModelException(
            f"model '{model_name}': parameters TORCH_COMPILE_OPTIONAL_PARAMETERS must be a JSON object with arguments of "
            f"torch.compile, it is '{given}'"
        )
    return options


def device_of(kind: str, device_id: str) -> str:
    """The device of an instance of a kind, as torch names it; empty for ``MODEL``, where the model's file decides."""
    if kind != "GPU":
        return "" if kind == "MODEL" else "cpu"
    number = int(device_id)
    if number >= torch.cuda.device_count():
        raise TritonModelException(
            f"the instance is of KIND_GPU, and torch {torch.__version__} sees {torch.cuda.device_count()} GPUs: use KIND_CPU, or a build of torch for this machine's GPU"
        )
    return f"cuda:{number}"
