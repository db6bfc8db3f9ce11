"""What somebody is told before gigabytes are downloaded."""

from __future__ import annotations

import pytest

from pybackend.tools.pack.surprises import Wanted, surprises

CUDA = [
    Wanted("nvidia-cublas-cu12", 400_000_000),
    Wanted("nvidia-cudnn-cu12", 700_000_000),
    Wanted("triton", 150_000_000),
]
NUMPY = Wanted("numpy", 1)


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ([NUMPY], []),
        ([Wanted("torch"), NUMPY], []),
        ([], ["numpy is not among the packages"]),
        (
            [*CUDA, Wanted("torch"), NUMPY],
            [
                "torch brings 3 packages for CUDA (1.2 GB to download). If the models run on the CPU: with UV_TORCH_BACKEND=cpu"
            ],
        ),
        ([*CUDA, Wanted("XGBoost"), NUMPY], ["xgboost brings 3 packages for CUDA"]),
        ([Wanted("nvidia_nccl"), NUMPY], ["a package brings a package for CUDA. If"]),
    ],
    ids=["numpy", "cpu-torch", "nothing", "torch", "xgboost", "unknown"],
)
def test_surprises(packages, expected):
    found = surprises(packages)
    assert len(found) == len(expected)
    assert all(sentence.startswith(start) for sentence, start in zip(found, expected, strict=True))
