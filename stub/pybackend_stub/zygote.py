"""A process that has imported what every stub of its environment needs, and forks stubs when the host asks for them.

It runs no model. Where its Python is a model author's it is confined as a whole: it reaches what the models of that environment
may reach together, and has no privilege but to change into their users, so that each of its forks can confine itself to what is
its own. It has one thread, so that a fork has all there is; what it has imported, its forks share with it. A fork is
brought to life by another fork that ends at once: it becomes the host's child, as if the host had started it, and nothing ties
it to the zygote any more.
"""

import array
import ctypes
import errno
import gc
import importlib
import os
import signal
import socket
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_stub.process import be_called, bear_mark, die_with_host, show_memory, tidy_memory
from pybackend_stub.sandbox import Preparation
from pybackend_wire.codec import JSON, encode_frame
from pybackend_wire.confinement import Confinement
from pybackend_wire.zygote import MOST_BYTES, STUB_NAME, ZYGOTE_NAME, Fork, Forked, packed, unpacked_fork

_FORK = ctypes.PyDLL(None, use_errno=True).fork

_DESCRIPTORS = 3

_REHEARSALS = 12

_ADOPTION_S = 5.0
"""How long a fork waits to become the host's child, which takes less than a millisecond."""

_THREADS = "OPENBLAS_NUM_THREADS"
_THREADS_BY_DEFAULT = (_THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The variables that say how many threads OpenBLAS has; the first that is set counts."""

_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "", "_64")
)


class Birth(NamedTuple):
    """What a fork is to become.

    Attributes:
        socket: the stub's socket.
        nudges: the counter by which the host asks to be heard at once.
        preparation: for its confinement; None if nothing confines it.
        wake: gives the libraries their threads back, once the process is confined.
    """

    socket: int
    nudges: int
    preparation: "Optional[Preparation]"
    wake: "Callable[[], None]"


class Zygote:
    """One zygote.

    Args:
        descriptor: its socket.
        host_pid: the host.
        preload: modules to import beside those of the stub.
    """

    def __init__(self, descriptor: int, host_pid: int, preload: "Sequence[str]") -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._host_pid = host_pid
        self._preload = preload
        self._variables: Dict[str, Optional[str]] = {}
        self._blas: List[Callable[[int], None]] = []

    def run(self) -> "Optional[Birth]":
        """Fork whenever the host asks; returns in every fork, and None in the zygote when the host is gone."""
        os.set_inheritable(self._socket.fileno(), False)
        be_called(ZYGOTE_NAME)
        for number in (signal.SIGINT, signal.SIGTERM):  # the host's own end ends it
            signal.signal(number, signal.SIG_IGN)
        try:
            self._warm_up()
            failure = _reason_not_to_fork()
        except Exception as error:  # noqa: BLE001  whatever a module raises: its instances are started one by one
            failure = f"{type(error).__name__}: {error}"
        self._answer(0, 0, failure)
        while not failure:
            packet, descriptors = self._receive()
            if not packet:
                break
            request = unpacked_fork(packet)
            birth = self._fork(request, descriptors)
            if birth is not None:
                return birth
        return None

    # Before the first fork

    def _warm_up(self) -> None:
        """Import what stubs import, and keep libraries from starting threads, which no fork would have."""
        self._variables[_THREADS] = os.environ.get(_THREADS)
        os.environ[_THREADS] = "1"
        for name in ("triton_python_backend_utils", *self._preload):
            importlib.import_module(name)
        _rehearse()
        self._blas = _thread_setters()
        gc.collect()
        tidy_memory()  # else every fork would do so at some time, and copy what lies around
        gc.freeze()  # else the first collection of every fork would write to all objects, and so copy them

    # Forks

    def _receive(self) -> "Tuple[bytes, List[int]]":
        """The next request and its descriptors; empty if the host is gone."""
        size = array.array("i").itemsize
        try:
            packet, ancillary, _, _ = self._socket.recvmsg(
                MOST_BYTES, socket.CMSG_SPACE(_DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return b"", []
        received = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received.frombytes(data[: len(data) - len(data) % size])
        return packet, list(received)

    def _answer(self, number: int, pid: int, failure: str) -> None:
        try:
            self._socket.send(packed(Forked(number, pid, failure[:1000])))
        except OSError:  # the host is gone, which the next look at the socket says
            pass

    def _fork(self, request: Fork, descriptors: "List[int]") -> "Optional[Birth]":
        """Have a stub made; returns in it, and None here once the host has been told."""
        if len(descriptors) != _DESCRIPTORS:
            self._told(request, descriptors, 0, "a descriptor was lost on the way")
            return None
        preparation = None
        if request.confinement:
            preparation = Preparation(Confinement.from_json(request.confinement))
            if preparation.rules >= 0:
                descriptors.append(preparation.rules)
        try:
            reading, writing = os.pipe()
            between = _bare_fork()
        except OSError as error:
            self._told(request, descriptors, 0, str(error))
            return None
        if not between:
            parent = os.getpid()
            _fork_and_end(writing)
            os.close(reading)
            os.close(writing)
            return self._be_born(request, descriptors[:_DESCRIPTORS], preparation, parent)
        os.close(writing)
        with open(reading, "rb") as pipe:
            pid = int(pipe.read() or b"-%d" % errno.EAGAIN)
        os.waitpid(between, 0)  # from here on the stub is the host's child
        self._told(request, descriptors, max(pid, 0), "" if pid > 0 else os.strerror(-pid))
        return None

    def _told(self, request: Fork, descriptors: "List[int]", pid: int, failure: str) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        self._answer(request.number, pid, failure)

    def _be_born(
        self, request: Fork, descriptors: "List[int]", preparation: "Optional[Preparation]", parent: int
    ) -> Birth:
        """In the new process: everything as it is in one that the host has started itself."""
        be_called(STUB_NAME)
        show_memory(True)
        self._socket.close()
        os.setsid()
        sock, nudges, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        self._wait_for_adoption(parent)
        die_with_host(self._host_pid)
        bear_mark(request.mark)
        if request.cores:
            os.sched_setaffinity(0, request.cores)
        for name, value in self._variables.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        random = sys.modules.get("numpy.random")
        if random is not None:  # else all forks would draw the same numbers
            random.seed()
        return Birth(sock, nudges, preparation, self._wake)

    def _wait_for_adoption(self, parent: int) -> None:
        """Until the process in between has ended: the kernel's promise is about the parent that one has at that time."""
        deadline_s = time.monotonic() + _ADOPTION_S
        while os.getppid() == parent and time.monotonic() < deadline_s:
            time.sleep(0.0002)

    def _wake(self) -> None:
        count = _thread_count()
        if count > 1:
            for set_threads in self._blas:
                set_threads(count)


def _rehearse() -> None:
    """Do what every stub does first.

    Interpreters since 3.11 change the code that they run often, and in a fork each change copies memory that was shared.
    """
    from pybackend_stub.channel import HostChannel
    from pybackend_stub.loop import StubLoop

    for _ in range(_REHEARSALS):
        ours, theirs = socket.socketpair()
        with ours:
            channel = HostChannel(theirs.detach())
            StubLoop(channel, -1, {})
            channel.greet("", {})
            ours.sendall(encode_frame(JSON, [[0]]))
            channel.receive()
            channel.close()


def _bare_fork() -> int:
    """A fork of which the interpreter knows nothing, and does nothing for: this one will only fork again."""
    pid = int(_FORK())
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _fork_and_end(writing: int) -> None:
    """Returns in a fork of this process, which says which one that is, and ends."""
    pid = -errno.EAGAIN
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or errno.EAGAIN)
    finally:
        if pid:
            try:
                os.write(writing, b"%d" % pid)
            finally:
                os._exit(0)


def _reason_not_to_fork() -> str:
    threads = len(os.listdir("/proc/self/task"))
    return "" if threads == 1 else f"what is imported has started {threads - 1} threads, which no fork would have"


def _thread_count() -> int:
    """How many threads OpenBLAS would have had."""
    for name in _THREADS_BY_DEFAULT:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def _thread_setters() -> "List[Callable[[int], None]]":
    """For every OpenBLAS in this process, what changes its number of threads."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in maps if "openblas" in line.rpartition("/")[2]}
    found = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:  # no library, or replaced since it was loaded
            continue
        setter = next((name for name in _SETTERS if hasattr(library, name)), None)
        if setter is not None:
            found.append(getattr(library, setter))
    return found


def main(arguments: "Sequence[str]") -> "Optional[Birth]":
    """Be a zygote: ``<socket> <host pid> <mark> [<module to import>]...``; see :meth:`Zygote.run`."""
    descriptor, host_pid, mark = map(int, arguments[:3])
    die_with_host(host_pid)
    bear_mark(mark)
    show_memory(False)  # else a model of the same user could change what the others are forked from
    sys.argv = [""]
    return Zygote(descriptor, host_pid, arguments[3:]).run()
