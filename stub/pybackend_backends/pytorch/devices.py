"""The device on which an instance computes."""

import torch

from pybackend_sdk.error import TritonModelException


def device_of(kind: str, device_id: str) -> str:
    """The device of an instance of a kind, as torch names it; empty for ``MODEL``, where the model's file decides."""
    if kind != "GPU":
        return "" if kind == "MODEL" else "cpu"
    number = int(device_id)
    if number >= torch.cuda.device_count():
        raise TritonModelException(
            f"the instance is of KIND_GPU with gpus: [ {number} ], and torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} GPUs: use KIND_CPU, or a build of torch for this machine's GPU"
        )
    return f"cuda:{number}"
