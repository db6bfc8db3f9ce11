"""Attacks of a hostile model and their outcomes: the data of the attack tests and of the page about attacks."""

from dataclasses import dataclass, field

STOPPED, ALLOWED, IMPOSSIBLE = "stopped", "allowed", "not stopped"
"""ALLOWED is by design, because honest models do it. IMPOSSIBLE cannot be prevented with the means of this sandbox."""

STANDARD, STRICT = "standard", "strict"

OWN, USER, SHARED = "own user", "server's user", "superuser"
"""The user of a model's process: a separate one, if the server is root; the server's, if it is not root; or root, if
other users cannot reach the interpreter or the model's files."""


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: name of the function that tries it.
        what: the end of the sentence "A model tries to ...".
        by: the layers that stop it.
        otherwise: outcomes other than being stopped, by level, or by level and the process's user.
    """

    name: str
    what: str
    by: str
    otherwise: dict[str | tuple[str, str], str] = field(default_factory=dict)

    def verdict(self, level: str, who: str) -> str:
        return self.otherwise.get((level, who)) or self.otherwise.get(level) or STOPPED


AT_STANDARD = {STANDARD: ALLOWED}
ALWAYS = {STANDARD: IMPOSSIBLE, STRICT: IMPOSSIBLE}
NOT_AS_ITSELF = {(STANDARD, USER): IMPOSSIBLE, (STANDARD, SHARED): IMPOSSIBLE}

GROUPS: dict[str, tuple[Attack, ...]] = {
    "Files": (
        Attack("read_shadow", "read /etc/shadow", "Landlock, own user"),
        Attack("read_passwd", "read /etc/passwd", "Landlock", AT_STANDARD),
        Attack("read_keys", "read keys and tokens in the operator's home directory", "Landlock, own user"),
        Attack("read_token", "read the operator's token of Hugging Face", "Landlock, own user"),
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
        Attack("symlink_escape", "reach a hidden file through a symbolic link", "Landlock"),
        Attack("hardlink_escape", "reach a hidden file through a hard link", "Landlock"),
        Attack("proc_root_escape", "reach a hidden file through /proc/self/root", "Landlock"),
        Attack("stat_hidden_file", "learn size and times of a hidden file", "", ALWAYS),
        Attack(
            "watch_hidden_file",
            "learn when a hidden file is used, and its name",
            "seccomp at strict",
            {STANDARD: IMPOSSIBLE},
        ),
        Attack(
            "list_hidden_attributes",
            "read extended attributes of a hidden file",
            "seccomp at strict",
            {STANDARD: IMPOSSIBLE},
        ),
        Attack("read_disk", "read the device of a disk or of the machine's memory", "Landlock, no privileges"),
        Attack("make_device", "make a device file", "seccomp, no privileges"),
        Attack("write_sysctl", "change a kernel setting", "Landlock, no privileges"),
        Attack("write_cgroup", "change its control group", "Landlock, no privileges"),
    ),
    "Processes": (
        Attack("list_processes", "list the machine's processes", "Landlock", AT_STANDARD),
        Attack("read_host_environ", "read the server's environment variables", "Landlock, own user"),
        Attack("open_host_memory", "open the server's memory", "Landlock, own user"),
        Attack("read_host_memory", "read the server's memory with process_vm_readv", "seccomp, own user"),
        Attack("trace_host", "trace the server", "seccomp, own user"),
        Attack("steal_host_descriptor", "take one of the server's descriptors", "seccomp, own user"),
        Attack("open_host_descriptor", "open one of the server's descriptors through /proc", "Landlock, own user"),
        Attack("signal_host", "send a signal to the server", "Landlock, own user"),
        Attack("signal_other_model", "send a signal to another model", "Landlock, own user"),
        Attack("open_other_memory", "open another model's memory", "Landlock, own user"),
        Attack("limit_host", "change the server's resource limits", "seccomp, own user"),
        Attack("slow_host", "lower the server's priority", "seccomp, own user"),
        Attack("slow_user", "lower the priority of all processes of its user", "seccomp"),
        Attack("pin_host", "bind the server to one core", "seccomp, own user"),
        Attack("reschedule_host", "change the server's scheduling class", "seccomp, own user"),
        Attack("outlive_host", "continue to run after the server has ended", "seccomp"),
        Attack("change_mark", "lose the mark by which the server finds the processes that it started", "seccomp"),
        Attack("open_terminal", "open a terminal, to read its input", "Landlock"),
        Attack("make_terminal", "make a terminal", "Landlock"),
        Attack("inherited_descriptors", "use descriptors that the server left open", "all but its own are closed"),
        Attack("run_shell", "run a program of the system", "seccomp, Landlock", AT_STANDARD),
        Attack("run_own_python", "run its own Python again", "seccomp", AT_STANDARD),
        Attack("run_written_file", "run a file that it wrote", "seccomp, Landlock", AT_STANDARD),
        Attack("run_setuid_program", "get the rights of a setuid program", "no_new_privs"),
        Attack("become_root", "become root", "no privileges"),
        Attack(
            "map_executable_memory",
            "map memory that is writable and executable",
            "",
            {STANDARD: ALLOWED, STRICT: ALLOWED},
        ),
    ),
    "Network and sockets": (
        Attack("tcp_connect", "connect to a TCP port", "seccomp, Landlock", AT_STANDARD),
        Attack("tcp_listen", "listen on a TCP port", "seccomp, Landlock", AT_STANDARD),
        Attack("udp_send", "send a UDP datagram", "seccomp", AT_STANDARD),
        Attack("unix_path", "connect to a socket file with sufficient permissions", "seccomp", AT_STANDARD),
        Attack("unix_datagram_pair", "redirect a pair of datagram sockets to a socket file", "seccomp", AT_STANDARD),
        Attack("unix_abstract", "connect to an abstract socket of another process", "Landlock"),
        Attack("netlink_events", "listen to the kernel's device events", "seccomp"),
        Attack("netlink_audit", "talk to the kernel's audit system", "seccomp"),
        Attack("raw_socket", "open a raw network socket", "no privileges; seccomp at strict"),
        Attack("packet_socket", "listen to the machine's network traffic", "seccomp, no privileges"),
        Attack("vsock", "talk to the hypervisor", "seccomp"),
    ),
    "The kernel": (
        Attack("mount", "mount a file system", "seccomp, no privileges"),
        Attack("unshare_user", "make a user namespace", "seccomp"),
        Attack("clone_user", "make a process in a user namespace", "seccomp"),
        Attack("bpf", "load a program into the kernel", "seccomp"),
        Attack("keyring", "use the kernel's keyrings", "seccomp"),
        Attack("io_uring", "use io_uring to bypass system-call filters", "seccomp"),
        Attack("perf_events", "observe the kernel through performance counters", "seccomp"),
        Attack("userfaultfd", "handle page faults itself", "seccomp"),
        Attack("answer_filter", "answer the kernel in place of the system-call filter", "seccomp"),
        Attack("x32_calls", "use the system-call numbers of another architecture", "seccomp"),
    ),
    "Resources": (
        Attack(
            "fork_bomb",
            "start an unlimited number of processes",
            "resource limit of its user; seccomp at strict",
            {(STANDARD, SHARED): IMPOSSIBLE},
        ),
        Attack("memory_bomb", "take unlimited private memory", "resource limit"),
        Attack("memory_file", "take unlimited shared memory", "resource limit at strict", {STANDARD: IMPOSSIBLE}),
        Attack("large_file", "write a file of unlimited size", "resource limit at strict", {STANDARD: IMPOSSIBLE}),
        Attack("open_files", "open an unlimited number of files", "resource limit"),
        Attack("raise_limits", "raise its own limits", "no privileges"),
        Attack("raise_priority", "raise its own priority", "no privileges"),
        Attack(
            "memory_pressure", "make the kernel end the server first when memory runs out", "Landlock, no privileges"
        ),
        Attack("leave_shared_memory", "leave System V shared memory behind", "seccomp"),
        Attack("use_semaphores", "use System V semaphores of other programs", "seccomp"),
        Attack("leave_message_queue", "leave a message queue behind", "seccomp, resource limit"),
    ),
    "Secrets": (
        Attack(
            "own_environment",
            "read secrets in the server's environment variables",
            "scrubbed environment",
            AT_STANDARD,
        ),
        Attack("read_diagnostics_key", "read the key to the server's diagnostics", "Landlock, own user"),
        Attack(
            "ask_diagnostics",
            "read other models' log lines and configuration files from the server's own port",
            "a key that no model can read",
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
