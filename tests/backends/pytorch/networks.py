"""Small networks with random weights, and the files that torch makes of them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch


class Scores(torch.nn.Module):
    """Four features to three scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).softmax(1)


class Two(torch.nn.Module):
    """Two tensors to two tensors."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left - right, (left > right)


class Mapping(torch.nn.Module):
    """A dictionary to a dictionary."""

    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": tensors["a"] + tensors["b"], "product": tensors["a"] * tensors["b"]}


class Shout(torch.nn.Module):
    """Strings to strings."""

    def forward(self, texts: list[str]) -> list[str]:
        return [text + "!" for text in texts]


class Everything(torch.nn.Module):
    """Tensors of all types, doubled or inverted; FP16 and BF16 keep their types."""

    def forward(self, flag, byte, short, whole, long, half, brain, single, double):  # type: ignore[no-untyped-def]
        return ~flag, byte + byte, short * 2, whole * 2, long * 2, half * 2, brain * 2, single * 2, double * 2


class Branches(torch.nn.Module):
    """Two arguments to a dictionary, for torch.export."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(x) + shift
        return {"scores": scores, "best": scores.argmax(1)}


CLASS = """
import ctypes
import os

import torch


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, x, bias=None):
        fault = float(x.flatten()[0]) if x.numel() else 0
        if fault == 12345.0:
            os.abort()
        if fault == 23456.0:
            ctypes.string_at(0)
        if fault == 34567.0:
            return torch.empty(1 << 33, dtype=torch.uint8)
        scores = self.head(x)
        return scores if bias is None else scores + bias
"""
"""A model file with two modules, of which the second is the model; its state dict comes from :func:`class_weights`."""


def save_script(module: torch.nn.Module, path: Path) -> Any:
    """Script a module, save it, and return what torch reads back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module.eval()).save(str(path))
        return torch.jit.load(str(path))


def save_trace(module: torch.nn.Module, path: Path, *examples: torch.Tensor) -> Any:
    """Trace a module, save it, and return what torch reads back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(module.eval(), examples).save(str(path))
        return torch.jit.load(str(path))


def save_export(module: torch.nn.Module, path: Path, *, most_rows: int = 64) -> Any:
    """Export :class:`Branches` with rows of any number, and return it."""
    rows = torch.export.Dim("rows", min=1, max=most_rows)
    exported = torch.export.export(
        module.eval(),
        (torch.randn(2, 4),),
        {"shift": torch.randn(2, 3)},
        dynamic_shapes={"x": {0: rows}, "shift": {0: rows}},
    )
    torch.export.save(exported, path)
    return exported.module()


def class_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {"head.layer.weight": torch.randn(3, 4), "head.layer.bias": torch.randn(3)}


class Attack:
    """Runs code when it is unpickled: makes a directory."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = str(evidence)

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.evidence,))
