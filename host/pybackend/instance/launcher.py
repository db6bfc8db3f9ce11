"""Starts the processes that become stubs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.affinity import pin
from pybackend.instance.launch import StubLaunch
from pybackend.instance.stub_ends import StubEnds, connected_ends
from pybackend.instance.stub_process import StubProcess
from pybackend_wire.confinement import Confinement

_LEFT_OUT = ("LD_PRELOAD", "LD_AUDIT")

_NOT_CONFINED = -1

_ANYHOW = StubLaunch()


class StubLauncher:
    """Starts stubs from one bundle.

    Stubs are alike until they are told which model to load, so they can be started ahead of time: while the host still
    reads configurations and imports its own packages, they already import numpy.
    """

    def __init__(self, bundle: Path, own: Environment = HOST_ENVIRONMENT) -> None:
        self._bundle = bundle
        self._own = own
        self._spare: list[StubProcess] = []

    @property
    def bundle(self) -> Path:
        """The directory that stubs are started from."""
        return self._bundle

    def start_ahead(self, count: int) -> None:
        """Start stubs that the next calls of :meth:`start` will hand out."""
        for _ in range(count):
            self._spare.append(self._spawn(_ANYHOW))

    async def start(self, launch: StubLaunch = _ANYHOW) -> StubProcess:
        """A stub that has said nothing yet.

        Raises:
            ModelLoadError: the process cannot be started.
        """
        spare = self._take_spare() if launch.environment is None and launch.confinement is None else None
        stub = spare or self._spawn(launch)
        if launch.cores:
            pin(stub.pid, launch.cores)
        return stub

    def _take_spare(self) -> StubProcess | None:
        while self._spare:
            stub = self._spare.pop(0)
            if not stub.exit_cause:
                return stub
            stub.discard()
        return None

    def close(self) -> None:
        """End the stubs that nobody asked for."""
        for stub in self._spare:
            stub.discard()
        self._spare.clear()

    def _spawn(self, launch: StubLaunch) -> StubProcess:
        environment = launch.environment or self._own
        try:
            with connected_ends() as (ours, theirs), _written(launch.confinement) as confinement:
                return StubProcess(self._execute(environment, theirs, launch.confinement, confinement), ours)
        except OSError as error:
            raise ModelLoadError(
                f"cannot start a model process with {environment.python}: {error.strerror}", ErrorCode.UNAVAILABLE
            ) from error

    def _execute(
        self, environment: Environment, ends: StubEnds, confinement: Confinement | None, written: int
    ) -> subprocess.Popen[bytes]:
        inherited = [ends.socket, ends.nudges] + [written] * (written != _NOT_CONFINED)
        variables = {**stub_environment(os.environ), **environment.variables}
        arguments = map(str, (ends.socket, ends.nudges, os.getpid(), written))
        return subprocess.Popen(
            [str(environment.python), "-I", "-B", str(self._bundle), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=ends.output,
            stderr=ends.output,
            pass_fds=inherited,
            env=variables if confinement is None else confinement.environment(variables),
            start_new_session=True,
        )


@contextmanager
def _written(confinement: Confinement | None) -> Iterator[int]:
    """A descriptor to read it from, for as long as a ``with`` block lasts."""
    if confinement is None:
        yield _NOT_CONFINED
        return
    with _unnamed_file() as file:
        file.write(confinement.to_json().encode())
        file.seek(0)
        yield file.fileno()


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("pybackend-confinement"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def stub_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The host's environment less what would change which code the stub's Python runs."""
    return {name: value for name, value in host.items() if not name.startswith("PYTHON") and name not in _LEFT_OUT}
