"""Kinds of ``.pt`` and ``.pt2`` files, and reading them without running code from a pickle."""

import os
import re
from typing import Any, Dict, List

import torch

from pybackend_sdk.error import TritonModelException

TORCHSCRIPT, EXPORTED, COMPILED, WEIGHTS = "TorchScript", "torch.export", "AOTInductor", "weights"

_OPAQUE = re.compile(r"(.*/)?constants/opaque", re.DOTALL)
"""Records that ``torch.export.load`` gives to an unrestricted pickle."""

# Some of torch's loaders ask for an unrestricted pickle when a restricted one fails. With this, they get none.
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


def kind_of(path: str) -> str:
    """Tell by a file's contents what wrote it.

    TORCHSCRIPT is ``torch.jit.save``, EXPORTED ``torch.export.save``, COMPILED
    ``torch._inductor.aoti_compile_and_package`` and WEIGHTS ``torch.save``.
    """
    names = _records(path)
    if any(_OPAQUE.match(name) for name in names):
        raise TritonModelException(
            f"{path} has a pickled object among its constants, and a pickle can run code when it is loaded. Export the "
            "model again without objects other than tensors."
        )
    if any(name.startswith("data/aotinductor/") for name in names):
        return COMPILED
    if any(name.startswith("models/") for name in names):
        return EXPORTED
    if "constants.pkl" in names:
        return TORCHSCRIPT
    if "data.pkl" in names:
        return WEIGHTS
    raise TritonModelException(
        f"{path} is a zip archive, but none that torch writes: TorchScript (torch.jit.save), torch.export.save or a state "
        "dict (torch.save)."
    )


def has_examples(path: str) -> bool:
    """Whether a TorchScript archive has the shapes of the inputs that it was traced with."""
    return "traced_inputs.pkl" in _records(path)


def _records(path: str) -> "List[str]":
    try:
        # torch's own reader: another one could see other records in a file that was made to deceive it.
        names: List[str] = torch._C.PyTorchFileReader(path).get_all_records()
    except RuntimeError:
        raise TritonModelException(
            f"{path} is damaged or of another format: torch cannot open this file of {os.path.getsize(path)} bytes as an "
            "archive of torch.jit.save, torch.export.save or torch.save. Copy it or save it again."
        ) from None
    return names


def read_weights(path: str) -> "Dict[str, Any]":
    """Read a state dict. Its tensors are mapped from the file: processes that read the same file share memory."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001  torch raises many types for a bad file
        raise TritonModelException(
            f"{path} cannot be read as a state dict: {beginning_of(error)} Only tensors and plain containers are read, "
            "because a pickle can run code. Save the weights with torch.save(model.state_dict(), ...)."
        ) from None
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise TritonModelException(
            f"{path} has a {type(state).__name__}, not a state dict. Save the weights with "
            "torch.save(model.state_dict(), ...)."
        )
    return state


def beginning_of(error: BaseException, most_characters: int = 300) -> str:
    """The first lines of torch's long messages, as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])[:most_characters] if lines else type(error).__name__
    return text if text.endswith((".", "!")) else text + "."
