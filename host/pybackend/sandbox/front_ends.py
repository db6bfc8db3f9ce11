"""The sandbox of a front end: a process that reads strangers' bytes, and needs nothing but sockets that it is given."""

import os
import resource
from collections.abc import Mapping

from pybackend.sandbox.options import machine_memory_bytes
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.users import NoUsersError
from pybackend.sandbox.verification import contradictions
from pybackend_wire.confinement import LAYERS, STRICT, Confinement

_NOT_CHANGED = -1

_THREADS = 64
"""The most threads of its user, if no other process has that; it starts none itself."""

_OOM_SCORE_ADJ = 500


class FrontEndSandbox:
    """The sandbox of one front end, and of its successors.

    It reaches no file and no address, starts nothing, and runs as a separate user where the server can give it one.
    ``backlog`` is how many connections wait in its listening sockets.

    Attributes:
        missing: layers that are not in force, with reasons, as the latest process has reported.
    """

    def __init__(self, sandbox: Sandbox, name: str, backlog: int) -> None:
        self._sandbox = sandbox
        self._name = name
        self.missing: dict[str, str] = {}
        self._uid = self._gid = _NOT_CHANGED
        missing: dict[str, str] = {}
        if os.geteuid() == 0:
            try:
                self._uid = sandbox.users.take()
                self._gid = self._uid
            except NoUsersError as error:
                missing["uid"] = str(error)
        limits = {
            "CORE": 0,
            "MSGQUEUE": 0,
            "NOFILE": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "DATA": machine_memory_bytes() // 2,
        }
        if self._uid != _NOT_CHANGED:
            limits["NPROC"] = _THREADS
        self.confinement = Confinement(
            level=STRICT,
            paths=(),
            limits=limits,
            variables={},
            missing=missing,
            required=[layer for layer in LAYERS if layer != "uid" or os.geteuid() == 0]
            if sandbox.settings.required
            else (),
            uid=self._uid,
            gid=self._gid,
            network=False,
            unix_sockets=False,
            backlog=backlog,
            subprocesses=False,
            changes_modes=False,
            oom_score_adj=_OOM_SCORE_ADJ,
            scrubbed=True,
            canary=sandbox.canary(),
        )

    def check(self, pid: int, report: Mapping[str, str]) -> str:
        """The reason why a process must not serve, as a clause; ``""`` if it may.

        Layers that are not in force are logged once.
        """
        wrong = contradictions(pid, self.confinement, report, 1)
        if wrong:
            return f"it is not confined as it reports: {wrong}"
        missing = {layer: report.get(layer, "it was not reported") for layer in LAYERS}
        self.missing = {layer: reason for layer, reason in missing.items() if reason}
        if os.geteuid() != 0:
            self.missing.pop("uid", None)
        self._sandbox.tell(self._name, self.missing)
        return ""

    def close(self) -> None:
        """Its last process has ended."""
        if self._uid != _NOT_CHANGED:
            self._sandbox.users.give_back(self._uid)
            self._uid = _NOT_CHANGED
