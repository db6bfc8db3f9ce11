"""How a process gets into the Python of an environment: confined before, by the host's own Python, which then becomes that one."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pybackend_wire.confinement import Confinement

NOT_CONFINED = -1


def entered_command(
    bundle: Path, command: list[str], variables: Mapping[str, str], inherited: Collection[int], written: int
) -> tuple[list[str], dict[str, str]]:
    """The same command, and its environment, for a process that is confined before it becomes that.

    Args:
        bundle: what stubs are started from.
        command: what it is to become.
        variables: of the environment that the command is to have.
        inherited: descriptors that it is to have.
        written: of the confinement, from :func:`written_confinement`.
    """
    enter = bundle / "pybackend_stub" / "sandbox" / "enter.py"
    kept = ",".join(map(str, inherited))
    hidden = {f"_{name}": value for name, value in variables.items()}
    if "LD_LIBRARY_PATH" in os.environ:
        hidden["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]  # the host's own Python may need it to start
    arguments = [str(bundle), str(os.getpid()), str(written), kept, *command]
    return [sys.executable, "-I", "-S", "-B", str(enter), *arguments], hidden


@contextmanager
def written_confinement(confinement: Confinement | None) -> Iterator[int]:
    """A descriptor to read it from, for as long as a ``with`` block lasts; :data:`NOT_CONFINED` for none."""
    if confinement is None:
        yield NOT_CONFINED
        return
    with _unnamed_file() as file:
        file.write(confinement.to_json().encode())
        file.seek(0)
        yield file.fileno()


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("pybackend-confinement"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
