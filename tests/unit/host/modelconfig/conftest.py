"""Model directories on disk, as small as a test needs them."""

from collections.abc import Callable
from pathlib import Path

import pytest

MakeModel = Callable[..., Path]

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """``make_model(text, name="m", files=("1/model.py",))`` writes a model directory; no config.pbtxt for None."""

    def make(text: str | None = None, name: str = "m", files: tuple[str, ...] = ("1/model.py",)) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        for file in files:
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        if text is not None:
            (directory / "config.pbtxt").write_text(text)
        return directory

    return make
