"""A model in a stub process of another Python environment, started and spoken to as by a server.

Archives are unpacked by the server's package: ``pybackend env run`` starts a program in an environment and in the
model's sandbox, as a server would. Where that package is missing, a directory can still be used, without a sandbox.

One thread reads the socket and the process's output, and the output first: so lines of the log come before later
messages.
"""

import array
import importlib.util
import json
import mmap
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import pybackend_sdk
import pybackend_stub
import pybackend_wire
from pybackend_sdk.logger import Logger
from pybackend_testing.errors import FinalizeError, HarnessError, LoadError, ModelException
from pybackend_testing.host import Execution, Host, ModelProcess, head_of
from pybackend_testing.logs import ModelLog
from pybackend_wire.confinement import NOT_CONFINED
from pybackend_wire.framing import HEADER, JSON, Codec, FrameDecoder, available, decode_frame
from pybackend_wire.host_messages import (
    Attach,
    DebuggerPoint,
    Execute,
    Finalize,
    FromHost,
    Initialize,
    Load,
    ModelToLoad,
    Probe,
    encoded,
)
from pybackend_wire.log_record import MARK, MOST_LINE, MOST_PIECES
from pybackend_wire.messages import NUDGE, SegmentRole
from pybackend_wire.stub_messages import STUB_MESSAGES, Completed, Failed, Finalized, Hello, Initialized

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
    """Return the absolute path of a model's environment, the given or configured one.

    None for the test's own process.
    """
    path = given or document["parameters"].get(PARAMETER, {}).get("string_value", "")
    if not path or given == HERE:
        return None
    path = os.path.abspath(path.replace(MODEL_DIRECTORY, model_directory))
    return None if os.path.realpath(path) == os.path.realpath(sys.prefix) else path


class EnvironmentProcess:
    """A stub process in an environment, which is an archive or a directory.

    It may ``read`` the places of the model's code.

    ``socket`` is connected to it, and ``output`` is the end of a pipe to read what it prints, without waiting.
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
        f"model '{model_name}' runs in the environment {path}, which the package 'pybackend' unpacks: install it here "
        f"(`pip install .` in a clone of pybackend, Python 3.11 or newer), unpack it and name its directory with environment=..., or run pytest "
        f"inside it"
    )


def _variables(path: str) -> "Mapping[str, str]":
    """Variables for a process; ``pybackend env run`` sets the environment's own."""
    bin_directory = os.path.join(path, "bin")
    if importlib.util.find_spec("pybackend") is not None or shutil.which("pybackend") or not os.path.isdir(path):
        return os.environ
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**inherited, "PATH": f"{bin_directory}{os.pathsep}{os.environ.get('PATH', '')}", "VIRTUAL_ENV": path}


_RECORD_FIELDS = 11
_READ_BYTES = 1 << 16
_MOST_ERRORS = 64
"""Most tracebacks to remember for errors that may come again without one."""

_Answer = Union[Hello, Completed, Initialized, Failed, Finalized, None]
"""A message about the model's life; None if there will be none, because the process has ended."""


