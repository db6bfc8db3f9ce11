"""How a process gets into the Python of an environment.

Where that is not the host's own, and the process is confined, the host's own Python confines it and then becomes the other one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pybackend.environment.environment import Environment
from pybackend.instance.process_variables import process_variables
from pybackend_wire.confinement import Confinement

NOT_CONFINED = -1


def start_process(
    bundle: Path,
    environment: Environment,
    arguments: Iterable[object],
    inherited: Collection[int],
    output: int,
    confinement: Confinement | None,
    written: int,
) -> subprocess.Popen[bytes]:
    """Start what stubs, and what they are forked from, are started from.

    Args:
        bundle: that is.
        environment: whose Python runs it.
        arguments: its own.
        inherited: descriptors that it is to have.
        output: what it prints into.
        confinement: what it may do; everything that the host may if None.
        written: of the confinement, from :func:`written_confinement`.

    Raises:
        OSError: it cannot be started.
    """
    command = [str(environment.python), "-I", "-B", str(bundle), *map(str, arguments)]
    variables = process_variables(environment)
    if confinement is not None:
        variables = confinement.environment(variables)
        if environment.is_foreign:
            command, variables = _entered_command(bundle, command, variables, inherited, written)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple({*inherited, written} - {NOT_CONFINED}),
        env=variables,
        start_new_session=True,
    )


def _entered_command(
    bundle: Path, command: list[str], variables: Mapping[str, str], inherited: Collection[int], written: int
) -> tuple[list[str], dict[str, str]]:
    """The same command, and its environment, for a process that is confined before it becomes that."""
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
