"""What a directory with a model's file is recognised as."""

from __future__ import annotations

import pytest

from pybackend.errors import ServerError
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.kinds import LIGHTGBM

FOREST = b"tree\nversion=v4\nend of trees\n"


def test_the_name_of_a_directory_says_nothing_about_its_files(tmp_path):
    """Files beside the model may be anything; only a model's own damaged file is a reason to stop."""
    directory = tmp_path / "truncated"
    directory.mkdir()
    (directory / "LICENSE").write_text("anybody may use it")
    (directory / "model.txt").write_bytes(FOREST)
    assert detect(directory).kind is LIGHTGBM
    (directory / "other.txt").write_bytes(FOREST[:15])
    with pytest.raises(ServerError, match=r"other.txt is a truncated LightGBM model"):
        detect(directory)
