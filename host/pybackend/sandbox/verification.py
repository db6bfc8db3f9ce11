"""Checks a process's report about its confinement against the kernel's view."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pybackend_wire.confinement import Confinement

_SECCOMP_FILTER = "2"


def contradictions(pid: int, confinement: Confinement, report: Mapping[str, str], filters: int) -> str:
    """Describe how the kernel contradicts the report of a process; ``""`` if it does not.

    Args:
        filters: number of system call filters that it must have loaded.

    File access cannot be seen from outside: the process itself tries to open a forbidden file, before it runs the
    model's code.
    """
    try:
        status = _status_of(pid)
    except OSError:
        return ""  # it is gone, and its end will be reported
    wrong = []
    if confinement.uid >= 0 and not report.get("uid"):
        if set(status.get("Uid", ())) != {str(confinement.uid)} or set(status.get("Gid", ())) != {str(confinement.gid)}:
            wrong.append("it runs as another user")
        if status.get("Groups"):
            wrong.append("it belongs to groups")
    privileges = _CHANGE_OF_USER if confinement.users else 0
    if not report.get("capabilities") and any(
        int(status.get(name, ["0"])[0], 16) != privileges for name in _CAPABILITIES
    ):
        wrong.append("it has privileges")
    if not report.get("no_new_privileges") and status.get("NoNewPrivs") != ["1"]:
        wrong.append("it can gain privileges")
    if not report.get("system_calls") and status.get("Seccomp") != [_SECCOMP_FILTER]:
        wrong.append("its system calls are not filtered")
    elif not report.get("system_calls") and "Seccomp_filters" in status and _filters(status) - _own_filters() < filters:
        wrong.append("not all of its system calls are filtered")
    return ", ".join(wrong)


def _status_of(pid: int | str) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def _filters(status: Mapping[str, list[str]]) -> int:
    return int(status["Seccomp_filters"][0])


@cache
def _own_filters() -> int:
    """Count the filters of the container around this server, which its processes inherit; the server adds none."""
    return _filters(_status_of("self"))


_CHANGE_OF_USER = 1 << 6 | 1 << 7
"""The bits of ``CAP_SETGID`` and ``CAP_SETUID``."""

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
