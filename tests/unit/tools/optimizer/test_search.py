"""Files that a conversion, which may run strangers' code, says that it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybackend_tools.importing.kinds import LIGHTGBM
from pybackend_tools.optimizer.search import FormError, written

FOREST = b"tree\nversion=v4\nend of trees\n"


def test_files_stay_in_their_directory(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    found = written(tmp_path / "made", [b"../../model.txt", b"model.bin"], [FOREST, b"weights"])
    assert (found.kind, found.source) == (LIGHTGBM, tmp_path / "made" / "model.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize(
    ("names", "contents"),
    [
        ([], []),
        ([b".."], [FOREST]),
        ([b""], [FOREST]),
        ([b"\xff"], [FOREST]),
        ([b"a\0b"], [FOREST]),
        ([b"a"], []),
        ([b"a"], [b"?"]),
    ],
)
def test_what_is_no_model_is_a_form_that_failed(names: list[bytes], contents: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(FormError, match=r"^its conversion has made no model: "):
        written(tmp_path, names, contents)
