"""How the process of a model is confined: what the host decides, the process does to itself, and says that it has done.

The host makes a :class:`Confinement` for every process; it travels as JSON. ``pybackend_stub.sandbox.confine`` carries it
out before any code of the model runs, and answers with a report: one entry for every layer in :data:`LAYERS`, empty where it
is in force, else why it is not.
"""

import json
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

OFF, STANDARD, STRICT = "off", "standard", "strict"
LEVELS = (OFF, STANDARD, STRICT)
"""From the weakest to the strongest."""

LAYERS = {
    "descriptors": "it has no descriptors but its own",
    "limits": "bounds of its processes, files and memory",
    "memory_pressure": "the kernel ends it before the host when memory runs out",
    "uid": "it runs as a user of its own",
    "capabilities": "it has no privileges",
    "parent": "it ends with the host",
    "no_new_privileges": "it cannot get privileges by running a program",
    "memory": "other processes of its user cannot read its memory",
    "files": "it reaches only the files that it may",
    "neighbours": "the files of other models, and of the server, are not among those",
    "signals": "it signals only processes that it has started, and uses no socket names of others",
    "system_calls": "it uses only those parts of the kernel that models need",
}
"""Every layer, with what holds for a process while it is in force."""

READ, EXECUTE, WRITE, DEVICE, LIST = "r", "x", "w", "d", "l"
"""What a process may do below a path; several letters in one word."""


class Confinement(NamedTuple):
    """What one process may do. All values are plain, so that the whole is JSON.

    Attributes:
        level: ``standard`` or ``strict``.
        paths: pairs of a path and letters; nothing else is reached. A path that is not there is left out.
        limits: by the names of ``resource.RLIMIT_...`` without that; soft and hard.
        variables: of the environment, None to take one away.
        left_out: layers that the host has left out, and why: they are part of the report.
        required: layers without which the process must not go on.
        uid: the user to become, -1 to stay.
        gid: the group to become, -1 to stay.
        umask: for new files, -1 to leave it.
        network: sockets of the internet protocols.
        unix_sockets: sockets with a path.
        subprocesses: processes beside the first one; threads are always possible.
        changes_modes: permissions of files may be changed. Landlock does not watch that: where the user is shared with
            others, only a process that does without is kept from changing theirs.
        oom_score_adj: least value, 0 to leave it.
        scrubbed: nothing of the host's environment is inherited.
        canary: a file that anybody may read and this process must fail to open; empty for none.
        users: how many users and groups it may change into later on, from ``uid`` on; that is all it keeps of its
            privileges. Only for what forks the processes of models: each of those gives it up for itself.
    """

    level: str
    paths: "Sequence[Sequence[str]]"
    limits: "Dict[str, int]"
    variables: "Dict[str, Optional[str]]"
    left_out: "Dict[str, str]"
    required: "Sequence[str]" = ()
    uid: int = -1
    gid: int = -1
    umask: int = -1
    network: bool = True
    unix_sockets: bool = True
    subprocesses: bool = True
    changes_modes: bool = True
    oom_score_adj: int = 0
    scrubbed: bool = False
    canary: str = ""
    users: int = 0

    def to_json(self) -> str:
        """For the way to the process."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: "Any") -> "Confinement":
        """What :meth:`to_json` made."""
        return cls(**json.loads(text))

    def environment(self, inherited: "Mapping[str, str]") -> "Dict[str, str]":
        """The environment that the process is to be started with, from what it would have without being confined.

        It counts from the start: a process can read what it was started with for as long as it lives.
        """
        variables = {} if self.scrubbed else dict(inherited)
        for name, value in self.variables.items():
            if value is None:
                variables.pop(name, None)
            else:
                variables[name] = value
        return variables
