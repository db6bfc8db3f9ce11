"""Flags of Triton's server that are accepted and have no effect, so that a command line need not change."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pybackend.cli.flag_values import boolean, integer


class _UnusedFlag(NamedTuple):
    parse: Any
    metavar: str
    reason: str


_POOL = re.compile(r"\d+:\d+")
_COUNT, _BYTES, _NUMBER = (integer(least) for least in (0, 0, 1))
_LOOP = "one event loop serves all connections"
_GPU_MEMORY = "tensors lie in the host's memory"


def _pool(text: str) -> str:
    """Read ``<device>:<bytes>``.

    Raises:
        ArgumentTypeError: the form is wrong.
    """
    if not _POOL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"option format is '<device id>:<bytes>'. Got {text}. For example: 0:67108864")
    return text


def _device_limit(text: str) -> str:
    """Read ``<device>:<fraction>``.

    Raises:
        ArgumentTypeError: the form is wrong.
    """
    device, colon, fraction = text.partition(":")
    try:
        fits = bool(colon) and device.isdecimal() and 0 <= float(fraction) <= 1
    except ValueError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(f"option format is '<device id>:<fraction>'. Got {text}. For example: 0:0.8")
    return text


_FLAGS: dict[str, _UnusedFlag] = {
    "--http-thread-count": _UnusedFlag(_NUMBER, "N", _LOOP),
    "--grpc-infer-thread-count": _UnusedFlag(integer(2, 128), "N", _LOOP),
    "--sagemaker-thread-count": _UnusedFlag(_NUMBER, "N", _LOOP),
    "--vertex-ai-thread-count": _UnusedFlag(_NUMBER, "N", _LOOP),
    "--grpc-infer-allocation-pool-size": _UnusedFlag(_COUNT, "N", "messages are not pooled"),
    "--grpc-max-response-pool-size": _UnusedFlag(_NUMBER, "N", "messages are not pooled"),
    "--buffer-manager-thread-count": _UnusedFlag(_COUNT, "N", "there are no copies between devices"),
    "--pinned-memory-pool-byte-size": _UnusedFlag(_BYTES, "BYTES", _GPU_MEMORY),
    "--cuda-memory-pool-byte-size": _UnusedFlag(_pool, "DEVICE:BYTES", _GPU_MEMORY),
    "--cuda-virtual-address-size": _UnusedFlag(_pool, "DEVICE:BYTES", _GPU_MEMORY),
    "--min-supported-compute-capability": _UnusedFlag(float, "VERSION", "models choose their GPUs themselves"),
    "--model-load-gpu-limit": _UnusedFlag(_device_limit, "DEVICE:FRACTION", "models choose their GPUs themselves"),
    "--enable-peer-access": _UnusedFlag(boolean, "BOOL", _GPU_MEMORY),
    "--cache-directory": _UnusedFlag(str, "DIR", "the caches `local` and `redis` are built in"),
    "--repoagent-directory": _UnusedFlag(str, "DIR", "agents in compiled libraries are not loaded"),
}


def _destination(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def add_unused_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = serve.add_argument_group("accepted and without effect, because Triton's server has them")
    for flag, (parse, metavar, reason) in _FLAGS.items():
        group.add_argument(flag, type=parse, metavar=metavar, help=reason)


def unused_warnings(given: argparse.Namespace) -> Sequence[str]:
    """One sentence about all flags that were given without effect; none if there are none."""
    found = [f"{flag} ({row.reason})" for flag, row in _FLAGS.items() if getattr(given, _destination(flag)) is not None]
    if not found:
        return ()
    return (f"without effect in this server, and safe to leave out: {', '.join(found)}",)
