"""What a hostile model tries, and what becomes of it: the data of the attack tests, and of the page about security."""

from __future__ import annotations

from dataclasses import dataclass, field

STOPPED, ALLOWED, IMPOSSIBLE = "stopped", "allowed", "not stopped"
"""ALLOWED is by design: honest models do it. IMPOSSIBLE is what a process cannot be kept from by what this sandbox consists of."""

STANDARD, STRICT = "standard", "strict"

OWN, USER, SHARED = "own user", "server's user", "superuser"
"""Whom a model's process runs as: a user of its own, because the server is root; the server's, which is not root; or root, because
its interpreter or its files cannot be reached by others."""


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: of the function that tries it.
        what: in words, as the end of "A model tries to ...".
        by: what stops it, where it is stopped.
        otherwise: what becomes of it where it is not stopped: by level, or by level and whom the process runs as.
    """

    name: str
    what: str
    by: str
    otherwise: dict[str | tuple[str, str], str] = field(default_factory=dict)

    def verdict(self, level: str, who: str) -> str:
        """What becomes of it."""
        return self.otherwise.get((level, who)) or self.otherwise.get(level) or STOPPED


AT_STANDARD = {STANDARD: ALLOWED}
ALWAYS = {STANDARD: IMPOSSIBLE, STRICT: IMPOSSIBLE}
NOT_AS_ITSELF = {(STANDARD, USER): IMPOSSIBLE, (STANDARD, SHARED): IMPOSSIBLE}

GROUPS: dict[str, tuple[Attack, ...]] = {
    "Files": (
        Attack("read_shadow", "read /etc/shadow", "Landlock, own user"),
        Attack("read_passwd", "read /etc/passwd", "Landlock", AT_STANDARD),
        Attack("read_keys", "read keys and tokens in the operator's home directory", "Landlock, own user"),
        Attack("read_other_model", "read another model's files", "Landlock"),
        Attack("write_other_model", "change another model's files", "Landlock, own user"),
        Attack(
            "chmod_other_model",
            "change permissions of another model's files",
            "own user; seccomp at strict",
            NOT_AS_ITSELF,
        ),
        Attack(
            "write_own_model",
            "change its own model directory",
            "Landlock, own user",
            {(STANDARD, USER): ALLOWED, (STANDARD, SHARED): ALLOWED},
        ),
        Attack("poison_environment", "add a file to its environment's packages", "Landlock, own user"),
        Attack("poison_runner", "change the code that runs models", "Landlock, own user"),
        Attack("write_start_file", "add a line to the operator's ~/.bashrc", "Landlock, own user"),
        Attack("write_tmp", "write to /tmp", "Landlock", AT_STANDARD),
        Attack("symlink_escape", "reach a hidden file by a symbolic link", "Landlock"),
        Attack("hardlink_escape", "reach a hidden file by a hard link", "Landlock"),
        Attack("proc_root_escape", "reach a hidden file by /proc/self/root", "Landlock"),
        Attack("stat_hidden_file", "learn size and times of a hidden file", "", ALWAYS),
        Attack("read_disk", "read a disk's or the machine's memory's device", "Landlock, no privileges"),
        Attack("make_device", "make a device file", "seccomp, no privileges"),
        Attack("write_sysctl", "change a setting of the kernel", "Landlock, no privileges"),
        Attack("write_cgroup", "change its control group", "Landlock, no privileges"),
    ),
    "Processes": (
        Attack("list_processes", "list the machine's processes", "Landlock", AT_STANDARD),
        Attack("read_host_environ", "read the server's environment variables", "Landlock, own user"),
        Attack("open_host_memory", "open the server's memory", "Landlock, own user"),
        Attack("read_host_memory", "read the server's memory by process_vm_readv", "seccomp, own user"),
        Attack("trace_host", "trace the server", "seccomp, own user"),
        Attack("steal_host_descriptor", "take a descriptor of the server's", "seccomp, own user"),
        Attack("open_host_descriptor", "open a descriptor of the server's by /proc", "Landlock, own user"),
        Attack("signal_host", "send a signal to the server", "Landlock, own user"),
        Attack("signal_other_model", "send a signal to another model", "Landlock, own user"),
        Attack("open_other_memory", "open another model's memory", "Landlock, own user"),
        Attack("limit_host", "change the server's resource limits", "seccomp, own user"),
        Attack("slow_host", "lower the server's priority", "seccomp, own user"),
        Attack("slow_user", "lower the priority of all processes of its user", "seccomp"),
        Attack(
            "pin_host", "bind the server to one core", "own user; seccomp at strict", {(STANDARD, USER): IMPOSSIBLE}
        ),
        Attack("inherited_descriptors", "use descriptors that the server has left open", "all are closed but its own"),
        Attack("run_shell", "run a program of the system", "seccomp, Landlock", AT_STANDARD),
        Attack("run_own_python", "run its own Python again", "seccomp", AT_STANDARD),
        Attack("run_written_file", "run a file that it has written", "seccomp, Landlock", AT_STANDARD),
        Attack("run_setuid_program", "get the rights of a setuid program", "no_new_privs"),
        Attack("become_root", "become root", "no privileges"),
        Attack(
            "map_executable_memory",
            "map memory that can be written and executed",
            "",
            {STANDARD: ALLOWED, STRICT: ALLOWED},
        ),
    ),
    "Network and sockets": (
        Attack("tcp_connect", "connect to a TCP port", "seccomp, Landlock", AT_STANDARD),
        Attack("tcp_listen", "listen on a TCP port", "seccomp, Landlock", AT_STANDARD),
        Attack("udp_send", "send a UDP datagram", "seccomp", AT_STANDARD),
        Attack("unix_path", "connect to a socket file whose permissions let it", "seccomp", AT_STANDARD),
        Attack("unix_datagram_pair", "redirect a pair of datagram sockets to a socket file", "seccomp", AT_STANDARD),
        Attack("unix_abstract", "connect to an abstract socket of another process", "Landlock"),
        Attack("netlink_events", "listen to the kernel's device events", "seccomp"),
        Attack("netlink_audit", "speak to the kernel's audit system", "seccomp"),
        Attack("raw_socket", "open a raw network socket", "no privileges; seccomp at strict"),
        Attack("packet_socket", "listen to the machine's network traffic", "seccomp, no privileges"),
        Attack("vsock", "speak to the hypervisor", "seccomp"),
    ),
    "The kernel": (
        Attack("mount", "mount a file system", "seccomp, no privileges"),
        Attack("unshare_user", "make a user namespace", "seccomp"),
        Attack("clone_user", "make a process in a user namespace", "seccomp"),
        Attack("bpf", "load a program into the kernel", "seccomp"),
        Attack("keyring", "use the kernel's keyrings", "seccomp"),
        Attack("io_uring", "use io_uring, around filters of system calls", "seccomp"),
        Attack("perf_events", "observe the kernel by performance counters", "seccomp"),
        Attack("userfaultfd", "handle page faults itself", "seccomp"),
        Attack("x32_calls", "use another machine's numbers of system calls", "seccomp"),
    ),
    "Resources": (
        Attack(
            "fork_bomb",
            "start processes without end",
            "resource limit of its user; seccomp at strict",
            {(STANDARD, SHARED): IMPOSSIBLE},
        ),
        Attack("memory_bomb", "take private memory without end", "resource limit"),
        Attack("memory_file", "take shared memory without end", "resource limit at strict", {STANDARD: IMPOSSIBLE}),
        Attack("large_file", "write a file without end", "resource limit at strict", {STANDARD: IMPOSSIBLE}),
        Attack("open_files", "open files without end", "resource limit"),
        Attack("raise_limits", "raise its own limits", "no privileges"),
        Attack("raise_priority", "raise its own priority", "no privileges"),
        Attack("memory_pressure", "have the server ended before it when memory runs out", "Landlock, no privileges"),
        Attack("leave_shared_memory", "leave System V shared memory behind", "seccomp"),
        Attack("leave_message_queue", "leave a message queue behind", "seccomp, resource limit"),
    ),
    "Secrets": (
        Attack(
            "own_environment",
            "read secrets in environment variables of the server",
            "scrubbed environment",
            AT_STANDARD,
        ),
    ),
}

ATTACKS = {attack.name: attack for group in GROUPS.values() for attack in group}


def rows() -> list[str]:
    """The table as lines of Markdown."""
    lines = []
    for title, attacks in GROUPS.items():
        lines += [f"### {title}", "", "| A model tries to | `standard` | `strict` | Stopped by |", "|---|---|---|---|"]
        for attack in attacks:
            cells = [attack.what, _cell(attack, STANDARD), _cell(attack, STRICT), attack.by or "nothing"]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def _cell(attack: Attack, level: str) -> str:
    verdicts = {who: attack.verdict(level, who) for who in (OWN, USER, SHARED)}
    if len(set(verdicts.values())) == 1:
        return _mark(verdicts[OWN])
    others = [f"as {who}: {_mark(verdict)}" for who, verdict in verdicts.items() if verdict != verdicts[OWN]]
    return f"{_mark(verdicts[OWN])}; {'; '.join(others)}"


def _mark(verdict: str) -> str:
    return verdict if verdict == STOPPED else f"**{verdict}**" if verdict == IMPOSSIBLE else f"*{verdict}*"
