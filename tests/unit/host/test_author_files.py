"""Files that are read: regular ones of a bounded size, without waiting."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pybackend.author_files import (
    FileRefused,
    exists_beneath,
    is_file_beneath,
    open_regular,
    read_beneath,
    read_regular,
    read_start_beneath,
)

TERABYTE = 1 << 40


def ways(directory: Path, name: str):
    return (
        lambda: read_beneath(directory, name, 1000),
        lambda: read_start_beneath(directory, name, 1000),
        lambda: read_regular(directory / name, 1000),
        lambda: open_regular(directory / name).close(),
    )


def refusals(directory: Path, name: str) -> set[str]:
    """What every way to read a file says."""
    said = set()
    for way in ways(directory, name):
        with pytest.raises(FileRefused) as caught:
            way()
        said.add(str(caught.value.strerror))
    return said


def test_a_fifo_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert refusals(tmp_path, "fifo") == {"it is a FIFO, not a regular file"}


def test_a_fifo_is_not_opened(tmp_path):
    """Its writer would be released."""
    os.mkfifo(tmp_path / "fifo")
    refusals(tmp_path, "fifo")
    with pytest.raises(OSError, match="No such device or address"):  # there is no reader, and has been none
        os.open(tmp_path / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_a_socket_and_a_directory(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert refusals(tmp_path, "socket") == {"it is a socket, not a regular file"}
    (tmp_path / "directory").mkdir()
    assert refusals(tmp_path, "directory") == {"Is a directory"}


def test_a_device(tmp_path):
    try:
        os.mknod(tmp_path / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    assert refusals(tmp_path, "zero") == {"it is a device, not a regular file"}


def test_a_lease_does_not_block(tmp_path):
    """Opening a file on which another process holds a lease would wait for 45 seconds."""
    (tmp_path / "leased").write_bytes(b"content")
    code = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "leased"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        assert refusals(tmp_path, "leased") == {
            "another process holds a lease on it and was asked to release it: try again"
        }
        holder.stdin.close()
    assert read_beneath(tmp_path, "leased", 7) == b"content"
    assert fcntl.fcntl(os.open(tmp_path / "leased", os.O_RDONLY), fcntl.F_GETLEASE) == fcntl.F_UNLCK


def test_a_file_that_is_too_large(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(TERABYTE)
    for read in (
        lambda: read_beneath(tmp_path, "sparse", 1000),
        lambda: read_regular(tmp_path / "sparse", 1000),
    ):
        with pytest.raises(FileRefused) as caught:
            read()
        assert caught.value.strerror == f"it has {TERABYTE} bytes, more than the 1000 that it may have"
    assert read_start_beneath(tmp_path, "sparse", 1000) == bytes(1000)


def test_a_file_that_hides_its_size():
    """A file of the kernel's says that it has no bytes."""
    assert len(read_regular(Path("/proc/self/status"), 1 << 20)) > 100
    with pytest.raises(FileRefused, match="it has 11 bytes, more than the 10"):
        read_regular(Path("/proc/self/status"), 10)


def test_the_bound_itself_is_allowed(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_beneath(tmp_path, "file", 10) == b"0123456789"
    with pytest.raises(FileRefused, match="it has 10 bytes, more than the 9"):
        read_beneath(tmp_path, "file", 9)


def test_a_file_that_is_swapped_for_a_fifo_while_it_is_read(tmp_path):
    """What was looked at is what is opened, whatever the path leads to by then."""
    (tmp_path / "regular").write_bytes(b"content")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").symlink_to("regular")
    over = threading.Event()

    def swap() -> None:
        number = 0
        while not over.is_set():
            number += 1
            (tmp_path / "next").symlink_to(("fifo", "regular")[number % 2])
            (tmp_path / "next").replace(tmp_path / "file")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(500):
            try:
                seen.add(read_beneath(tmp_path, "file", 7))
            except FileRefused as error:
                seen.add(error.strerror)
    finally:
        over.set()
        swapper.join()
    assert seen <= {b"content", "it is a FIFO, not a regular file"}


def test_a_directory_may_be_a_link(tmp_path):
    """Whoever runs the server has put it into the repository."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_bytes(b"content")
    (tmp_path / "m").symlink_to("elsewhere")
    assert read_beneath(tmp_path / "m", "file", 100) == b"content"


def test_what_is_there(tmp_path):
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text("")
    os.mkfifo(model / "fifo")
    (model / "dangling").symlink_to("nowhere")
    for name, target in {"secret": "../secret", "no_secret": "../nothing"}.items():
        (model / name).symlink_to(target)
    (tmp_path / "secret").write_text("")
    names = ["1/model.py", "1", "fifo", "dangling", "missing", "1/model.py/more", "secret", "no_secret"]
    assert [is_file_beneath(model, name) for name in names] == [True, *[False] * 5, True, True]
    assert [exists_beneath(model, name) for name in names] == [True, True, True, *[False] * 3, True, True]
