"""Starts processes in the Python of an environment.

If that is not the host's own Python and the process is confined, the host's own Python confines it and then becomes the
other one. The first one reports the result on a pipe that the second one does not have.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend_wire.confinement import Confinement

_LEFT_OUT = ("LD_PRELOAD", "LD_AUDIT")
_LEFT_OUT_PREFIXES = ("PYTHON", "PYBACKEND_")
"""The second are settings of the server, which may be secret."""


def process_variables(environment: Environment, host: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return host and environment variables, without those that change which code the stub's Python runs."""
    inherited = {
        name: value for name, value in host.items() if not name.startswith(_LEFT_OUT_PREFIXES) and name not in _LEFT_OUT
    }
    return {**inherited, **environment.variables}


BYTES_WARNINGS = "-b"
"""Python's flag for a BytesWarning where bytes are compared with str, or become str; it cannot be set later."""

_MOST_SAID_BYTES = 64 * 1024

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""numpy's libraries start threads when they are imported, and a process with several threads cannot be confined."""


class SandboxReport:
    """The report of the host's own Python about a process's sandbox, from before it became an environment's Python."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._layers: dict[str, str] = {}
        self._failure = ""

    @property
    def layers(self) -> dict[str, str]:
        """By layer the reason why it is not in force; complete once the process has sent a message or has ended."""
        self._read()
        return self._layers

    @property
    def failure(self) -> str:
        """The reason why it did not become the environment's Python, as a sentence; empty if it did."""
        self._read()
        return self._failure

    def end(self) -> None:
        """Close the pipe: the process has ended, and nothing more comes."""
        self._read()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _read(self) -> None:
        if self._pipe < 0:
            return
        try:
            text = os.read(self._pipe, _MOST_SAID_BYTES)
        except BlockingIOError:  # there is no report yet
            return
        os.close(self._pipe)
        self._pipe = -1
        for line in text.splitlines():
            said = json.loads(line)
            self._layers = said.get("report", self._layers)
            self._failure = said.get("failure", self._failure)


@dataclass(frozen=True)
class StartConditions:
    """The conditions under which a process runs."""

    confinement: Confinement | None
    written: int  # a descriptor to read the confinement from, -1 for none
    mark: int  # the mark that identifies it, 0 for none


def is_entered(environment: Environment, confinement: Confinement | None) -> bool:
    """Whether a process is confined before it starts the Python of its environment."""
    return confinement is not None and environment.is_foreign


def start_process(
    bundle: Path,
    environment: Environment,
    arguments: Iterable[object],
    inherited: Collection[int],
    output: int,
    terms: StartConditions,
    more: Mapping[str, str] = MappingProxyType({}),
    flags: Iterable[str] = (),
) -> tuple[subprocess.Popen[bytes], SandboxReport | None]:
    """Start the bundle's program, which becomes a stub or a zygote, with ``more`` variables and flags of Python."""
    command = [str(environment.python), "-I", "-B", *flags, str(bundle), *map(str, arguments)]
    variables = {**process_variables(environment), **more}
    confinement = terms.confinement
    if confinement is not None:
        variables = confinement.environment(variables)
    if not is_entered(environment, confinement):
        return _popen(command, variables, inherited, output), None
    with _reported() as (report, writing):
        command, variables = entered_command(bundle, command, variables, inherited, terms, writing)
        return _popen(command, variables, {*inherited, terms.written, writing}, output), report


def start_host_program(
    name: str, module: str, arguments: Iterable[object], inherited: Collection[int], output: int, terms: StartConditions
) -> tuple[subprocess.Popen[bytes], SandboxReport]:
    """Start a program of the host's own, a module with ``main``, which is confined before it begins.

    The name is for ``ps``.
    """
    assert terms.confinement is not None
    with _reported() as (report, writing):
        kept = ",".join(map(str, inherited))
        given = (name, os.getpid(), terms.mark, terms.written, writing, kept, module, *arguments)
        command = [sys.executable, "-I", "-B", "-m", "pybackend_stub.host_program", *map(str, given)]
        variables = {**terms.confinement.environment(process_variables(HOST_ENVIRONMENT)), **_ONE_THREAD}
        return _popen(command, variables, {*inherited, terms.written, writing}, output), report


@contextmanager
def _reported() -> Iterator[tuple[SandboxReport, int]]:
    """The report of a process that is confined as it starts, and the descriptor that it is written to, for the process alone."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        yield SandboxReport(reading), writing
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)


def _popen(
    command: list[str], variables: Mapping[str, str], inherited: Collection[int], output: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(inherited),
        env=variables,
        start_new_session=True,
    )


def entered_command(
    bundle: Path,
    command: list[str],
    variables: Mapping[str, str],
    inherited: Collection[int],
    terms: StartConditions,
    pipe: int,
) -> tuple[list[str], dict[str, str]]:
    """Wrap a command, and its variables, so that the process is confined before it becomes the command.

    Args:
        pipe: for the report; see :class:`SandboxReport`.
    """
    enter = bundle / "pybackend_stub" / "sandbox" / "enter.py"
    kept = ",".join(map(str, inherited))
    hidden = {f"_{name}": value for name, value in variables.items()}
    if "LD_LIBRARY_PATH" in os.environ:
        hidden["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]  # the host's own Python may need it to start
    arguments = [bundle, os.getpid(), terms.mark, terms.written, pipe, kept, *command]
    return [sys.executable, "-I", "-S", "-B", str(enter), *map(str, arguments)], hidden


@contextmanager
def terms_of(confinement: Confinement | None, mark: int) -> Iterator[StartConditions]:
    """Make the terms of a process with a mark, for the length of a ``with`` block."""
    if confinement is None:
        yield StartConditions(None, -1, mark)
        return
    with _unnamed_file() as file:
        file.write(confinement.to_json().encode())
        file.seek(0)
        yield StartConditions(confinement, file.fileno(), mark)


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("pybackend-confinement"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
