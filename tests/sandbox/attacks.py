"""The attacks. Each is a function of a context that returns what it got when it succeeds, and raises when it is
stopped.

This file is imported by a model, in its process: it needs no more than a model has.
"""

import ctypes
import errno
import http.client
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile

import triton_python_backend_utils as pb_utils

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

X86 = platform.machine() == "x86_64"


class Skipped(Exception):
    """There is nothing here to try it on."""


def _call(number, *arguments):
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = _libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _number(x86_64, aarch64):
    return x86_64 if X86 else aarch64


def _read(path, count=8):
    with open(path, "rb") as file:
        return repr(file.read(count))


def _touch(path):
    with open(path, "a") as file:
        file.write("# changed\n")
    return "changed"


# Files


def read_shadow(_):
    return _read("/etc/shadow")


def read_passwd(_):
    return _read("/etc/passwd")


def read_keys(context):
    return _read(context["secret"])


def read_token(context):
    return _read(os.path.join(context["home"], ".cache", "huggingface", "token"))


def read_other_model(context):
    return _read(context["other_model"] + "/1/model.py")


def write_other_model(context):
    return _touch(context["other_model"] + "/1/model.py")


def chmod_other_model(context):
    path = context["other_model"] + "/1/model.py"
    os.chmod(path, os.stat(path).st_mode & 0o7777)
    return "changed"


def write_own_model(context):
    return _touch(context["own_model"] + "/1/notes.txt")


def poison_environment(context):
    path = os.path.join(context["packages"], "planted.pth")
    _touch(path)
    os.unlink(path)
    return "planted"


def poison_runner(_):
    bundle = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["pybackend_stub"].__file__)))
    return _touch(os.path.join(bundle, "__main__.py"))


def write_start_file(context):
    return _touch(context["home"] + "/.bashrc")


def write_tmp(_):
    path = f"/tmp/pybackend-attack-{os.getpid()}"
    _touch(path)
    os.unlink(path)
    return "written"


def _beside(name):
    return os.path.join(tempfile.gettempdir(), f"{name}-{os.getpid()}")


def symlink_escape(context):
    path = _beside("link")
    os.symlink(context["secret"], path)
    try:
        return _read(path)
    finally:
        os.unlink(path)


def hardlink_escape(context):
    path = _beside("hard")
    os.link(context["secret"], path)
    try:
        return _read(path)
    finally:
        os.unlink(path)


def proc_root_escape(context):
    return _read("/proc/self/root" + context["secret"])


def stat_hidden_file(context):
    return f"{os.stat(context['secret']).st_size} bytes"


def watch_hidden_file(context):
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_CLOEXEC)
    try:
        if watcher < 0 or libc.inotify_add_watch(watcher, os.fsencode(os.path.dirname(context["secret"])), 0xFFF) < 0:
            raise OSError(ctypes.get_errno(), "inotify")
    finally:
        if watcher >= 0:
            os.close(watcher)
    return "it will be told of every use"


def list_hidden_attributes(context):
    """By each of the calls, and through a descriptor that only names the file, for which no permission is needed."""
    path = context["secret"]
    named = os.open(path, os.O_PATH)
    try:
        ways = (path, named, f"/proc/self/fd/{named}")
        for ask in (os.listxattr, lambda way: os.getxattr(way, "user.missing")):
            for way in ways:
                for follows in (True,) if way == named else (True, False):
                    try:
                        return f"told about {way}: {ask(way) if follows else _of_link(ask, way)}"
                    except OSError as error:
                        if error.errno == errno.ENODATA:
                            return f"told that {way} does not have one"
                        refusal = error
    finally:
        os.close(named)
    raise refusal


def _of_link(ask, way):
    """Ask about a link itself."""
    if ask is os.listxattr:
        return os.listxattr(way, follow_symlinks=False)
    return os.getxattr(way, "user.missing", follow_symlinks=False)


def read_disk(_):
    tried = []
    for name in ("mem", "kmem", "port", "sda", "vda", "nvme0n1", "loop0", "ram0"):
        if os.path.exists("/dev/" + name):
            tried.append(name)
            try:
                return _read("/dev/" + name)
            except OSError:
                continue
    raise (PermissionError("all closed") if tried else Skipped("there are no such devices"))


def make_device(_):
    path = _beside("device")
    os.mknod(path, 0o60600, os.makedev(254, 0))
    os.unlink(path)
    return "made"