class RemoteProcess(ModelProcess):
    """A model in a stub process; with a port, the model is imported when a debugger has attached there."""

    is_here = False

    def __init__(
        self,
        host: Host,
        start: "Callable[[], EnvironmentProcess]",
        environment: str,
        model_name: str,
        instance_name: str,
        wait_s: float,
        log: ModelLog,
        debug_port: Optional[int],
    ) -> None:
        self._host = host
        self._start = start
        self._where = environment
        self._model_name = model_name
        self._whose_process = f"the process of '{instance_name}' in {environment}"
        self._unhealthy = f"Stub process '{instance_name}' is not healthy."
        self._wait_s = wait_s
        self._debug_port = debug_port
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._started: SimpleQueue[Optional[BaseException]] = SimpleQueue()
        self._reader = threading.Thread(target=self._run, name="pybackend stub", daemon=True)
        self._codec: Codec = JSON
        self._writing = threading.Lock()
        self._output = _Output(host, log)
        self._process: Optional[EnvironmentProcess] = None
        self._has_ended = False
        self._overlaps = False

    @property
    def model(self) -> Any:
        return _NotHere(f"the model object of '{self._model_name}' is in another process, of {self._where}")

    # Life

    def load(self, model: ModelToLoad, config_json: Optional[str]) -> "Optional[Dict[str, Any]]":
        # The reader starts it: the kernel ends a stub with the thread that started it.
        self._reader.start()
        error = self._started.get()
        if error is not None:
            raise error
        hello = self._answers.get()
        if not isinstance(hello, Hello):
            why = hello.failure[1] if isinstance(hello, Failed) else self._said()
            raise LoadError(f"the environment {self._where} of model '{self._model_name}' cannot be used: {why}")
        codec = next(codec for codec in available() if codec.name in hello.codecs)
        debugger = None if self._debug_port is None else DebuggerPoint(self._debug_port, waits=True)
        self._send(Load(codec.name, config_json, model._replace(debugger=debugger)))
        self._codec = codec
        self._output.passes_on = True
        completed = self._next(Completed)
        document: Optional[Dict[str, Any]] = completed.config
        return document

    def _said(self) -> str:
        said = self._output.take_printed().decode("utf-8", "replace").strip()
        return (said[len("error: ") :] if said.startswith("error: ") else said) or self._fate()

    def initialize(self, plan: Initialize) -> bool:
        self._overlaps = plan.concurrency > 1
        self._send(plan)
        has_is_ready: bool = self._next(Initialized).has_is_ready
        return has_is_ready

    def _next(self, kind: type) -> Any:
        answer = self._answers.get()
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, Failed):
            raise LoadError(answer.failure[1])
        raise LoadError(f"{self._whose_process} has ended: {self._fate()}")

    def finalize(self) -> Tuple[str, Optional[BaseException]]:
        self._send(Finalize())
        try:
            answer = self._answers.get(timeout=2 * self._wait_s if self._debug_port is None else None)
        except Empty:
            raise FinalizeError("finalize does not return, or execute does not") from None
        if not isinstance(answer, Finalized):
            return f"{self._whose_process} has ended before finalize: {self._fate()}", None
        return "" if answer.failure is None else f"finalize raised: {answer.failure[1]}", None

    def release(self) -> None:
        if self._process is not None:
            with suppress(OSError):  # the process has closed it
                self._process.socket.shutdown(socket.SHUT_RDWR)
            self._reader.join()
            self._process.end()

    # Requests

    def send(self, message: FromHost) -> None:
        self._send(message)
        if isinstance(message, Probe) and self._process is not None:
            self._process.nudge(NUDGE)

    def execute(self, execution: Execution, message: Execute) -> None:
        self._send(message)
        if not (self._overlaps or self._has_ended):
            execution.done.wait()
        if self._has_ended:
            raise HarnessError(f"{self._whose_process} has ended: {self._fate()}")

    def attach(self, number: int, size: int, role: SegmentRole) -> Any:
        """Share memory that has no name; the model's process gets its descriptor."""
        descriptor = _unnamed_file()
        try:
            os.ftruncate(descriptor, size)
            mapping = mmap.mmap(descriptor, size)
            self._send(Attach(number, size, role), [descriptor])
        finally:
            os.close(descriptor)
        return mapping

    def whereabouts(self) -> str:
        return f"it runs in {self._whose_process}"

    def _send(self, message: FromHost, descriptors: Sequence[int] = ()) -> None:
        metadata = self._codec.dumps([encoded(message)])
        data = memoryview(HEADER.pack(len(metadata), 0) + metadata)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        assert self._process is not None
        with self._writing, suppress(OSError):  # the reader notices the end too, and tells all who wait
            sent = self._process.socket.sendmsg([data], ancillary)
            self._process.socket.sendall(data[sent:])

    def _fate(self) -> str:
        return "it was never started" if self._process is None else self._process.fate()

    # The thread that reads

    def _run(self) -> None:
        try:
            self._process = self._start()
        except BaseException as error:  # noqa: BLE001  the thread that opens the model raises it
            self._started.put(error)
            return
        self._started.put(None)
        try:
            self._read(self._process)
        except Exception as error:  # noqa: BLE001  whatever a stub's message breaks
            self._process.kill()
            self._host.errors.setdefault(head_of(self._unhealthy), error)
        self._output.read(self._process.output)
        self._has_ended = True
        self._answers.put(None)
        self._host.end(self._unhealthy)

    def _read(self, process: EnvironmentProcess) -> None:
        decoder = FrameDecoder()
        poll = select.poll()
        for descriptor in (process.socket.fileno(), process.output):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if not self._output.read(process.output) and process.output in ready:
                poll.unregister(process.output)
            if process.socket.fileno() not in ready:
                continue
            try:
                received = process.socket.recv_into(decoder.get_buffer())
            except OSError:
                received = 0
            if not received:
                return
            for frame in decoder.received(received):
                for kind, *fields in decode_frame(self._codec, frame):
                    self._handle(STUB_MESSAGES[kind](*fields), bytes(frame.tail))

    def _handle(self, message: Any, tail: bytes) -> None:
        if isinstance(message, (Hello, Completed, Initialized, Failed, Finalized)):
            self._answers.put(message)
        else:
            self._host.on_message(message, tail)


