"""Checks by experiment: a process is started, forked and confined in the same way as a model's process."""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.errors import PybackendError
from pybackend.gpus import Gpus
from pybackend.ipc import stub_messages as heard
from pybackend.process.bundle import stage_bundle
from pybackend.process.confined_program import run_confined
from pybackend.process.launcher import StubLauncher
from pybackend.process.orphans import Orphans
from pybackend.process.start import process_variables
from pybackend.process.stub_process import StubHandle, StubLaunch, StubProcess, connected_ends
from pybackend.process.zygote import ZygoteError
from pybackend.process.zygotes import Zygotes
from pybackend.sandbox.model_sandbox import ModelSandbox, ReachableFiles
from pybackend.sandbox.options import SandboxOptions
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import SandboxSettings
from pybackend_tools.doctor.finding import Finding, fail, not_in_force, ok, warn
from pybackend_wire.confinement import LAYERS, STANDARD, STRICT
from pybackend_wire.framing import FrameDecoder

_LIMIT_S = 60.0
"""How long a process may take to send its first message."""

_LOOKS, _LOOK_S = 300, 0.01

_OWN = "its log lines say why; `pybackend serve --log-verbose=1` shows all"


async def examine() -> list[Finding]:
    """Start, fork and confine a process; stops at the first failure, which explains the rest."""
    try:
        bundle = stage_bundle()
    except PybackendError as error:
        return [fail("model processes", str(error), "set XDG_CACHE_HOME to a directory that this user can write")]
    orphans = Orphans()
    launcher = StubLauncher(bundle, orphans=orphans)
    try:
        started = await _started(launcher)
        if started.advice:
            return [started]
        return [started, await _forked(bundle, orphans), await _confined(bundle, launcher)]
    finally:
        launcher.close()
        orphans.sweep_all()


async def _started(launcher: StubLauncher) -> Finding:
    layer = "model processes"
    began_s = time.perf_counter()
    try:
        hello = await greeting(await launcher.start())
    except (PybackendError, OSError, EOFError) as error:
        return fail(layer, f"a process was started but sent no valid greeting: {error}", _OWN)
    took_ms = (time.perf_counter() - began_s) * 1e3
    return ok(layer, f"Python {hello.python}, numpy {hello.numpy}, {hello.codecs[0]}; started in {took_ms:.0f} ms")


async def _forked(bundle: Path, orphans: Orphans) -> Finding:
    layer = "zygote"
    zygotes, launch = Zygotes(bundle, HOST_ENVIRONMENT, orphans), StubLaunch()
    kind = zygotes.kind_of(launch)
    assert kind is not None
    if not orphans.adopts:
        return warn(layer, "orphans do not become children of the server", "processes are started one by one")
    took_ms = 0.0
    try:
        for _ in range(2):  # the first one waits for numpy
            mark = orphans.new_mark()
            began_s = time.perf_counter()
            with connected_ends() as (ours, theirs):
                process = await zygotes.fork(kind, launch, theirs, mark)
            orphans.know(mark, process.pid)
            await greeting(StubProcess(process, ours, lambda mark=mark: orphans.end(mark)))  # type: ignore[misc]
            took_ms = (time.perf_counter() - began_s) * 1e3
    except (ZygoteError, OSError, EOFError) as error:
        return warn(layer, f"the zygote {error}", "processes are started one by one; see the log")
    finally:
        zygotes.close()
    return ok(layer, f"forked in {took_ms:.0f} ms")


async def _confined(bundle: Path, launcher: StubLauncher) -> Finding:
    layer = "sandbox"
    with tempfile.TemporaryDirectory(prefix="pybackend-doctor-") as directory:
        version = _open_to_all(Path(directory))
        sandbox = Sandbox(SandboxSettings(level=STANDARD), [], bundle)
        files = ReachableFiles(version, version, version / "model.py", HOST_ENVIRONMENT)
        model = ModelSandbox(sandbox, "trial", STANDARD, SandboxOptions(), files)
        try:
            launch = StubLaunch(sandbox=model.of_instance(0))
            process = await launcher.start(launch)
            hello = await greeting(process)
            launch.check_confined(
                process.pid, process.sandbox_report, hello.confined
            )  # the server's own judgement of what is missing
            await launch.end_leftovers()
        except (PybackendError, OSError, EOFError) as error:
            return warn(layer, f"a process cannot be confined: {error}", "models that need a sandbox cannot be loaded")
        finally:
            sandbox.close()
    if not model.missing:
        shared = "" if model.has_own_user else "; models share this user, unless root starts the server"
        return ok(layer, f"all layers of `standard` can be applied{shared}")
    return warn(
        layer,
        f"lost at `standard`: {'; '.join(LAYERS[name] for name in model.missing)}",
        " ".join(not_in_force(model.missing)),
    )


