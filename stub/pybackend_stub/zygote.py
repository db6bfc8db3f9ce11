"""A process that has imported what every stub of its environment needs, and forks stubs on the host's request.

It runs no model. If its Python belongs to a model's author, the zygote itself is confined: it can reach only what the
models of that environment can reach together, and its only privilege is to change to their users, so that each fork can
confine itself further. It has one thread, so that a fork lacks none; forks share the memory of what it has imported.

One fork, the spare, exists before it is requested, and receives the host's next request itself: making a process takes
time, and any work of the zygote for a fork would cost the fork a copy of the memory used. Another fork, which ends at
once, makes the spare: so the spare becomes a child of the host, as if the host had started it. A spare dies with its
zygote; once it is a stub, nothing ties it to the zygote any more.
"""

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
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_stub.channel import DESCRIPTOR_BYTES, descriptors_in
from pybackend_stub.process import be_called, bear_mark, die_with_host, show_memory, tidy_memory
from pybackend_wire.framing import JSON, encode_frame
from pybackend_wire.host_messages import Finalize, encoded
from pybackend_wire.zygote import MOST_BYTES, SPARE_NAME, ZYGOTE_NAME, Fork, Forked, packed, unpacked_fork

_FORK = ctypes.PyDLL(None, use_errno=True).fork

_DESCRIPTORS = 3

_REHEARSALS = 12

_MOST_DEATHS = 5
"""Stop after this many spares in a row that died before any request."""

_FAILED, _BORN, _HOST_IS_GONE = b"!", b"+", b"-"
"""A spare's messages to the zygote: it could not be made, and an error number follows; it has become a stub; it has
noticed that the host is gone."""

_REST_MS = 15
"""How long to wait before making the next spare if no request comes; most models load in that time."""

_ADOPTION_S = 5.0
"""How long a fork waits to become the host's child; it takes less than a millisecond."""

_THREADS = "OPENBLAS_NUM_THREADS"
_THREADS_BY_DEFAULT = (_THREADS, "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The variables for OpenBLAS's number of threads; the first one that is set counts."""

_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "", "_64")
)

_STOPPER = "blas_thread_shutdown_"
"""Ends OpenBLAS's threads, as OpenBLAS itself does before a fork; its next work for several threads starts them again.
"""


_IMPORTED_BY_MANY = ("triton_python_backend_utils", "pybackend_stub.sandbox", "difflib")
"""Modules that most forks would import one by one otherwise; difflib is for models that define further methods."""


class Birth(NamedTuple):
    """The start of a fork as a stub."""

    socket: int
    nudges: int
    confinement: bytes  # as JSON; empty for a process that is not confined
    wake: "Callable[[], None]"  # restores the libraries' threads, once the process is confined


