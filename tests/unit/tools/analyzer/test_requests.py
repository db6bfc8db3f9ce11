"""Files of requests that are damaged are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ServerError
from pybackend_tools.analyzer.requests import from_file

CONFIG = {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]}


def test_a_damaged_npz_file_is_refused_whatever_the_damage(tmp_path: Path) -> None:
    """Each byte is another one once."""
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, x=np.arange(12, dtype=np.float32).reshape(3, 4))
    whole = path.read_bytes()
    assert len(from_file(path, CONFIG)) == 3
    refused = 0
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 0xFF]) + whole[place + 1 :])
        try:
            from_file(path, CONFIG)
        except ServerError:
            refused += 1
    assert refused > len(whole) / 4


@pytest.mark.parametrize(
    "text",
    [
        '{"data": [{"x": {"content": [1, 2, 3, 4], "shape": "ab"}}]}',
        '{"data": [{"x": {"content": [1, 2, 3, 4], "shape": ["a"]}}]}',
        '[{"id": 1, "model_name": "m"}, {"id": 1, "activity": "TENSOR_QUEUE_INPUT"}]',
        '[{"id": 1, "model_name": "m"}, {"id": 1, "activity": "TENSOR_QUEUE_INPUT", '
        '"tensor": {"name": "x", "data": "1,b,2,3", "shape": "1,4", "dtype": "FP32"}}]',
        "[" * 100_000,
    ],
    ids=["shape of letters", "shape of texts", "no tensor", "no number", "deep"],
)
def test_json_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    path.write_text(text)
    with pytest.raises(ServerError, match=r"requests\.json"):
        from_file(path, CONFIG)
