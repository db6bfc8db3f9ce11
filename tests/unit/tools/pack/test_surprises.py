"""What somebody is told before gigabytes are downloaded."""

import pytest

from pybackend_tools.pack.surprises import surprises

CUDA = {"nvidia-cublas-cu12": 400_000_000, "nvidia-cudnn-cu12": 700_000_000, "triton": 150_000_000}
NUMPY = {"numpy": 1}


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (NUMPY, []),
        ({"torch": 0} | NUMPY, []),
        ({}, ["numpy is not among the packages"]),
        (
            CUDA | {"torch": 0} | NUMPY,
            [
                "torch brings 3 packages for CUDA (1.2 GB to download). If the models run on the CPU: with UV_TORCH_BACKEND=cpu"
            ],
        ),
        (CUDA | {"XGBoost": 0} | NUMPY, ["xgboost brings 3 packages for CUDA"]),
        ({"nvidia_nccl": 0} | NUMPY, ["a package brings a package for CUDA. If"]),
    ],
    ids=["numpy", "cpu-torch", "nothing", "torch", "xgboost", "unknown"],
)
def test_surprises(packages, expected):
    found = surprises(packages)
    assert len(found) == len(expected)
    assert all(sentence.startswith(start) for sentence, start in zip(found, expected, strict=True))