def _open_for_writing(path):
    if not os.path.exists(path):
        raise Skipped(path + " is not there")
    os.close(os.open(path, os.O_WRONLY))
    return "open for writing"


def write_sysctl(_):
    return _open_for_writing("/proc/sys/kernel/core_pattern")


def write_cgroup(_):
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":") for line in file]
    for _, names, path in lines:
        for root in ("/sys/fs/cgroup" + path, "/sys/fs/cgroup/" + names + path, "/sys/fs/cgroup/unified" + path):
            if os.path.exists(root + "/cgroup.procs"):
                return _open_for_writing(root + "/cgroup.procs")
    raise Skipped("no control groups")


# Processes


def list_processes(context):
    if str(context["host"]) not in os.listdir("/proc"):
        raise PermissionError("the server is not listed")
    return "listed"


def read_host_environ(context):
    return _read(f"/proc/{context['host']}/environ")


def open_host_memory(context):
    return repr(open(f"/proc/{context['host']}/mem", "rb"))


def read_host_memory(context):
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(8)
    ours, theirs = Vector(ctypes.addressof(buffer), 8), Vector(context["host_address"], 8)
    return f"{_call(_number(310, 270), context['host'], ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)} bytes"


def trace_host(context):
    _call(_number(101, 117), 0x4206, context["host"], 0, 0)  # PTRACE_SEIZE does not stop it
    _call(_number(101, 117), 17, context["host"], 0, 0)
    return "traced"


def steal_host_descriptor(context):
    pidfd = _call(434, context["host"], 0)
    try:
        return f"descriptor {_call(438, pidfd, 0, 0)}"
    finally:
        os.close(pidfd)


def open_host_descriptor(context):
    return repr(os.open(f"/proc/{context['host']}/fd/0", os.O_RDONLY))


def signal_host(context):
    os.kill(context["host"], 0)
    return "possible"


def signal_other_model(context):
    os.kill(context["other_pid"], 0)
    return "possible"


def open_other_memory(context):
    return repr(open(f"/proc/{context['other_pid']}/mem", "rb"))


def limit_host(context):
    present = resource.prlimit(context["host"], resource.RLIMIT_CORE)
    resource.prlimit(context["host"], resource.RLIMIT_CORE, present)
    return "changed"


def _change(read, change):
    """Such calls may succeed without effect."""
    before = read()
    change()
    if read() == before:
        raise PermissionError("it has no effect")
    return "changed"


def _slow(kind, number):
    usual = os.getpriority(kind, number)
    return _change(lambda: os.getpriority(kind, number), lambda: os.setpriority(kind, number, usual + 1))


def slow_host(context):
    return _slow(os.PRIO_PROCESS, context["host"])


def slow_user(_):
    return _slow(os.PRIO_USER, 0)


def pin_host(context):
    cores = os.sched_getaffinity(context["host"])
    if len(cores) < 2:
        raise Skipped("there is one core")
    said = _change(
        lambda: os.sched_getaffinity(context["host"]), lambda: os.sched_setaffinity(context["host"], {min(cores)})
    )
    os.sched_setaffinity(context["host"], cores)
    return said


def reschedule_host(context):
    said = _change(
        lambda: os.sched_getscheduler(context["host"]),
        lambda: os.sched_setscheduler(context["host"], os.SCHED_BATCH, os.sched_param(0)),
    )
    os.sched_setscheduler(context["host"], os.SCHED_OTHER, os.sched_param(0))
    return said


def outlive_host(_):
    signalled = ctypes.c_int(0)
    _libc.prctl(2, ctypes.byref(signalled), 0, 0, 0)
    if _libc.prctl(1, ctypes.c_ulong(0), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    _libc.prctl(1, ctypes.c_ulong(signalled.value), 0, 0, 0)
    return "cleared"


_MARK = 10


def change_mark(_):
    mark = resource.getrlimit(_MARK)[1]
    lower = struct.pack("QQ", mark - 1, mark - 1)
    calls = (
        lambda: resource.setrlimit(_MARK, (mark - 1, mark - 1)),
        lambda: _call(_number(160, 164), _MARK, lower),
        lambda: _call(_number(302, 261), 0, _MARK, lower, None),
    )
    for call in calls:
        try:
            call()
        except (OSError, ValueError) as error:
            refusal = error
        else:
            return "changed"
    if resource.getrlimit(_MARK)[1] != mark:
        return "changed"
    raise refusal


def open_terminal(context):
    return repr(os.open(context["terminal"], os.O_RDWR | os.O_NOCTTY))


def make_terminal(_):
    return repr(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))


