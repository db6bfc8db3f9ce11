"""Runs a stub under debugpy, so that an editor on the same machine can stop inside the model.

Imported only in stubs of models that the server debugs, after LOAD and before the model's own code. debugpy runs inside
this process, without its helper process, so the end of the stub ends it too and frees the port. If an editor disappears
without a word, debugpy would keep the model stopped for ever; so a relay listens in its place, and detaches.
"""

import importlib
import os
import selectors
import site
import socket
import sys
import sysconfig
import time
from contextlib import suppress
from typing import Any, List

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_stub.receiver import ServiceThread


def start_debugger(port: int, wait: bool, bundle: str) -> None:
    """Let a debugger attach to this process from now on.

    Raises:
        TritonModelException: debugpy is missing or too old, or cannot listen.
    """
    _describe_code(bundle)
    try:
        debugpy: Any = importlib.import_module("debugpy")
        relay = DebuggerRelay(port)
        debugpy.listen((ADDRESS, relay.inner_port), in_process_debug_adapter=True)
    except ImportError as error:
        raise _cannot(f"{error}. Install debugpy where the model runs: {_INSTALL}") from None
    except TypeError:
        raise _cannot(f"its debugpy {debugpy.__version__} is too old: {_INSTALL}") from None
    except OSError as error:
        advice = "--debug-port chooses another port, 0 a free one"
        raise TritonModelException(f"cannot listen on {ADDRESS}:{port}: {error.strerror}. {advice}") from None
    # A breakpoint in a forked process would stop it for ever: no debugger knows of it.
    os.register_at_fork(after_in_child=lambda: _leave_alone(debugpy))
    relay.start()
    if wait:
        Logger.log_info(f"waiting for a debugger to attach to {ADDRESS}:{port} before the model is imported")
        debugpy.wait_for_client()
    else:
        Logger.log_info(f"a debugger can attach to {ADDRESS}:{port}")


_INSTALL = f"{sys.executable} -m pip install --upgrade 'debugpy>=1.6.4'"


def _cannot(why: str) -> TritonModelException:
    return TritonModelException(f"the model's Python cannot be debugged: {why}")


def _describe_code(bundle: str) -> None:
    """Tell debugpy which code is library code: its default directories, and the stub's."""
    roots: List[str] = [os.path.dirname(os.__file__), bundle, *getattr(site, "getsitepackages", list)()]
    roots += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    os.environ.setdefault("LIBRARY_ROOTS", os.pathsep.join(dict.fromkeys(roots)))
    # The standard library's frozen modules have no files; debugpy would warn about that in every model's output.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def _leave_alone(debugpy: Any) -> None:
    """Stop tracing in a newly forked process."""
    debugpy.trace_this_thread(False)
    sys.modules["pydevd"].settrace_forked(setup_tracing=False)  # also for its future threads


ADDRESS = "127.0.0.1"

_DISCONNECT = b'{"seq": 1, "type": "request", "command": "disconnect", "arguments": {"terminateDebuggee": false}}'
_GOODBYE = b"Content-Length: %d\r\n\r\n%s" % (len(_DISCONNECT), _DISCONNECT)
_GOODBYE_S = 0.2
"""Time for debugpy to read the goodbye; it does not close the connection by itself."""

_START_S, _POLL_S = 10.0, 0.02
"""debugpy opens its own port in a thread, a moment after it reports that it listens."""

_CHUNK_BYTES = 64 * 1024


class DebuggerRelay:
    """Listens for editors and admits one at a time."""

    def __init__(self, port: int) -> None:
        self._listener = socket.socket()
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((ADDRESS, port))
            with socket.socket() as probe:
                probe.bind((ADDRESS, 0))
                self.inner_port: int = probe.getsockname()[1]
        except BaseException:
            self._listener.close()
            raise

    def start(self) -> None:
        """Admit editors from now on; debugpy listens already or soon will."""
        self._listener.listen()
        os.register_at_fork(after_in_child=self._listener.close)
        ServiceThread("pybackend-debugger", self._serve).start()

    def _serve(self) -> None:
        while True:
            editor, _ = self._listener.accept()
            with editor, suppress(OSError), self._connect() as debugger:  # including time-outs
                with suppress(OSError):
                    _pass_on(editor, debugger)
                debugger.sendall(_GOODBYE)
                debugger.shutdown(socket.SHUT_WR)
                debugger.settimeout(_GOODBYE_S)
                while debugger.recv(_CHUNK_BYTES):
                    pass

    def _connect(self) -> socket.socket:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                return socket.create_connection((ADDRESS, self.inner_port))
            except ConnectionRefusedError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)


def _pass_on(editor: socket.socket, debugger: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(editor, selectors.EVENT_READ, debugger)
        selector.register(debugger, selectors.EVENT_READ, editor)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(_CHUNK_BYTES)  # type: ignore[union-attr]  # registered above
                if not data:
                    return
                key.data.sendall(data)
