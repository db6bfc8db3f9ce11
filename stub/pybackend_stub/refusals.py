"""What a model can do about something that its sandbox has refused: one line in the log, the first time."""

import errno
import os
import traceback
from typing import Iterator, List, Optional, Set

from pybackend_sdk.logger import Logger

_REFUSED = (errno.EACCES, errno.EPERM)

_STARTING = ("fork", "_fork_exec", "_execute_child", "_posix_spawn", "posix_spawn", "_launch", "system", "popen")
"""Functions that start processes."""

_SIGNALLING = ("kill", "killpg", "terminate", "send_signal")

_SHARED_MEMORY = ("/dev/shm", "/psm_")  # noqa: S108  as ``multiprocessing`` calls what it makes there

_SOCKETS = ("socket.py", "socketserver.py")

_said: "Set[str]" = set()
_instance: "Optional[str]" = None


def watch(instance_name: str) -> None:
    """From now on, say what would help; called in a process that is confined."""
    global _instance
    _instance = instance_name


def note(error: BaseException) -> None:
    """An error has ended something of the model's: if that is the sandbox's doing, say so."""
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
        return "SANDBOX_MEMORY_MB in the model's parameters gives its processes more memory"
    if not isinstance(error, OSError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    functions = {frame.name for frame in frames[-2:]}
    files = {os.path.basename(frame.filename) for frame in frames[-3:]}
    last_line = (frames[-1].line or "") if frames else ""
    if error.errno == errno.EAGAIN and (functions & set(_STARTING) or "fork" in last_line):
        return "SANDBOX_PROCESSES in the model's parameters lets it have more processes"
    if error.errno == errno.ENOMEM:
        return "SANDBOX_MEMORY_MB in the model's parameters gives its processes more memory"
    if error.errno not in _REFUSED:
        return ""
    if functions & set(_SIGNALLING) or "kill(" in last_line:
        return "It may signal only what it has started itself, unless SANDBOX in the model's parameters is off"
    if functions & set(_STARTING) or "fork(" in last_line or "subprocess.py" in files:
        return "SANDBOX_SUBPROCESSES in the model's parameters lets it start processes"
    if files & set(_SOCKETS) or "socket" in last_line:
        return "SANDBOX_NETWORK in the model's parameters lets it use the network, SANDBOX_UNIX_SOCKETS socket files"
    if str(error.filename).startswith(_SHARED_MEMORY):
        return "SANDBOX_SUBPROCESSES in the model's parameters lets it share memory with processes that it starts"
    if error.filename is not None:
        return (
            "SANDBOX_READ in the model's parameters lets it read that, SANDBOX_WRITE change it, if permissions do too"
        )
    # From a function written in C, of which a traceback shows nothing.
    return (
        "SANDBOX_SUBPROCESSES in the model's parameters lets it start processes; for anything else that the kernel "
        "refuses it takes another level of SANDBOX"
    )
