"""The confinement of a model's process: the host decides it, the process applies it to itself and reports the result.

The host makes a :class:`Confinement` for every process, which travels as JSON. ``pybackend_stub.sandbox.confine``
applies it before any code of the model runs, and returns a report: one entry for every layer in :data:`LAYERS`, empty
if the layer is in force, otherwise the reason why it is not.
"""

import json
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

OFF, STANDARD, STRICT = "off", "standard", "strict"
LEVELS = (OFF, STANDARD, STRICT)
"""From weakest to strongest."""

LAYERS = {
    "descriptors": "it has only its own descriptors",
    "limits": "its processes, files and memory are limited",
    "memory_pressure": "the kernel kills it before the host when memory runs out",
    "uid": "it runs as a separate user",
    "capabilities": "it has no privileges",
    "parent": "it dies with the host",
    "no_new_privileges": "it cannot gain privileges by running a program",
    "memory": "other processes of its user cannot read its memory",
    "files": "it can reach only permitted files",
    "neighbours": "it cannot reach the files of other models or of the server",
    "signals": "it can signal only processes that it started, and cannot use abstract socket names of others",
    "system_calls": "it can use only the parts of the kernel that models need",
}
"""Every layer, with its effect on a process while it is in force."""

NOT_CONFINED, CONFINED, CONFINED_AND_HIDES = "-1", "-2", "-3"
"""Used in place of the confinement's descriptor: the process is not confined; it is already confined; it is already
confined and must still hide its memory."""

READ, EXECUTE, WRITE, DEVICE, LIST = "r", "x", "w", "d", "l"
"""Access of a process to a path and everything below it; letters can be combined in one word."""

TREE, WHOLE = "tree", "whole"
"""Kinds of offers: directories with a link to each file, so that others can lie beside it; or one link."""


class Confinement(NamedTuple):
    """The permissions of one process. All values are plain, so that it can travel as JSON."""

    level: str
    # pairs of a path and access letters; all other paths are unreachable. A path that does not exist or contains a
    # symbolic link is left out.
    paths: "Sequence[Sequence[str]]"
    limits: "Dict[str, int]"  # soft and hard limit by name, which is that of ``resource.RLIMIT_...`` without the prefix
    variables: "Dict[str, Optional[str]]"  # environment variables to set; None removes one
    missing: "Dict[str, str]"  # layers that the host left out, with reasons; they are part of the report
    required: "Sequence[str]" = ()  # layers without which the process must not continue
    uid: int = -1  # the user to change to, -1 to stay
    gid: int = -1  # the group to change to, -1 to stay
    umask: int = -1  # for new files, -1 to leave it
    network: bool = True
    unix_sockets: bool = True  # whether sockets with a path are allowed
    # if not 0: it accepts connections on sockets that it is given, may have so many wait there, and may use sockets for
    # nothing else
    backlog: int = 0
    subprocesses: bool = True  # whether it may start processes; threads are always allowed
    # whether it may change the permissions of files. Landlock does not control that: if the user is shared, only this
    # prevents a process from changing the files of other processes.
    changes_modes: bool = True
    oom_score_adj: int = 0  # minimum value, 0 to leave it
    scrubbed: bool = False  # whether to withhold the host's environment variables
    canary: str = ""  # a world-readable file that this process must fail to open; empty for none
    # number of users and groups, counted from ``uid``, that it may change to later; this is the only privilege it
    # keeps. Used only for a process that forks models' processes: each fork gives the privilege up for itself.
    users: int = 0
    # what to link into its home: triples of a path outside, a path in the home, and ``TREE`` or ``WHOLE``
    offers: "Sequence[Sequence[str]]" = ()

    def to_json(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: "Any") -> "Confinement":
        return cls(**json.loads(text))

    def environment(self, inherited: "Mapping[str, str]") -> "Dict[str, str]":
        """Return the environment to start the process with, derived from its unconfined environment.

        It must be right from the start: a process can read its initial environment as long as it lives.
        """
        variables = {} if self.scrubbed else dict(inherited)
        for name, value in self.variables.items():
            if value is None:
                variables.pop(name, None)
            else:
                variables[name] = value
        return variables


def hides_memory(confinement: Confinement, report: "Mapping[str, str]") -> bool:
    """Whether to prevent other processes of the same user from inspecting a process.

    The operator's tools keep access at ``standard`` if another layer keeps models out.
    """
    protected = not report["uid"] or not report["files"]
    return confinement.level == STRICT or not protected


class Ending(NamedTuple):
    """How a program ended."""

    # its exit status, negative for a signal; None if it was killed because its time ran out or the host gave up
    status: Optional[int]
    left: int  # number of processes that it left behind, which were killed


LIBRARY_PATH = "PYBACKEND_LIBRARY_PATH"
"""Holds the same value as ``LD_LIBRARY_PATH`` if the host has set that."""


def forget_library_path() -> None:
    """Let system programs that a model starts load the system's libraries; our own loader has read the variable."""
    own = os.environ.pop(LIBRARY_PATH, None)
    if own is not None and os.environ.get("LD_LIBRARY_PATH") == own:
        del os.environ["LD_LIBRARY_PATH"]
