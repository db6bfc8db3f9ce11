"""Writes a model's errors to the server's log: the whole traceback, the requests, and each text once a second.

After an error that the sandbox has caused, one line says which option would allow what the model did.
"""

import binascii
import errno
import linecache
import os
import sys
import threading
import time
import traceback
from functools import partial
from itertools import takewhile
from operator import ne
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set

from pybackend_sdk.error import format_exception
from pybackend_sdk.logger import Logger
from pybackend_sdk.traceback_text import innermost_place, traceback_text
from pybackend_stub.channel import shortened
from pybackend_stub.model_output import write_failure_note, write_record

BUNDLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_HIDDEN = (BUNDLE, "<frozen importlib")
"""Files whose frames are not the author's business."""

_AGAIN_NS = 1_000_000_000
"""How long the server's log remembers a text at least: within this time only a note is sent."""

_MOST_TEXTS = 64
"""Most texts to remember as sent."""

_MOST_IDS, _MOST_ID_CHARACTERS = 3, 48

_MOST_HEAD_CHARACTERS = 2000
"""Limit on an error's text before its traceback, which ends with the whole message."""


class ErrorLog:
    """Writes failed executions to the server's log. Any thread may use it."""

    def __init__(self) -> None:
        self.place = "", 0  # file and line to name for errors that come from no line of code
        self._lock = threading.Lock()
        self._sent_ns: Dict[int, int] = {}

    def format(self, error: BaseException) -> str:
        """Format an error with its location for clients, leaving out the stub's own frames."""
        is_refused = _explain_refusal(error)
        text = format_exception(error, _HIDDEN)
        if not is_refused:
            return text
        head, gap, places = text.partition("\n\nAt:\n")
        return f"{head} (the model's sandbox refused this: the server's log says how to allow it){gap}{places}"

    def write(self, text: str, error: BaseException, execution: int, ids: "Sequence[str]") -> None:
        """Write one failed execution.

        Args:
            ids: of its requests, as their clients gave them; ``""`` for those without one.
        """
        file, line = innermost_place(error, _HIDDEN)
        if not file:
            file, line = self.place
        failure = _number_of(text, error)
        who = _who(execution, ids)
        head = text.partition("\n\nAt:\n")[0].strip()
        what = head.partition(", message: ")[2] or head
        if not write_failure_note(file, line, failure, who, what.partition("\n")[0]):
            Logger.log_error(text)
        elif self._is_due(failure):
            lines = [shortened(head, _MOST_HEAD_CHARACTERS), who[:1].upper() + who[1:], traceback_text(error, _HIDDEN)]
            write_record(int(Logger.ERROR), file, line, "\n".join(filter(None, lines)), failure)

    def _is_due(self, failure: int) -> bool:
        """Whether the whole text must be sent; the host decides whether it appears."""
        now_ns = time.monotonic_ns()
        with self._lock:
            sent_ns = self._sent_ns.get(failure)
            if sent_ns is not None and now_ns - sent_ns < _AGAIN_NS:
                return False
            if len(self._sent_ns) >= _MOST_TEXTS:
                del self._sent_ns[next(iter(self._sent_ns))]
            self._sent_ns[failure] = now_ns
            return True


def keep_sources(version_directory: str, last_before: str) -> None:
    """Keep the text of a model's own modules, for tracebacks: its author may change the files while it serves.

    Args:
        last_before: the name in ``sys.modules`` after which those of models come. A look at the others, which a fork
            shares with its zygote, would copy the memory in which each of them lies.
    """
    if not version_directory:  # of a model whose code is not this process's own
        return
    beginning = os.path.join(os.path.dirname(version_directory), "")
    newest_first = takewhile(partial(ne, last_before), reversed(sys.modules))
    for name in list(newest_first):  # in one step: the model's threads may import more meanwhile
        module = sys.modules.get(name)
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.startswith(beginning) and file.endswith(".py"):
            lines = linecache.getlines(file)
            # Without a time of change, an entry is never compared with its file.
            linecache.cache[file] = (0, None, lines, file)


def write_load_error(phase: str, error: BaseException) -> None:
    """Write to the server's log why a model cannot be loaded, if there is more to say than the load's own error says.

    Args:
        phase: what failed, as the beginning of a sentence.
    """
    trace = traceback_text(error, _HIDDEN)
    if trace:
        file, line = innermost_place(error, _HIDDEN)
        write_record(
            int(Logger.ERROR), file or str(getattr(error, "filename", "")), line, f"{phase}: {_reason(error)}\n{trace}"
        )


def _reason(error: BaseException) -> str:
    """Return an error of an import in a sentence."""
    python = "{}.{}".format(*sys.version_info[:2])
    if isinstance(error, SyntaxError) and error.filename:
        return f"line {error.lineno} of {error.filename} is not valid Python {python}: {error.msg}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"there is no module '{error.name}' in its Python {python} ({sys.prefix})"
    return shortened(format_exception(error).partition("\n\nAt:\n")[0], _MOST_HEAD_CHARACTERS)


