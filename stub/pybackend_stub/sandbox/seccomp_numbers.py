"""System call numbers by machine: calls that no model may use, and calls whose arguments are checked."""

from typing import Dict, NamedTuple

_FOR_NOBODY_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305, "clock_settime": 227,
    "delete_module": 176, "fanotify_init": 300, "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430,
    "fspick": 433, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
    "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "migrate_pages": 256, "modify_ldt": 154, "mount": 165, "mount_setattr": 442, "move_mount": 429,
    "mq_open": 240, "mq_unlink": 241, "msgctl": 71, "msgget": 68, "msgrcv": 70, "msgsnd": 69, "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428, "open_tree_attr": 467,
    "perf_event_open": 298, "personality": 135, "pidfd_getfd": 438, "pivot_root": 155, "process_madvise": 440,
    "process_mrelease": 448, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
    "quotactl_fd": 443, "reboot": 169, "request_key": 249, "semctl": 66, "semget": 64, "semop": 65, "semtimedop": 220, "setdomainname": 171, "sethostname": 170,
    "setns": 308, "settimeofday": 164, "shmat": 30, "shmctl": 31, "shmget": 29, "swapoff": 168, "swapon": 167,
    "syslog": 103, "umount2": 166, "unshare": 272, "userfaultfd": 323, "vhangup": 153,
}  # fmt: skip

_FOR_NOBODY_AARCH64 = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266, "clock_settime": 112,
    "delete_module": 106, "fanotify_init": 262, "finit_module": 273, "fsconfig": 431, "fsmount": 432, "fsopen": 430,
    "fspick": 433, "init_module": 105, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
    "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18, "migrate_pages": 238,
    "mount": 40, "mount_setattr": 442, "move_mount": 429, "mq_open": 180, "mq_unlink": 181, "msgctl": 187, "msgget": 186, "msgrcv": 188, "msgsnd": 189, "nfsservctl": 42,
    "open_by_handle_at": 265, "open_tree": 428, "open_tree_attr": 467, "perf_event_open": 241, "personality": 92,
    "pidfd_getfd": 438, "pivot_root": 41, "process_madvise": 440, "process_mrelease": 448, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "quotactl_fd": 443, "reboot": 142, "request_key": 218,
    "semctl": 191, "semget": 190, "semop": 193, "semtimedop": 192, "setdomainname": 162, "sethostname": 161, "setns": 268, "settimeofday": 170, "shmat": 196,
    "shmctl": 195, "shmget": 194, "swapoff": 225, "swapon": 224, "syslog": 116, "umount2": 39, "unshare": 97,
    "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip

_MODES_X86_64 = {
    "chmod": 90, "chown": 92, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "fchown": 93, "fchownat": 260,
    "file_setattr": 469, "fremovexattr": 199, "fsetxattr": 190, "futimesat": 261, "lchown": 94, "lremovexattr": 198, "lsetxattr": 189,
    "removexattr": 197, "removexattrat": 466, "setxattr": 188, "setxattrat": 463, "utime": 132, "utimensat": 280,
    "utimes": 235,
}  # fmt: skip

_MODES_AARCH64 = {
    "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "file_setattr": 469, "fremovexattr": 16, "fsetxattr": 7,
    "lremovexattr": 15, "lsetxattr": 6, "removexattr": 14, "removexattrat": 466, "setxattr": 5, "setxattrat": 463,
    "utimensat": 88,
}  # fmt: skip

_WATCHING_X86_64 = {"inotify_init": 253, "inotify_init1": 294, "inotify_add_watch": 254}
_WATCHING_AARCH64 = {"inotify_init1": 26, "inotify_add_watch": 27}

_ATTRIBUTES_X86_64 = {
    "getxattr": 191, "lgetxattr": 192, "listxattr": 194, "llistxattr": 195, "getxattrat": 464, "listxattrat": 465,
}  # fmt: skip

_ATTRIBUTES_AARCH64 = {
    "getxattr": 8, "lgetxattr": 9, "listxattr": 11, "llistxattr": 12, "getxattrat": 464, "listxattrat": 465,
}  # fmt: skip

NEWEST = 469
"""The newest system call on both machines when this file was written: ``file_setattr`` of Linux 6.17."""


class SyscallNumbers(NamedTuple):
    """The system call numbers of one kind of machine."""

    audit: int  # the kernel's number for this machine in a filter's input
    for_nobody: "Dict[str, int]"  # refused to every model
    modes: "Dict[str, int]"  # change permissions, owners, times or attributes of files
    watching: "Dict[str, int]"  # report every use of a file, which Landlock does not control
    # read the extended attributes of the file at a path, which Landlock does not control either. Those of an open file
    # are not listed: Landlock controls the opening.
    attributes: "Dict[str, int]"
    starting: "Dict[str, int]"  # create a process or run a program; except ``clone``, which also makes threads
    checked: "Dict[str, int]"
    capset: int


MACHINES = {
    "x86_64": SyscallNumbers(
        audit=0xC000003E,
        for_nobody=_FOR_NOBODY_X86_64,
        modes=_MODES_X86_64,
        watching=_WATCHING_X86_64,
        attributes=_ATTRIBUTES_X86_64,
        starting={"fork": 57, "vfork": 58, "execve": 59, "execveat": 322},
        checked={
            "socket": 41, "socketpair": 53, "clone": 56, "clone3": 435, "ioctl": 16, "kill": 62, "tkill": 200,
            "tgkill": 234, "pidfd_send_signal": 424, "prlimit64": 302, "mknod": 133, "mknodat": 259, "setpriority": 141,
            "ioprio_set": 251, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142,
            "sched_setattr": 314, "move_pages": 279, "setuid": 105, "setgid": 106, "setreuid": 113, "setregid": 114,
            "setgroups": 116, "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123,
            "prctl": 157, "setrlimit": 160, "seccomp": 317, "fcntl": 72, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
            "connect": 42, "sendto": 44, "sendmsg": 46, "shutdown": 48, "bind": 49, "listen": 50, "setsockopt": 54,
            "sendmmsg": 307,
        },
        capset=126,
    ),
    "aarch64": SyscallNumbers(
        audit=0xC00000B7,
        for_nobody=_FOR_NOBODY_AARCH64,
        modes=_MODES_AARCH64,
        watching=_WATCHING_AARCH64,
        attributes=_ATTRIBUTES_AARCH64,
        starting={"execve": 221, "execveat": 281},
        checked={
            "socket": 198, "socketpair": 199, "clone": 220, "clone3": 435, "ioctl": 29, "kill": 129, "tkill": 130,
            "tgkill": 131, "pidfd_send_signal": 424, "prlimit64": 261, "mknodat": 33, "setpriority": 140,
            "ioprio_set": 30, "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118,
            "sched_setattr": 274, "move_pages": 239, "setuid": 146, "setgid": 144, "setreuid": 145, "setregid": 143,
            "setgroups": 159, "setresuid": 147, "setresgid": 149, "setfsuid": 151, "setfsgid": 152,
            "prctl": 167, "setrlimit": 164, "seccomp": 277, "fcntl": 25, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
            "connect": 203, "sendto": 206, "sendmsg": 211, "shutdown": 210, "bind": 200, "listen": 201, "setsockopt": 208,
            "sendmmsg": 269,
        },
        capset=91,
    ),
}  # fmt: skip
