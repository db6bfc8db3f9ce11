"""Tests models without a server: :class:`ModelHarness` runs a ``model.py`` in this process.

    with ModelHarness("models/add_sub") as harness:
        result = harness.infer(INPUT0=np.ones(4, np.float32), INPUT1=np.ones(4, np.float32))
        assert result["OUTPUT0"].tolist() == [2, 2, 2, 2]

:class:`EnsembleHarness` runs an ensemble with its models. pytest finds the fixture ``model_harness`` by itself.
``python -m pybackend_testing MODEL_DIR`` runs a model once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from pybackend_testing.errors import (
        ConfigError,
        FinalizeError,
        HarnessError,
        InferenceFailed,
        InputError,
        LoadError,
        ModelDirectoryError,
        NoResponse,
        OutputError,
    )
    from pybackend_testing.harness import EnsembleHarness, ModelHarness, Readiness
    from pybackend_testing.logs import LogLine
    from pybackend_testing.metrics import MetricRegistry
    from pybackend_testing.request import Request
    from pybackend_testing.result import OutputWarning, Result, Stream

__all__ = [
    "ConfigError",
    "EnsembleHarness",
    "FinalizeError",
    "HarnessError",
    "InferenceFailed",
    "InputError",
    "LoadError",
    "LogLine",
    "MetricRegistry",
    "ModelDirectoryError",
    "ModelHarness",
    "NoResponse",
    "OutputError",
    "OutputWarning",
    "Readiness",
    "Request",
    "Result",
    "Stream",
]


def __getattr__(name: str) -> Any:
    # Late, because pytest imports this package in every test run wherever it is installed.
    if name in __all__:
        for home in ("errors", "harness", "result"):
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
