"""The Python environment of a model under test, and processes in it.

Archives are unpacked by the server's package: ``pybackend env run`` starts a program in an environment and in the
model's sandbox, as a server would. Where that package is missing, a directory can still be used, without a sandbox.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence

import pybackend_sdk
import pybackend_stub
import pybackend_wire
from pybackend_sdk.testing.errors import HarnessError, LoadError
from pybackend_wire.confinement import NOT_CONFINED

PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
HERE = "here"
"""Given as an environment: the test's own process."""

_MODULES = ("triton_python_backend_utils.py", "c_python_backend_utils.py")
_BACKENDS = "pybackend_backends"
_MAIN = """import os, sys

from pybackend_stub.bootstrap import main

socket, nudges, confinement = sys.argv[1:]
sys.exit(main([socket, nudges, str(os.getppid()), "0", confinement]))
"""
_READ = "SANDBOX_READ"
_END_S = 5.0


def environment_of(document: Mapping[str, Any], model_directory: str, given: Optional[str]) -> Optional[str]:
    """Return the absolute path of a model's environment, the given or configured one; None for the test's own process."""
    path = given or document["parameters"].get(PARAMETER, {}).get("string_value", "")
    if not path or given == HERE:
        return None
    path = os.path.abspath(path.replace(MODEL_DIRECTORY, model_directory))
    return None if os.path.realpath(path) == os.path.realpath(sys.prefix) else path


class EnvironmentProcess:
    """A stub process in an environment, which is an archive or a directory.

    Args:
        parameters: of the model's configuration; those of the sandbox count.
        read: places of the model's code.

    Attributes:
        socket: connected to the process.
        output: the end of a pipe to read what it prints, without waiting.
    """

    def __init__(
        self,
        path: str,
        model_name: str,
        model_directory: str,
        parameters: "Mapping[str, Mapping[str, str]]",
        read: Sequence[str],
    ) -> None:
        self._code = _staged()
        rights = _rights(parameters, [self._code, *read])
        command = [*_runner(path, model_name, model_directory, rights), "python", "-I", "-B"]
        self.socket, theirs = socket.socketpair()
        nudges, self._nudges = os.pipe()
        self.output, output = os.pipe()
        os.set_blocking(self.output, False)
        try:
            self._process = subprocess.Popen(
                [*command, self._code, str(theirs.fileno()), str(nudges), NOT_CONFINED],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(), nudges),
                env=_variables(path),
            )
        except BaseException as error:
            self._clean_up()
            if isinstance(error, OSError):
                raise LoadError(f"the environment {path} of model '{model_name}' cannot be used: {error}") from error
            raise
        finally:
            theirs.close()
            os.close(nudges)
            os.close(output)

    def nudge(self, how: bytes) -> None:
        """Have the process look at its socket, although it is busy."""
        os.write(self._nudges, how)

    def fate(self) -> str:
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it does not end"
        return f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"

    def end(self) -> None:
        """Wait for the process, which ends when its socket is closed; kill it if it does not."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clean_up()

    def kill(self) -> None:
        self._process.kill()

    def _clean_up(self) -> None:
        self.socket.close()
        for descriptor in (self.output, self._nudges):
            os.close(descriptor)
        shutil.rmtree(self._code, ignore_errors=True)


def _rights(parameters: "Mapping[str, Mapping[str, str]]", read: Sequence[str]) -> "Dict[str, Dict[str, str]]":
    """Return the sandbox parameters of a model that may also read some directories."""
    rights = {name: dict(value) for name, value in parameters.items() if name.startswith("SANDBOX")}
    given = rights.get(_READ, {}).get("string_value")
    rights[_READ] = {"string_value": ":".join([*([given] if given else []), *read])}
    return rights


def _staged() -> str:
    """Make a directory that a stub can run: its code alone, because a model must not see this environment's packages."""
    directory = tempfile.mkdtemp(prefix="pybackend-testing-")
    os.chmod(directory, 0o755)  # noqa: S103  the process may have another user
    backends = importlib.util.find_spec(_BACKENDS)
    packages = [os.path.dirname(str(package.__file__)) for package in (pybackend_sdk, pybackend_stub, pybackend_wire)]
    packages += (backends.submodule_search_locations or []) if backends is not None else []
    for path in packages:
        target = os.path.join(directory, os.path.basename(path))
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _MODULES:
        shutil.copyfile(os.path.join(os.path.dirname(packages[0]), name), os.path.join(directory, name))
    with open(os.path.join(directory, "__main__.py"), "w", encoding="utf-8") as file:
        file.write(_MAIN)
    return directory


def _runner(path: str, model_name: str, directory: str, rights: "Dict[str, Dict[str, str]]") -> List[str]:
    """Return the beginning of a command that runs a program in an environment and in a model's sandbox."""
    config = json.dumps({"parameters": rights})
    run = ["env", "run", f"--model={directory}", f"--config={config}", path, "--"]
    if importlib.util.find_spec("pybackend") is not None:
        return [sys.executable, "-m", "pybackend", *run]
    program = shutil.which("pybackend")
    if program is not None:
        return [program, *run]
    if os.access(os.path.join(path, "bin", "python"), os.X_OK):
        return []
    raise HarnessError(
        f"model '{model_name}' runs in the environment {path}, which the package 'pybackend' unpacks: `pip install "
        f"pybackend` here (Python 3.11 or newer), unpack it and name its directory with environment=..., or run pytest "
        f"inside it"
    )


def _variables(path: str) -> "Mapping[str, str]":
    """Variables for a process; ``pybackend env run`` sets the environment's own."""
    bin_directory = os.path.join(path, "bin")
    if importlib.util.find_spec("pybackend") is not None or shutil.which("pybackend") or not os.path.isdir(path):
        return os.environ
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**inherited, "PATH": f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}", "VIRTUAL_ENV": path}