def inherited_descriptors(_):
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        own = ("socket:", "pipe:", "anon_inode:", "/dev/null", "/proc/", "/memfd:pybackend-tensors", "/dev/urandom")
        if not target.startswith(own):
            found.append(target)
    if not found:
        raise PermissionError("there are none")
    return repr(found)


def run_shell(_):
    return subprocess.check_output(["/bin/sh", "-c", "echo ran"]).decode()


def run_own_python(_):
    return subprocess.check_output([sys.executable, "-I", "-S", "-c", "print('ran')"]).decode()


def run_written_file(_):
    path = _beside("program")
    with open(path, "w") as file:
        file.write("#!/bin/sh\necho ran\n")
    os.chmod(path, 0o700)
    try:
        return subprocess.check_output([path]).decode()
    finally:
        os.unlink(path)


def run_setuid_program(context):
    if not context["setuid_id"]:
        raise Skipped("only root can make one")
    said = subprocess.check_output([context["setuid_id"], "-u"]).decode().strip()
    if os.geteuid() == 0:
        raise Skipped("it is root")
    if said != "0":
        raise PermissionError("it ran as " + said)
    return "ran as root"


def become_root(_):
    if os.getuid() == 0:
        os.setresuid(12345, 12345, 12345)  # what root can do: become somebody else
    else:
        os.setresuid(0, 0, 0)
    return "done"


def map_executable_memory(_):
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    return "mapped"


# Network and sockets


def tcp_connect(context):
    socket.create_connection(("127.0.0.1", context["tcp_port"]), 5).close()
    return "connected"


def tcp_listen(_):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
    return "listened"


def udp_send(context):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", context["tcp_port"]))
    return "sent"


def unix_path(context):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(context["unix_socket"])
    return "connected"


def unix_datagram_pair(context):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", context["unix_datagram"])
    return "sent"


def unix_abstract(context):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + context["unix_abstract"])
    return "connected"


def _open_socket(*arguments):
    socket.socket(*arguments).close()
    return "opened"


def netlink_events(_):
    return _open_socket(16, socket.SOCK_RAW, 15)


def netlink_audit(_):
    return _open_socket(16, socket.SOCK_RAW, 9)


def raw_socket(_):
    return _open_socket(socket.AF_INET, socket.SOCK_RAW, 1)


def packet_socket(_):
    return _open_socket(17, socket.SOCK_RAW, 0)


def vsock(_):
    return _open_socket(40, socket.SOCK_STREAM)


# The kernel


def mount(_):
    place = tempfile.mkdtemp()
    try:
        if _libc.mount(b"none", place.encode(), b"tmpfs", 0, None):
            raise OSError(ctypes.get_errno(), "mount")
        _libc.umount2(place.encode(), 2)
    finally:
        os.rmdir(place)
    return "mounted"


