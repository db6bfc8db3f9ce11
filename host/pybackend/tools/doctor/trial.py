"""Checks by experiment: a process is started, forked and confined in the same way as a model's process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.errors import PybackendError
from pybackend.ipc import stub_messages as heard
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import ModelProcess, StubLauncher
from pybackend.process.orphans import Orphans
from pybackend.process.stub_process import StubLaunch, StubProcess, connected_ends
from pybackend.process.zygote import ZygoteError
from pybackend.process.zygotes import Zygotes
from pybackend.sandbox.model_sandbox import ModelFiles, ModelSandbox
from pybackend.sandbox.options import SandboxOptions
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import SandboxSettings
from pybackend.tools.doctor.finding import Finding, fail, not_in_force, ok, warn
from pybackend_wire.confinement import LAYERS, STANDARD
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
        files = ModelFiles(version, version, version / "model.py", HOST_ENVIRONMENT)
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


def _open_to_all(directory: Path) -> Path:
    """Make a directory readable for other users, as a model's directory must be for a separate model user."""
    directory.chmod(0o755)
    return directory


async def greeting(stub: ModelProcess) -> heard.Hello:
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


async def _cause(stub: ModelProcess) -> str:
    """How the process ended, which is visible shortly after its socket closes."""
    for _ in range(_LOOKS):
        if stub.exit_cause:
            return stub.exit_cause
        await asyncio.sleep(_LOOK_S)
    return "has closed its socket"
