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
import pybackend_wire
from pybackend_sdk.testing.errors import HarnessError, LoadError

PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
HERE = "here"
"""Given as an environment: the test's own process."""

_MODULES = ("triton_python_backend_utils.py", "c_python_backend_utils.py")
_MAIN = (
    "import sys; sys.path[0] = sys.argv[1]; sys.dont_write_bytecode = True; "
    "from pybackend_sdk.testing.environment_process import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_READ = "SANDBOX_READ"
_END_S = 5.0


def environment_of(document: Mapping[str, Any], model_directory: str, given: Optional[str]) -> Optional[str]:
    """Return the absolute path of a model's environment, None for the test's own process.

    Args:
        document: the configuration.
        model_directory: replaces the placeholder in the configuration.
        given: used instead of the configured one; ``here`` for the test's own process.
    """
    path = given or document["parameters"].get(PARAMETER, {}).get("string_value", "")
    if not path or given == HERE:
        return None
    path = os.path.abspath(path.replace(MODEL_DIRECTORY, model_directory))
    return None if os.path.realpath(path) == os.path.realpath(sys.prefix) else path


class EnvironmentProcess:
    """A process in an environment that can run a model under test.

    Args:
        path: the environment: an archive or a directory.
        model_name: for messages.
        model_directory: the model's directory.
        parameters: of its configuration; those of the sandbox count.
        read: places of the model's code.

    Attributes:
        socket: connected to the process.

    Raises:
        HarnessError: no program here can start a process in that environment.
    """

    def __init__(
        self,
        path: str,
        model_name: str,
        model_directory: str,
        parameters: "Mapping[str, Mapping[str, str]]",
        read: Sequence[str],
    ) -> None:
        self._path = path
        self._model_name = model_name
        self._code = _staged()
        rights = _rights(parameters, [self._code, *read])
        command = [*_runner(path, model_name, model_directory, rights), "python", "-c", _MAIN]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self.socket, theirs = socket.socketpair()
        errors = os.dup(2)
        try:
            self._process = subprocess.Popen(
                [*command, self._code, str(theirs.fileno()), str(errors)],
                stdin=subprocess.DEVNULL,
                stderr=self._said,  # until it runs; then it writes where this process does
                pass_fds=(theirs.fileno(), errors),
                env=_variables(path),
            )
        except BaseException as error:
            self.socket.close()
            self._clean_up()
            if isinstance(error, OSError):
                raise LoadError(f"{self._what()} cannot be used: {error}") from error
            raise
        finally:
            theirs.close()
            os.close(errors)

    def not_started(self) -> LoadError:
        """Return the error for a process that ended before it could run a model."""
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode("utf-8", "replace").strip()
        if said.startswith("error: "):
            said = said[len("error: ") :]
        return LoadError(f"{self._what()} cannot be used: {said or self.fate()}")

    def fate(self) -> str:
        """Return how the process ended."""
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
        """End the process now."""
        self._process.kill()

    def _clean_up(self) -> None:
        self._said.close()
        shutil.rmtree(self._code, ignore_errors=True)

    def _what(self) -> str:
        return f"the environment {self._path} of model '{self._model_name}'"


def _rights(parameters: "Mapping[str, Mapping[str, str]]", read: Sequence[str]) -> "Dict[str, Dict[str, str]]":
    """Return the sandbox parameters of a model that may also read some directories."""
    rights = {name: dict(value) for name, value in parameters.items() if name.startswith("SANDBOX")}
    given = rights.get(_READ, {}).get("string_value")
    rights[_READ] = {"string_value": ":".join([*([given] if given else []), *read])}
    return rights


def _staged() -> str:
    """Make a directory that holds the SDK alone: a model must not see other packages of this environment."""
    directory = tempfile.mkdtemp(prefix="pybackend-testing-")
    os.chmod(directory, 0o755)  # noqa: S103  the process may have another user
    sdk, wire = (os.path.dirname(os.path.abspath(str(package.__file__))) for package in (pybackend_sdk, pybackend_wire))
    beside = os.path.dirname(sdk)
    for path in (sdk, wire, *(os.path.join(beside, name) for name in _MODULES)):
        copy = shutil.copytree if os.path.isdir(path) else shutil.copyfile
        copy(path, os.path.join(directory, os.path.basename(path)))
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
