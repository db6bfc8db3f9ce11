"""A process that has imported what every stub of its environment needs, and forks stubs when the host asks for them.

It runs no model. Where its Python is a model author's it is confined as a whole: it reaches what the models of that environment
may reach together, and has no privilege but to change into their users, so that each of its forks can confine itself to what is
its own. It has one thread, so that a fork has all there is; what it has imported, its forks share with it.

One fork, the spare, is there before it is asked for, and hears the host's next request itself: a process takes time to be made, and
whatever the zygote did for each of them would cost each a copy of the memory that it used. A fork is brought to life by another
fork that ends at once: it becomes the host's child, as if the host had started it. A spare ends with its zygote; nothing ties what
it becomes to that any more.
"""

import array
import ctypes
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_stub.process import be_called, bear_mark, die_with_host, show_memory, tidy_memory
from pybackend_wire.codec import JSON, encode_frame
from pybackend_wire.zygote import MOST_BYTES, SPARE_NAME, ZYGOTE_NAME, Fork, Forked, packed, unpacked_fork

_FORK = ctypes.PyDLL(None, use_errno=True).fork

_DESCRIPTORS = 3

_REHEARSALS = 12

_MOST_DEATHS = 5
"""So many spares in a row that end without having been asked for anything are enough."""

_FAILED, _BORN, _HOST_IS_GONE = b"!", b"+", b"-"
"""What the zygote is told of a spare: there is none, for a reason whose number follows; it is one no more, as it should be; it
has seen that nobody will ask."""

_REST_MS = 15
"""How long the next spare is not made if nobody asks: in which most models are loaded."""

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
        confinement: as JSON; empty if nothing confines it.
        wake: gives the libraries their threads back, once the process is confined.
    """

    socket: int
    nudges: int
    confinement: bytes
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
        self._life = os.pipe()
        self._variables: Dict[str, Optional[str]] = {}
        self._blas: List[Callable[[int], None]] = []

    def run(self) -> "Optional[Birth]":
        """Have a fork ready for the host; returns in every one that it has asked for, and None in the zygote when it is gone."""
        os.set_inheritable(self._socket.fileno(), False)
        be_called(ZYGOTE_NAME)
        for number in (signal.SIGINT, signal.SIGTERM):  # the host's own end ends it
            signal.signal(number, signal.SIG_IGN)
        try:
            self._warm_up()
            failure = _reason_not_to_fork()
        except Exception as error:  # noqa: BLE001  whatever a module raises: its instances are started one by one
            failure = f"{type(error).__name__}: {error}"
        if failure:
            self._answer(0, 0, failure)
            return None
        return self._have_spares()

    # Before the first fork

    def _warm_up(self) -> None:
        """Import what stubs import, and keep libraries from starting threads, which no fork would have."""
        self._variables[_THREADS] = os.environ.get(_THREADS)
        os.environ[_THREADS] = "1"
        for name in ("triton_python_backend_utils", "pybackend_stub.sandbox", *self._preload):
            importlib.import_module(name)
        _rehearse()
        self._blas = _thread_setters()
        gc.collect()
        tidy_memory()  # else every fork would do so at some time, and copy what lies around
        gc.freeze()  # else the first collection of every fork would write to all objects, and so copy them

    # Forks

    def _have_spares(self) -> "Optional[Birth]":
        deaths, is_known = 0, False
        while deaths < _MOST_DEATHS:
            try:
                reading, writing = os.pipe()
            except OSError as error:
                if not self._refuse(str(error)):
                    return None
                continue
            try:
                between = _bare_fork()
            except OSError as error:
                os.close(reading)
                os.close(writing)
                if not self._refuse(str(error)):
                    return None
                continue
            if not between:
                be_called(SPARE_NAME)
                parent = os.getpid()
                _fork_and_end(writing)
                os.close(reading)
                return self._be_spare(writing, parent)
            os.close(writing)
            os.waitpid(between, 0)  # from here on the spare is the host's child
            if not is_known:
                is_known = True
                self._answer(0, 0, "")
            with open(reading, "rb") as pipe:
                said = pipe.read()  # until the spare is none any more
            if said.startswith(_FAILED):
                if not self._refuse(os.strerror(int(said[len(_FAILED) :]))):
                    return None
            elif said.endswith(_HOST_IS_GONE):
                return None
            elif said.endswith(_BORN):
                deaths = 0
                self._let_it_work()
            else:
                deaths += 1
        return None

    def _let_it_work(self) -> None:
        """Where cores are few, a fork would take one from what was born just now; but nobody is kept waiting for that."""
        asked = select.poll()
        asked.register(self._socket, select.POLLIN)
        asked.poll(_REST_MS)

    def _refuse(self, why: str) -> bool:
        """There can be no fork now: say so to whoever asks next; False if the host is gone."""
        packet, descriptors = self._receive()
        for descriptor in descriptors:
            os.close(descriptor)
        if packet:
            self._answer(unpacked_fork(packet).number, 0, why)
        return bool(packet)

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

    def _be_spare(self, writing: int, parent: int) -> Birth:
        """In a new process: wait to be asked for."""
        reading, held = self._life
        os.close(held)
        self._wait_for_adoption(parent)
        die_with_host(self._host_pid)
        os.setsid()
        request, descriptors = self._request(reading, writing)
        for descriptor in (reading, writing):
            os.close(descriptor)
        self._socket.close()
        show_memory(True)
        return self._be_born(request, descriptors)

    def _request(self, life: int, writing: int) -> "Tuple[Fork, List[int]]":
        """What the host asks for; does not return if the host, or the zygote, is gone, or the request is refused."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.register(life, 0)  # its end is told without being asked for
        if life in dict(waiting.poll()):
            os._exit(0)
        packet, descriptors = self._receive()
        if not packet:
            os.write(writing, _HOST_IS_GONE)
            os._exit(0)
        request = unpacked_fork(packet)
        complete = len(descriptors) == _DESCRIPTORS
        self._answer(
            request.number, os.getpid() if complete else 0, "" if complete else "a descriptor was lost on the way"
        )
        os.write(writing, _BORN)
        if not complete:
            os._exit(0)
        return request, descriptors

    def _be_born(self, request: Fork, descriptors: "List[int]") -> Birth:
        """Everything as it is in a process that the host has started itself."""
        sock, nudges, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
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
        return Birth(sock, nudges, request.confinement.encode(), self._wake)

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
    """Returns in a fork of this process, which ends, and says why if there is no fork."""
    pid = -1
    try:
        pid = os.fork()
    except OSError as error:
        os.write(writing, _FAILED + b"%d" % (error.errno or errno.EAGAIN))
    finally:
        if pid:
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