class Zygote:
    """One zygote."""

    def __init__(self, descriptor: int, host_pid: int, preload: "Sequence[str]") -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._host_pid = host_pid
        self._preload = preload
        self._life = os.pipe()
        self._variables: Dict[str, Optional[str]] = {}
        self._blas: List[Callable[[int], None]] = []

    def run(self) -> "Optional[Birth]":
        """Keep a fork ready for the host; returns in every requested fork, and None in the zygote at its end."""
        os.set_inheritable(self._socket.fileno(), False)
        be_called(ZYGOTE_NAME)
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends when the host does
            signal.signal(number, signal.SIG_IGN)
        try:
            self._warm_up()
            failure = _hindrance()
        except Exception as error:  # noqa: BLE001  any error of a module: its instances start without a zygote
            failure = f"{type(error).__name__}: {error}"
        if failure:
            self._answer(0, 0, failure)
            return None
        return self._have_spares()

    # Before the first fork

    def _warm_up(self) -> None:
        """Import what stubs import, and keep libraries from starting threads, which forks would lack."""
        self._variables[_THREADS] = os.environ.get(_THREADS)
        os.environ[_THREADS] = "1"
        for name in (*_IMPORTED_BY_MANY, *self._preload):
            importlib.import_module(name)
        _rehearse()
        self._blas = _thread_setters()
        gc.collect()
        tidy_memory()  # otherwise every fork would do so at some time and copy unused memory
        gc.freeze()  # otherwise the first collection in every fork would write to all objects and so copy them

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
            os.waitpid(between, 0)  # from here on the spare is a child of the host
            if not is_known:
                is_known = True
                self._answer(0, 0, "")
            with open(reading, "rb") as pipe:
                said = pipe.read()  # until the spare is a stub or gone
            if said.startswith(_FAILED):
                if not self._refuse(os.strerror(int(said[len(_FAILED) :]))):
                    return None
            elif said.endswith(_HOST_IS_GONE):
                return None
            elif said.endswith(_BORN):
                deaths = 0
                # A moment's rest, unless a request comes: where cores are few, a fork would take one from the new stub.
                asked = select.poll()
                asked.register(self._socket, select.POLLIN)
                asked.poll(_REST_MS)
            else:
                deaths += 1
        return None

    def _refuse(self, why: str) -> bool:
        """Answer the next request with the reason why there can be no fork now; False if the host is gone."""
        packet, descriptors = self._receive()
        for descriptor in descriptors:
            os.close(descriptor)
        if packet:
            self._answer(unpacked_fork(packet).number, 0, why)
        return bool(packet)

    def _receive(self) -> "Tuple[bytes, List[int]]":
        """Return the next request and its descriptors; empty if the host is gone."""
        space = socket.CMSG_SPACE(_DESCRIPTORS * DESCRIPTOR_BYTES)
        try:
            packet, ancillary, _, _ = self._socket.recvmsg(MOST_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return b"", []
        return packet, descriptors_in(ancillary)

    def _answer(self, number: int, pid: int, failure: str) -> None:
        try:
            self._socket.send(packed(Forked(number, pid, failure[:1000])))
        except OSError:  # the host is gone, as the next read of the socket will show
            pass

    def _be_spare(self, writing: int, parent: int) -> Birth:
        """In a new process, wait for a request."""
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
        """Return the host's request; exits if the host or the zygote is gone, or the request is refused."""
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        waiting.register(life, 0)  # poll always reports the end of a pipe
        if life in dict(waiting.poll()):
            os._exit(0)
        packet, descriptors = self._receive()
        if not packet:
            _tell(writing, _HOST_IS_GONE)
            os._exit(0)
        request = unpacked_fork(packet)
        complete = len(descriptors) == _DESCRIPTORS
        self._answer(
            request.number, os.getpid() if complete else 0, "" if complete else "a descriptor was lost on the way"
        )
        _tell(writing, _BORN)
        if not complete:
            os._exit(0)
        return request, descriptors

    def _be_born(self, request: Fork, descriptors: "List[int]") -> Birth:
        """Make everything as in a process that the host has started itself."""
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
        os.environ.update(request.variables)
        random = sys.modules.get("numpy.random")
        if random is not None:  # otherwise all forks would draw the same numbers
            random.seed()
        return Birth(sock, nudges, request.confinement.encode(), self._wake)

    def _wait_for_adoption(self, parent: int) -> None:
        """Wait until the process in between has ended: a parent-death signal applies to the parent when it is set."""
        deadline_s = time.monotonic() + _ADOPTION_S
        while os.getppid() == parent and time.monotonic() < deadline_s:
            time.sleep(0.0002)

    def _wake(self) -> None:
        count = _thread_count()
        if count > 1:
            for set_threads in self._blas:
                set_threads(count)


def _hindrance() -> str:
    """Something that the imported modules have made and no fork would have; empty if there is nothing."""
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return f"its modules have started {threads} threads, which forks would lack"
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the directory is closed again
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia"):
                return "its modules have opened a GPU, which forks could not use"
    return ""


def _rehearse() -> None:
    """Run the first steps of every stub.

    Interpreters since 3.11 specialise code that runs often, and in a fork each change copies memory that was shared.
    """
    from pybackend_stub.channel import HostChannel
    from pybackend_stub.loop import StubLoop

    for _ in range(_REHEARSALS):
        ours, theirs = socket.socketpair()
        with ours:
            channel = HostChannel(theirs.detach())
            StubLoop(channel, -1, None)
            channel.greet("", {})
            ours.sendall(encode_frame(JSON, [encoded(Finalize())]))
            channel.receive()
            channel.close()


def _bare_fork() -> int:
    """Fork without the interpreter's knowledge and its fork handlers: the new process only forks again."""
    pid = int(_FORK())
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


def _fork_and_end(writing: int) -> None:
    """Return in a fork of this process; this process ends, and reports the reason if there is no fork."""
    pid = -1
    try:
        pid = os.fork()
    except OSError as error:
        os.write(writing, _FAILED + b"%d" % (error.errno or errno.EAGAIN))
    finally:
        if pid:
            os._exit(0)


def _tell(writing: int, what: bytes) -> None:
    """Write to the zygote; if it has died, nobody needs to know."""
    with suppress(BrokenPipeError):
        os.write(writing, what)


def _thread_count() -> int:
    """Return the number of threads that OpenBLAS would have."""
    for name in _THREADS_BY_DEFAULT:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def _thread_setters() -> "List[Callable[[int], None]]":
    """Return a function that sets the number of threads, for every OpenBLAS in this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in maps if "openblas" in line.rpartition("/")[2]}
    found: List[Callable[[int], None]] = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:  # not a library, or replaced since it was loaded
            continue
        setter = next((name for name in _SETTERS if hasattr(library, name)), None)
        if setter is not None:
            found.append(partial(_set_threads, getattr(library, setter), getattr(library, _STOPPER, None)))
    return found


def _set_threads(set_count: "Callable[[int], object]", stop: "Optional[Callable[[], object]]", count: int) -> None:
    """Let a library use this number of threads once it has work for them: new ones look for it in a loop, for 2^26 cycles each."""
    set_count(count)
    if stop is not None:
        stop()


def main(arguments: "Sequence[str]") -> "Optional[Birth]":
    """Run a zygote: ``<socket> <host pid> <mark> [<module to import>]...``; see :meth:`Zygote.run`."""
    descriptor, host_pid, mark = map(int, arguments[:3])
    die_with_host(host_pid)
    bear_mark(mark)
    show_memory(False)  # otherwise a model of the same user could change the memory that others are forked from
    sys.argv = [""]
    return Zygote(descriptor, host_pid, arguments[3:]).run()
