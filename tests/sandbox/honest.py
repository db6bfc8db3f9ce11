"""What ordinary models do. Each is a function that returns if it can, and raises if something keeps it from it.

This file is imported by a model, in its process: it needs no more than a model has.
"""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import errno
import fcntl
import getpass
import http.client
import http.server
import multiprocessing
import multiprocessing.shared_memory
import os
import platform
import shutil
import signal
import socket
import sqlite3
import ssl
import struct
import subprocess
import sys
import tempfile
import threading

import numpy as np


def reads_files_beside_its_code(context):
    with open(os.path.join(context["own_model"], "1", "weights.txt")) as file:
        assert file.read() == "weights"


def lists_its_version_directory(context):
    assert "model.py" in os.listdir(os.path.join(context["own_model"], "1"))


def starts_threads(_):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(abs, range(-100, 0))) == list(range(100, 0, -1))


def computes_with_several_threads(_):
    square = np.ones((600, 600), dtype=np.float32)
    assert (square @ square)[0, 0] == 600


def runs_a_program(_):
    assert subprocess.check_output(["/bin/sh", "-c", "echo $((6 * 7))"]).strip() == b"42"


def runs_its_own_python(_):
    code = "import sys; print(sys.version_info[0])"
    assert subprocess.check_output([sys.executable, "-I", "-S", "-c", code]).strip() == b"3"


def forks_a_pool(_):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]


def has_a_pool_of_executors(_):
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=fork) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]


def ends_a_child(_):
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    child.terminate()
    child.join(60)
    assert child.exitcode == -signal.SIGTERM


def shares_memory_by_name(_):
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
    try:
        memory.buf[:4] = b"data"
        other = multiprocessing.shared_memory.SharedMemory(memory.name)
        assert bytes(other.buf[:4]) == b"data"
        other.close()
    finally:
        memory.close()
        memory.unlink()


def serves_and_asks_on_loopback(_):
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    client.request("GET", "/")
    assert client.getresponse().status == 501
    client.close()
    thread.join()
    server.server_close()


def looks_up_names(_):
    assert socket.getaddrinfo("localhost", 80)


def listens_on_a_socket_file(_):
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(directory, "s"))
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.path.join(directory, "s"))


def runs_an_event_loop(_):
    async def main():
        process = await asyncio.create_subprocess_exec("/bin/echo", "hello", stdout=subprocess.PIPE)
        return (await process.communicate())[0]

    loop = asyncio.new_event_loop()
    try:
        watcher = getattr(asyncio, "ThreadedChildWatcher", None)
        if sys.version_info < (3, 12) and watcher is not None:
            asyncio.set_child_watcher(watcher())
        assert loop.run_until_complete(main()).strip() == b"hello"
    finally:
        loop.close()


def writes_temporary_files(_):
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("kept for a while")
        file.seek(0)
        assert file.read() == "kept for a while"
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(os.path.join(directory, "below"))


def keeps_files_in_tmp(_):
    path = f"/tmp/pybackend-honest-{os.getpid()}"
    os.makedirs(os.path.join(path, "a"))
    with open(os.path.join(path, "a", "part"), "w") as file:
        file.write("x")
    os.rename(os.path.join(path, "a", "part"), os.path.join(path, "whole"))
    os.chmod(os.path.join(path, "whole"), 0o600)
    os.truncate(os.path.join(path, "whole"), 0)
    shutil.copytree(path, path + "-copy")
    shutil.rmtree(path)
    shutil.rmtree(path + "-copy")


def makes_a_cache_of_its_own(_):
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = os.environ.get("MPLCONFIGDIR") or os.path.join(home, "matplotlib")
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"fontlist-{os.getpid()}.json")
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("{}")
    os.unlink(path)


def fills_a_cache_that_is_not_there_yet(_):
    hub = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    directory = os.path.join(hub, "hub", f"models--{os.getpid()}")
    os.makedirs(directory)
    with open(os.path.join(directory, "weights"), "w") as file:
        file.write("x")
    shutil.rmtree(directory)