_ASK_CUDA = """
import ctypes, json, signal
signal.alarm(60)
try:
    cuda, number, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_char_p()
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number))
    cuda.cuGetErrorName(status, ctypes.byref(word))
    print(json.dumps(["" if not status else "CUDA answers " + word.value.decode(), number.value]))
except OSError as error:
    print(json.dumps([str(error), 0]))
"""
"""The first steps of any model with CUDA. They need the driver's library alone; models bring the others."""


def on_gpu(gpus: Gpus) -> Finding:
    """Start CUDA where a model of an instance on the first GPU would, at both levels. Blocking."""
    layer, seen = "gpu in models", {}
    for level in (STANDARD, STRICT):
        try:
            seen[level] = _cuda_at(level, gpus)
        except PybackendError as error:
            seen[level] = str(error)
    wrong = [f"at {level} {text}" for level, text in seen.items() if text]
    if wrong:
        advice = 'nvidia-smi and the kernel\'s log may say more, and SANDBOX: "off" for one model whether its sandbox is the reason'
        return warn(layer, "; ".join(wrong), advice)
    return ok(layer, "CUDA starts at standard and at strict, and an instance on GPU 0 sees that one alone")


def _cuda_at(level: str, gpus: Gpus) -> str:
    """Why CUDA is not as it should be; empty if it is."""
    with tempfile.TemporaryDirectory(prefix="pybackend-doctor-") as directory, tempfile.TemporaryFile() as output:
        version = _open_to_all(Path(directory))
        sandbox = Sandbox(SandboxSettings(level=level), [], stage_bundle())
        try:
            files = ReachableFiles(version, version, version / "model.py", HOST_ENVIRONMENT)
            model = ModelSandbox(sandbox, "trial", level, SandboxOptions(), files)
            program, gpu = [sys.executable, "-I", "-S", "-c", _ASK_CUDA], gpus.access("GPU", 0)
            variables = process_variables(HOST_ENVIRONMENT)
            status = run_confined(model, sandbox.places.bundle, program, variables, gpu, output.fileno())
        finally:
            sandbox.close()
        output.seek(0)
        said = output.read()
    if status:
        return f"the program that starts CUDA ended with status {status}"
    failure, count = json.loads(said)
    return failure or ("" if count == 1 else f"an instance on GPU 0 sees {count} GPUs")


def _open_to_all(directory: Path) -> Path:
    """Make a directory readable for other users, as a model's directory must be for a separate model user."""
    directory.chmod(0o755)
    return directory


async def greeting(stub: StubHandle) -> heard.Hello:
    """The first message of a process, which is then ended.

    Raises EOFError if the process ended without it, or reported a failure.
    """
    decoder, loop = FrameDecoder(), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LIMIT_S):
            while True:
                count = await loop.sock_recv_into(stub.socket, decoder.get_buffer())
                if not count:
                    raise EOFError(f"it {await _cause(stub)}")
                for frame in decoder.received(count):
                    (message,) = heard.decode("json", frame)
                    if isinstance(message, heard.Hello):
                        return message
                    raise EOFError(message.failure.message if isinstance(message, heard.Failed) else repr(message))
    except TimeoutError:
        raise EOFError(f"it sent nothing for {_LIMIT_S:g} s") from None
    finally:
        stub.discard()


async def _cause(stub: StubHandle) -> str:
    """How the process ended, which is visible shortly after its socket closes."""
    for _ in range(_LOOKS):
        if stub.exit_cause:
            return stub.exit_cause
        await asyncio.sleep(_LOOK_S)
    return "has closed its socket"
