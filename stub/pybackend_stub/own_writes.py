"""Tells the host which files beside its code a model writes: a server that follows the files does not take them for changes.

Python's own functions announce what they are about to do to audit hooks. Libraries in C that open files by themselves do not.
"""

import os
import sys
from contextlib import suppress
from typing import Any, Dict, Sequence, Set, Tuple

from pybackend_stub.channel import HostChannel, HostGone
from pybackend_wire.stub_messages import Wrote

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_PATHS: "Dict[str, Tuple[int, ...]]" = {
    "open": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.truncate": (0,), "os.link": (1,), "os.symlink": (1,),
    "sqlite3.connect": (0,),
}  # fmt: skip
"""By event: which of its arguments are the paths of files that change."""

_MOST_TOLD = 1000
_LONGEST_PATH = 4096


def tell_own_writes(channel: HostChannel, directory: str) -> None:
    """Tell the host from now on of files below a directory that this process, not one that it forks, is about to change."""
    top = os.path.join(os.path.realpath(directory), "")
    told: Set[str] = set()

    def tell(path: Any) -> None:
        if isinstance(path, int):  # a descriptor, which was told when it was opened
            return
        where, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        whole = os.path.join(os.path.realpath(where), name)
        if whole.startswith(top) and whole not in told and len(whole) < _LONGEST_PATH and not channel.is_inherited():
            if len(told) >= _MOST_TOLD:
                told.clear()
            told.add(whole)
            channel.say(Wrote(whole[len(top) :].encode("utf-8", "replace").decode()))

    def hook(event: str, arguments: "Sequence[Any]") -> None:
        places = _PATHS.get(event)
        if places is None or (event == "open" and not arguments[2] & _WRITES):
            return
        # The model's own call says what is wrong with the path.
        with suppress(HostGone, OSError, TypeError, ValueError):
            for place in places:
                tell(arguments[place])

    sys.addaudithook(hook)
