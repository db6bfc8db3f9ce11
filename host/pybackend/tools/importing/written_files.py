"""The texts of an entry: configuration, sample request, recorded answer, test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.modelconfig.minimal import minimal_document
from pybackend.modelconfig.parser import format_config_text

_TEST = Path(__file__).resolve().parents[1] / "templates" / "imported" / "test_my_model.py"


def configuration_text(config: Mapping[str, Any]) -> str:
    """The complete configuration of a model as config.pbtxt, without the server's own defaults and without its name.

    The directory's name is the model's name, so the directory can be renamed.
    """
    return format_config_text(minimal_document(config))


def tensors_text(document: Mapping[str, Any]) -> str:
    """A request or an answer of the v2 protocol as JSON, with a line for each tensor."""
    (kind, tensors), *_ = document.items()
    lines = ",\n".join(f"  {json.dumps(tensor, ensure_ascii=False)}" for tensor in tensors)
    return f'{{"{kind}": [\n{lines}\n]}}\n'


def test_text() -> str:
    """The test of an entry. It reads the sample and the answers beside it."""
    return _TEST.read_text(encoding="utf-8")