def keeps_what_libraries_download(_):
    """Each library chooses a directory of its own in the home directory."""
    for name in (".EasyOCR/model", ".paddlex", ".config/Ultralytics", ".cache/modelscope/hub", "stanza_resources"):
        directory = os.path.expanduser(f"~/{name}")
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, f"part-{os.getpid()}")
        with open(path, "w") as file:
            file.write("x")
        os.unlink(path)


def knows_its_user(_):
    assert getpass.getuser()


def uses_a_data_base(_):
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(sqlite3.connect(os.path.join(directory, "data.db"))) as base,
    ):
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("CREATE TABLE t (a)")
        base.execute("INSERT INTO t VALUES (1)")
        base.commit()
        assert base.execute("SELECT a FROM t").fetchall() == [(1,)]


def falls_back_where_files_have_no_attributes(_):
    """As ``shutil.copy2`` does. Those of an open file can be read at every level."""
    with tempfile.NamedTemporaryFile() as file:
        assert os.listxattr(file.fileno()) == []
        for read in (os.listxattr, lambda path: os.getxattr(path, "user.missing")):
            try:
                assert read(file.name) == []
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.ENODATA):
                    raise


def falls_back_where_files_cannot_be_watched(_):
    """As libraries do that reload changed files: without inotify they look from time to time."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_CLOEXEC)
    if watcher < 0:
        assert ctypes.get_errno() == errno.ENOSYS
    else:
        os.close(watcher)


def makes_a_pipe_with_a_name(_):
    with tempfile.TemporaryDirectory() as directory:
        os.mkfifo(os.path.join(directory, "pipe"))


def knows_the_machine(_):
    assert platform.platform()
    assert os.cpu_count()
    for path in (
        "/proc/meminfo",
        "/proc/cpuinfo",
        "/proc/self/status",
        "/proc/self/maps",
        "/proc/self/environ",
        "/etc/hosts",
    ):
        with open(path) as file:
            assert file.read()
    assert os.listdir("/sys/devices/system/cpu")


def makes_a_tls_context(_):
    ssl.create_default_context()


def schedules_its_threads(_):
    """As libraries do that end the process if it fails, each by another call."""

    def schedule():
        thread = threading.get_native_id()
        os.sched_setaffinity(thread, os.sched_getaffinity(0))
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setparam(thread, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread))
        libc = ctypes.CDLL(None, use_errno=True)
        attributes = ctypes.create_string_buffer(struct.pack("=IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0), 48)
        numbers = {"x86_64": (314, 251), "aarch64": (274, 30)}.get(platform.machine())
        if numbers is not None:
            assert libc.syscall(numbers[0], thread, attributes, 0) == 0, ctypes.get_errno()
            assert libc.syscall(numbers[1], 1, thread, 2 << 13 | 4) == 0, ctypes.get_errno()
        done.append(True)

    done = []
    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join()
    assert done


def has_sockets_of_zeromq(_):
    """Its library ends the process if it may not schedule its threads."""
    try:
        import zmq
    except ImportError:
        return
    with zmq.Context() as context, context.socket(zmq.PUSH) as there, context.socket(zmq.PULL) as here:
        here.bind("inproc://pipe")
        there.connect("inproc://pipe")
        there.send(b"hello")
        assert here.poll(60_000)
        assert here.recv() == b"hello"


def has_a_helper_that_ends_with_it(_):
    """As programs that start others have themselves signalled."""
    code = (
        "import ctypes, signal; raise SystemExit(ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0))"
    )
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0


def is_nice(_):
    os.nice(1)


def discards_output(_):
    with open(os.devnull, "w") as null:
        null.write("x")
    assert len(os.urandom(8)) == 8


def uses_torch(_):
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(2)
    assert torch.nn.functional.linear(torch.ones(8, 256), torch.ones(128, 256)).sum() == 8 * 128 * 256


def leaves_processes_behind(_):
    """Not what it should do, but what happens."""
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                signal.pause()
            os._exit(0)
        os.wait()


def run_all(names, context):
    """What became of each: ``""`` if it could, else why not."""
    results = {}
    for name in names:
        try:
            globals()[name](context)
            results[name] = ""
        except BaseException as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results