def _number_of(text: str, error: BaseException) -> int:
    """Return a number that is the same for the same failure of any instance, and never 0."""
    parts: List[Any] = [text.partition(", message: ")[2]]
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        parts.append(format_exception(cause))
        cause = cause.__cause__ or cause.__context__
    data = "\0".join(parts).encode("utf-8", "backslashreplace")
    return (binascii.crc32(data) << 31 | binascii.crc32(data[::-1]) >> 1) or 1


def _who(execution: int, ids: "Sequence[str]") -> str:
    given = [each for each in ids if each][:_MOST_IDS]
    if not given:
        return f"execution {execution}"
    shown = ", ".join(repr(shortened(each, _MOST_ID_CHARACTERS)) for each in given)
    more = len(ids) - len(given)
    others = "" if not more else f" and {more} more request{'s' if more > 1 else ''}"
    return f"request id{'s' if len(given) > 1 else ''} {shown}{others}"


_REFUSED = (errno.EACCES, errno.EPERM)

_PERMISSIONS = "File permissions refuse it, not the sandbox"

_STARTING = ("fork", "_fork_exec", "_execute_child", "_posix_spawn", "posix_spawn", "_launch", "system", "popen")
"""Functions that start processes."""

_SIGNALLING = ("kill", "killpg", "terminate", "send_signal")

_SHARED_MEMORY = ("/dev/shm", "/psm_")  # noqa: S108  ``multiprocessing``'s names for shared memory

_SOCKETS = ("socket.py", "socketserver.py")

_explained: "Set[str]" = set()
_instance: "Optional[str]" = None
_configuration = "{}"


def explain_refusals(instance_name: str) -> None:
    """Give hints from now on; called in a confined process."""
    global _instance
    _instance = instance_name


def know_configuration(model_config: str) -> None:
    """Hints repeat nothing that this configuration sets."""
    global _configuration
    _configuration = model_config


def _explain_refusal(error: BaseException) -> bool:
    """Log a hint if the sandbox caused this error in the model's code; return whether it refused a call."""
    if _instance is None:
        return False
    is_refused = False
    for each in _chain(error):
        hint = _hint(each)
        is_refused |= bool(hint) and getattr(each, "errno", 0) in _REFUSED and not hint.startswith(_PERMISSIONS)
        if hint and hint not in _explained:
            _explained.add(hint)
            Logger.log_warn(f"sandbox of '{_instance}': {each}. {hint}")
            break
    return is_refused


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
        # Or it may start none: older CPythons lose the number of the error of ``os.fork``, and give this one.
        return (
            "Set SANDBOX_SUBPROCESSES in the model's parameters to let it start processes, SANDBOX_PROCESSES if it may "
            "and needs more of them"
        )
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
        makes_directory = bool(functions & {"mkdir", "makedirs"}) or "mkdir(" in last_line
        return _about_file(os.path.abspath(os.fsdecode(error.filename)), makes_directory=makes_directory)
    # A function written in C, which appears in no traceback.
    return (
        "Set SANDBOX_SUBPROCESSES in the model's parameters to let it start processes; anything else that the kernel "
        "refuses needs another level of SANDBOX"
    )


def _about_file(path: str, *, makes_directory: bool) -> str:
    """Tell a refusal by file permissions, which no option overrides, from one by the sandbox, whose rules ``access`` does not see."""
    user = f"user {os.geteuid()}"
    for way in reversed(list(_parents(path))):
        if not os.access(way, os.X_OK) and os.path.lexists(way):
            return f"{_PERMISSIONS}: {user} cannot enter {way}. Its owner can open it: `chmod o+x {way}`"
    known = path if os.path.lexists(path) else os.path.dirname(path)
    if not os.access(known, os.R_OK):
        return f"{_PERMISSIONS}: {user} cannot read {known}. Its owner can open it: `chmod o+r {known}`"
    place = os.path.realpath(path if makes_directory else known)
    missed = next((each for each in _named_for_writing() if known != path and _is_one_in_other(place, each)), "")
    if missed:
        return (
            f"SANDBOX_WRITE in the model's parameters names {missed}, which did not exist when the model was loaded: "
            "create the directory first, and load the model again"
        )
    if known != path and os.access(known, os.W_OK):
        return f'Set SANDBOX_WRITE to "{place}" in the model\'s parameters to let it write there'
    if os.access(known, os.W_OK):
        return "Set SANDBOX_READ in the model's parameters to let it read that path, SANDBOX_WRITE to let it change it"
    return (
        "Set SANDBOX_READ in the model's parameters to let it read that path. "
        f"File permissions keep {user} from changing {known}, whatever the parameters say"
    )


def _named_for_writing() -> "List[str]":
    import json  # only refusals need it

    named = json.loads(_configuration).get("parameters", {}).get("SANDBOX_WRITE", {}).get("string_value", "")
    return [os.path.realpath(each) for each in named.split(":") if os.path.isabs(each)]


def _is_one_in_other(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return os.path.join(longer, "").startswith(os.path.join(shorter, ""))


def _parents(path: str) -> "Iterator[str]":
    """Every directory above a path, and above the place that its links lead to, from the lowest."""
    for start in (path, os.path.realpath(path)):
        while os.path.dirname(start) != start:
            start = os.path.dirname(start)
            yield start
