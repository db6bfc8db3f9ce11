"""Runs a stub under debugpy, so that an editor on the same machine can stop inside the model.

Imported only in stubs of models that the server debugs, after LOAD and before the model's own code. debugpy runs inside
this process, without its helper process, so the end of the stub ends it too and frees the port.
"""

import importlib
import os
import site
import sys
import sysconfig
from typing import Any, List

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_stub.debugger_relay import ADDRESS, DebuggerRelay


def start_debugger(port: int, wait: bool, bundle: str) -> None:
    """Let a debugger attach to this process from now on.

    Args:
        port: port to listen on, on this machine only.
        wait: return only when a debugger has attached and set its breakpoints.
        bundle: directory of the stub's own code, which debuggers treat as library code.

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