class _Output:
    """Reads the output of a stub's process: printed text, and records of its log in between.

    See :mod:`pybackend_wire.log_record`.

    Printed text is kept until ``passes_on`` is set; from then on it goes to the test's own output.
    """

    def __init__(self, host: Host, log: ModelLog) -> None:
        self.passes_on = False
        self._host = host
        self._log = log
        self._printed = b""
        self._rest = b""
        self._pieces: Dict[Tuple[int, int], List[str]] = {}

    def read(self, descriptor: int) -> bool:
        """Read what there is, without waiting; False at the end."""
        while True:
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                text, mark, record = line.rpartition(MARK)
                if mark and self._keep(record):
                    self._print(text)
                else:
                    self._print(line + b"\n")
            if not data or len(self._rest) > MOST_LINE:
                self._print(self._rest)
                self._rest = b""
            if not data:
                return False

    def take_printed(self) -> bytes:
        printed, self._printed = self._printed, b""
        return printed

    def _print(self, text: bytes) -> None:
        if self.passes_on:
            text, self._printed = self._printed + text, b""
            while text:
                text = text[os.write(1, text) :]
        else:
            self._printed = (self._printed + text)[:MOST_LINE]

    def _keep(self, record: bytes) -> bool:
        """Note a record; False if it is none, but text that the model printed."""
        try:
            fields = json.loads(record.decode("utf-8"))
            if len(fields) != _RECORD_FIELDS:
                return True  # the short note before the record of a failure
            pid, thread, number, file, line, place, pieces, text, failure, _ids, _traces = fields
            level = Logger.LogLevel(number)
            so_far = self._pieces.setdefault((pid, thread), []) if place < MOST_PIECES else []
            so_far.append(str(text))
        except (ValueError, TypeError):
            return False
        if len(so_far) >= pieces:
            message = "".join(self._pieces.pop((pid, thread)))
            if failure:
                self._host.errors[message.partition("\n")[0]] = ModelException(message)
                if len(self._host.errors) > _MOST_ERRORS:
                    del self._host.errors[next(iter(self._host.errors))]
            self._log.add(level, file, line, message)
        return True


class _NotHere:
    """Stands for the model object; every use is an error that says where it is."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise HarnessError(
            f"{self._reason}: a test cannot use its '{name}'. Run pytest inside that environment, or pass "
            "environment='here' if this one has the model's packages"
        )


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pybackend-testing")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
