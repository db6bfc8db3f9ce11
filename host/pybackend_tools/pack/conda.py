"""Solves the conda part of an environment.yml and installs it into a directory."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend_tools.pack.errors import (
    ConflictError,
    PackError,
    SpecificationError,
    UnreachableError,
    UnsolvableError,
    told_output_error,
)
from pybackend_tools.pack.options import Advance, PackedSize

SOLVE_TIMEOUT_S = 600

_MSGPACK = "msgpack-python"
"""Name of msgpack in conda channels."""


@dataclass(frozen=True)
class CondaOrder:
    """A request to solve and install packages."""

    channels: Sequence[str]  # in order of priority
    specs: Sequence[str]
    msgpack: bool = True  # include msgpack if a channel has it
    # exact packages to install, as ``records`` of an earlier result; None to solve
    locked: Sequence[Mapping[str, Any]] | None = None
    prefix: Path | None = None  # the directory to install into, None to only solve


def carry_out(order: CondaOrder, advance: Advance) -> list[dict[str, Any]]:
    """Solve and install; returns the chosen packages, as described by conda's index."""
    text = json.dumps(
        {
            "channels": list(order.channels),
            "specs": list(order.specs),
            "optional_specs": [_MSGPACK] if order.msgpack else [],
            "locked": order.locked,
            "prefix": None if order.prefix is None else str(order.prefix),
            "timeout_s": SOLVE_TIMEOUT_S,
        }
    )
    records: list[dict[str, Any]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "pybackend_tools.pack.conda_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        try:
            worker.stdin.write(text)
            worker.stdin.close()
            for line in worker.stdout:
                event = json.loads(line)
                if event["event"] == "solved":
                    records = event["records"]
                elif event["event"] == "progress":
                    advance(event["done"], event["total"])
                elif event["event"] == "error":
                    raise _error(order, event)
                else:
                    return records
        except BaseException:  # interrupted, too: the solver must not go on alone
            worker.kill()
            raise
        complaint = worker.stderr.read()
    raise PackError(
        f"py-rattler ended unexpectedly (status {worker.returncode}): {complaint.strip()[-500:] or 'no error message'}"
    )


def _error(order: CondaOrder, event: Mapping[str, str]) -> PackError:
    message, kind = event["message"].strip(), event["kind"]
    told = told_output_error(message, "install packages", order.prefix or Path("/"))
    if told is not None:
        return told
    if kind == "SolverError":
        unsolvable = UnsolvableError if "No candidates were found" in message else ConflictError
        return unsolvable(_unsolvable(order, message))
    if kind in {"InvalidMatchSpecError", "InvalidPackageNameError", "InvalidVersionSpecError", "InvalidVersionError"}:
        return SpecificationError(f"one of the dependencies ({', '.join(order.specs)}) cannot be read: {message}")
    if kind in {"InvalidChannelError", "InvalidUrlError"}:
        return SpecificationError(f"one of the channels ({', '.join(order.channels)}) cannot be read: {message}")
    if kind in {"GatewayError", "FetchRepoDataError"}:
        return UnreachableError(_unreachable(order, message))
    if event["step"] == "install" and re.search(
        r"error sending request|failed to (fetch|download)|No such file", message
    ):
        return UnreachableError(f"a package cannot be fetched: {_one_line(message)}")
    return PackError(
        f"packages cannot be {'solved' if event['step'] == 'solve' else 'installed'}: {_one_line(message)}"
    )


def _unsolvable(order: CondaOrder, message: str) -> str:
    reason = re.sub(r"^Cannot solve the request because of:\s*", "", message)
    # The reason is a tree of several lines if packages contradict each other.
    separator = "\n" if "\n" in reason else " "
    return (
        f"no set of packages from {', '.join(order.channels)} satisfies the request ({', '.join(order.specs)}):"
        f"{separator}{reason}"
    )


def _unreachable(order: CondaOrder, message: str) -> str:
    missing = re.search(r"could not find subdir '\S+' in channel '([^']+)'", message)
    if missing:
        return f"there is no channel {missing[1]}: {message.splitlines()[-1].removeprefix('Caused by: ')}"
    return (
        f"a channel cannot be reached (of {', '.join(order.channels)}): {_one_line(message)}. `pybackend pack "
        "requirements.txt` needs only pip's index"
    )


def _one_line(message: str) -> str:
    return ": ".join(line.strip().removeprefix("Caused by: ") for line in message.splitlines() if line.strip())


def sizes(records: Sequence[Mapping[str, Any]]) -> list[PackedSize]:
    """The packages with their download sizes."""
    return sorted(
        (
            PackedSize(record["name"], str(record["version"]), record.get("size") or None, record.get("channel") or "")
            for record in records
        ),
        key=lambda package: package.name,
    )
