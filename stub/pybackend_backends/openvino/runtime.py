"""OpenVINO itself, and its errors in one sentence."""

from typing import Any

from pybackend_sdk.backend import memory_advice, require

BACKEND = EXTRA = "openvino"


def runtime() -> Any:
    """The module ``openvino``.

    Raises:
        TritonModelException: it is not installed.
    """
    return require("openvino", backend=BACKEND, extra=EXTRA)


def version(ov: Any) -> str:
    """Its version without the number of the build, e.g. ``2026.4.1``."""
    return str(ov.__version__).partition("-")[0]


def reason(error: Exception) -> str:
    """The library's message without its source files, and the way out if the process has no memory left."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from ", "Check '", "While validating "))]
    text = " ".join(" ".join(told or lines).split())
    advice = memory_advice(error)
    return f"{text}. {advice}" if advice else text
