"""Warnings about an environment's size and contents."""

from collections.abc import Mapping

from pybackend_tools.pack.wheels import normalised

LARGE_BYTES = 2 * 1024**3
"""Environments above this size cause a warning."""

WITHOUT_NUMPY = "numpy is not among the packages: models cannot run in this environment without it"

_FOR_CUDA = ("nvidia-", "cuda-", "triton", "cupy-cuda")
_DRAGGED_IN_BY = ("torch", "tensorflow", "jax", "jaxlib", "onnxruntime-gpu", "xgboost", "vllm")
_CPU_ONLY = {
    "torch": "with UV_TORCH_BACKEND=cpu in the environment, uv installs the wheels without them",
    "tensorflow": "`tensorflow-cpu` is the same without them",
    "xgboost": "`xgboost-cpu` is the same without them",
}


def surprises(packages: Mapping[str, int]) -> list[str]:
    """Sentences about unexpectedly large or missing packages; each has its download size, 0 if unknown."""
    found = []
    wanted = {normalised(name): size_bytes for name, size_bytes in packages.items()}
    for_cuda = {name: size_bytes for name, size_bytes in wanted.items() if name.startswith(_FOR_CUDA)}
    if any(name.startswith("nvidia-") for name in for_cuda):
        culprit = next((name for name in _DRAGGED_IN_BY if name in wanted), None)
        size = sum(for_cuda.values())
        amount = f" ({gigabytes(size)} to download)" if size else ""
        advice = _CPU_ONLY.get(culprit or "", "there may be a variant without them")
        count = "a package" if len(for_cuda) == 1 else f"{len(for_cuda)} packages"
        found.append(
            f"{culprit or 'a package'} brings {count} for CUDA{amount}. If the models run on the CPU: {advice}"
        )
    if "numpy" not in wanted:
        found.append(WITHOUT_NUMPY)
    return found


def gigabytes(size_bytes: int) -> str:
    """A size in human-readable form."""
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    if size_bytes >= 1e5:
        return f"{size_bytes / 1e6:.1f} MB"
    return f"{max(1, round(size_bytes / 1e3))} kB"
