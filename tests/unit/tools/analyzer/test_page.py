"""Files of a report are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybackend.errors import ServerError
from pybackend_tools.analyzer.page import write_whole


def test_a_file_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.mkdir()
    with pytest.raises(ServerError, match=f"^cannot write {path}: "):
        write_whole(path, "{}")
    assert list(tmp_path.iterdir()) == [path]
