"""What the kernel says about a process that says that it is confined."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pybackend_wire.confinement import Confinement

_SECCOMP_FILTER = "2"


def contradictions(pid: int, confinement: Confinement, report: Mapping[str, str]) -> str:
    """Where the kernel contradicts the report of a process; ``""`` if nowhere.

    Files cannot be seen from outside: the process itself tries one that it must not reach, before it runs the model's code.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""  # it is gone, which its end will say
    status = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    wrong = []
    if confinement.uid >= 0 and not report.get("uid"):
        if set(status.get("Uid", ())) != {str(confinement.uid)} or set(status.get("Gid", ())) != {str(confinement.gid)}:
            wrong.append("it runs as another user")
        if status.get("Groups"):
            wrong.append("it belongs to groups")
    if not report.get("capabilities") and any(set("".join(status.get(name, ()))) != {"0"} for name in _CAPABILITIES):
        wrong.append("it has privileges")
    if not report.get("no_new_privileges") and status.get("NoNewPrivs") != ["1"]:
        wrong.append("it can get privileges")
    if not report.get("system_calls") and status.get("Seccomp") != [_SECCOMP_FILTER]:
        wrong.append("its system calls are not filtered")
    return ", ".join(wrong)


_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
