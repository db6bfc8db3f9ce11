"""Hints about what a model can do after its sandbox refused something: one log line, the first time."""

import errno
import os
import traceback
from typing import Iterator, List, Optional, Set

from pybackend_sdk.logger import Logger

_REFUSED = (errno.EACCES, errno.EPERM)

_STARTING = ("fork", "_fork_exec", "_execute_child", "_posix_spawn", "posix_spawn", "_launch", "system", "popen")
"""Functions that start processes."""

_SIGNALLING = ("kill", "killpg", "terminate", "send_signal")

_SHARED_MEMORY = ("/dev/shm", "/psm_")  # noqa: S108  ``multiprocessing``'s names for shared memory

_SOCKETS = ("socket.py", "socketserver.py")

_said: "Set[str]" = set()
_instance: "Optional[str]" = None


def watch(instance_name: str) -> None:
    """Give hints from now on; called in a confined process."""
    global _instance
    _instance = instance_name


def note(error: BaseException) -> None:
    """Log a hint if the sandbox caused this error in the model's code."""
    if _instance is None:
        return
    for each in _chain(error):
        hint = _hint(each)
        if hint and hint not in _said:
            _said.add(hint)
            Logger.log_warn(f"sandbox of '{_instance}': {each}. {hint}")
            return


def _chain(error: BaseException) -> "Iterator[BaseException]":
    seen: List[int] = []
    current: Optional[BaseException] = error
    while current is not None and id(current) not in seen:
        seen.append(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _hint(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "Set SANDBOX_MEMORY_MB in the model's parameters to give its processes more memory"
    if not isinstance(error, OSError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    functions = {frame.name for frame in frames[-2:]}
    files = {os.path.basename(frame.filename) for frame in frames[-3:]}
    last_line = (frames[-1].line or "") if frames else ""
    if error.errno == errno.EAGAIN and (functions & set(_STARTING) or "fork" in last_line):
        return "Set SANDBOX_PROCESSES in the model's parameters to allow more processes"
    if error.errno == errno.ENOMEM:
        return "Set SANDBOX_MEMORY_MB in the model's parameters to give its processes more memory"
    if error.errno not in _REFUSED:
        return ""
    if functions & set(_SIGNALLING) or "kill(" in last_line:
        return "A model may signal only processes that it started, unless SANDBOX in the model's parameters is off"
    if functions & set(_STARTING) or "fork(" in last_line or "subprocess.py" in files:
        return "Set SANDBOX_SUBPROCESSES in the model's parameters to let it start processes"
    if files & set(_SOCKETS) or "socket" in last_line:
        return "Set SANDBOX_NETWORK in the model's parameters for network access, SANDBOX_UNIX_SOCKETS for socket files"
    if str(error.filename).startswith(_SHARED_MEMORY):
        return "Set SANDBOX_SUBPROCESSES in the model's parameters to let it share memory with processes that it starts"
    if isinstance(error.filename, (str, bytes)):
        return _about_file(os.path.abspath(os.fsdecode(error.filename)))
    # A function written in C, which appears in no traceback.
    return (
        "Set SANDBOX_SUBPROCESSES in the model's parameters to let it start processes; anything else that the kernel "
        "refuses needs another level of SANDBOX"
    )


def _about_file(path: str) -> str:
    """Tell a refusal by file permissions, which no option overrides, from one by the sandbox, whose rules ``access`` does not see."""
    user = f"user {os.geteuid()}"
    for way in reversed(list(_parents(path))):
        if not os.access(way, os.X_OK) and os.path.lexists(way):
            return f"File permissions refuse it, not the sandbox: {user} cannot enter {way}. Its owner can open it: `chmod o+x {way}`"
    known = path if os.path.lexists(path) else os.path.dirname(path)
    if not os.access(known, os.R_OK):
        return f"File permissions refuse it, not the sandbox: {user} cannot read {known}. Its owner can open it: `chmod o+r {known}`"
    if os.access(known, os.W_OK):
        return "Set SANDBOX_READ in the model's parameters to let it read that path, SANDBOX_WRITE to let it change it"
    return (
        "Set SANDBOX_READ in the model's parameters to let it read that path. "
        f"File permissions keep {user} from changing {known}, whatever the parameters say"
    )


def _parents(path: str) -> "Iterator[str]":
    """Every directory above a path, and above the place that its links lead to, from the lowest."""
    for start in (path, os.path.realpath(path)):
        while os.path.dirname(start) != start:
            start = os.path.dirname(start)
            yield start