def _in_child(function):
    """Run something that cannot be undone in a process of its own; raises if that could not do it."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("not in a child")
    return "done"


def unshare_user(_):
    return _in_child(lambda: _call(_number(272, 97), 0x10000000))


def clone_user(_):
    pid = _call(_number(56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


def bpf(_):
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 4, 1) + b"\0" * 112)
    return f"descriptor {_call(_number(321, 280), 0, attributes, 128)}"


def keyring(_):
    return f"key {_call(_number(250, 219), 0, -3, 1)}"


def io_uring(_):
    return f"descriptor {_call(425, 4, ctypes.create_string_buffer(120))}"


def perf_events(_):
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0) + b"\0" * 112)
    return f"descriptor {_call(_number(298, 241), attributes, 0, -1, -1, 0)}"


def userfaultfd(_):
    return f"descriptor {_call(_number(323, 282), 1)}"


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def answer_filter(_):
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # it allows everything
    given = _Filter(1, ctypes.addressof(code))
    descriptor = _call(_number(317, 277), 1, 8, ctypes.byref(given))
    os.close(descriptor)
    return "it is asked"


def x32_calls(_):
    if not X86:
        raise Skipped("this machine has no others")
    return f"pid {_call(0x40000000 | 39)}"


# Resources


def fork_bomb(context):
    children = []
    try:
        for _ in range(context["most_processes"] + 20):
            pid = os.fork()
            if pid == 0:
                try:
                    signal.pause()
                finally:
                    os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return f"{len(children)} processes"


def memory_bomb(context):
    size = context["most_memory"] // 3  # never touched: it is not the machine that has to say no
    kept = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(4)]
    return f"{len(kept)} times {size} bytes"


_TOO_LARGE = 5 << 30


def memory_file(_):
    descriptor = _call(_number(319, 279), ctypes.c_char_p(b"attack"), 0)
    try:
        os.ftruncate(descriptor, _TOO_LARGE)
    finally:
        os.close(descriptor)
    return "made"


def large_file(_):
    with tempfile.NamedTemporaryFile() as file:
        os.ftruncate(file.fileno(), _TOO_LARGE)
    return "made"


def open_files(_):
    opened = []
    try:
        while len(opened) < 70_000:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return f"{len(opened)} files"


def raise_limits(_):
    kind = resource.RLIMIT_NOFILE
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY:
        return "there is none"
    resource.setrlimit(kind, (hard, hard + 1))
    return "raised"


def raise_priority(_):
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)
    return "raised"


def memory_pressure(_):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return "protected"


def leave_shared_memory(_):
    segment = _libc.shmget(0, 4096, 0o1600)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    _libc.shmctl(segment, 0, None)
    return "made"


def use_semaphores(context):
    return f"value {_call(_number(66, 191), context['semaphore'], 0, 12, 0)}"


def leave_message_queue(_):
    queue = _libc.msgget(0, 0o1600)
    if queue < 0:
        raise OSError(ctypes.get_errno(), "msgget")
    _libc.msgctl(queue, 0, None)
    return "made"


def read_diagnostics_key(context):
    for parent, _, files in os.walk(context["server_directory"] + "/diagnostics", onerror=_raise):
        for name in files:
            return _read(os.path.join(parent, name))
    raise FileNotFoundError("the key lies elsewhere")


def ask_diagnostics(context):
    connection = http.client.HTTPConnection("127.0.0.1", context["http_port"], timeout=20)
    connection.request("GET", "/v2/diagnostics/configuration?model=victim")
    reply = connection.getresponse()
    if reply.status != 200:
        raise PermissionError(reply.read())
    return reply.read()


def own_environment(_):
    for text in (repr(dict(os.environ)), _read("/proc/self/environ", 1 << 20)):
        if "ATTACK_TEST_SECRET" in text:
            return "found"
    raise PermissionError("not there")


def call_model_control(context):
    function, arguments, files = context["call"]
    named = {} if files is None else {"files": {path: text.encode() for path, text in files.items()}}
    try:
        return getattr(pb_utils, function)(*arguments, **named)
    except pb_utils.TritonModelException as refused:
        return refused


def fill_scratch(_):
    scratch = os.environ["TMPDIR"]
    with open(os.path.join(scratch, "private"), "w") as file:
        file.write("private")
    return scratch


def booby_trap(context):
    scratch = os.environ["TMPDIR"]
    os.makedirs(os.path.join(scratch, "a", "b"))
    for place in ("link", "a/link", "a/b/link"):
        os.symlink(context["link_to"], os.path.join(scratch, place))
    return scratch


def list_rooms(context):
    return os.listdir(os.path.dirname(os.path.dirname(context["scratch"])))


def read_scratch(context):
    for parent, _, files in os.walk(context["scratch"], onerror=_raise):
        for name in files:
            return _read(os.path.join(parent, name))
    raise FileNotFoundError(context["scratch"])


def write_scratch(context):
    return _touch(context["scratch"] + "/notes.txt")


def replace_scratch(context):
    os.rename(context["scratch"], context["scratch"] + ".old")
    os.symlink(context["own_model"], context["scratch"])
    return context["scratch"]


def _raise(error):
    raise error


def rewrite(context):
    path, text = context["rewrite"]
    with open(path, "w") as file:
        file.write(text)
    return path


def run_all(names, context):
    """What became of each: ``[True, what it got]``, ``[False, why not]``, or ``[None, why it was not tried]``."""
    results = {}
    for name in names:
        try:
            results[name] = [True, str(globals()[name](context))[:1000]]
        except Skipped as reason:
            results[name] = [None, str(reason)]
        except (OSError, MemoryError, ValueError, subprocess.SubprocessError) as error:
            code = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
            results[name] = [False, f"{type(error).__name__} {code} {error}"]
    return results
