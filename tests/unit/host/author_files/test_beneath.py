"""Paths that must not lead out of a directory, walked by the kernel and without its help."""

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybackend import author_files as reading
from pybackend.author_files import open_beneath, walk_beneath
from pybackend.sandbox.removal import remove_tree

Open = Callable[[int, str], int]


@pytest.fixture(params=[open_beneath, walk_beneath])
def opening(request) -> Open:
    return request.param


@contextmanager
def held(directory: Path):
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def reached(opening: Open, directory: Path, path: str) -> str:
    """What a path leads to: the name of the file, or of the error."""
    descriptors = set(os.listdir("/proc/self/fd"))
    try:
        with held(directory) as top:
            found = opening(top, path)
    except OSError as error:
        assert set(os.listdir("/proc/self/fd")) == descriptors
        return type(error).__name__ if error.errno not in {18, 22, 40} else os.strerror(error.errno)
    try:
        return os.readlink(f"/proc/self/fd/{found}").removeprefix(f"{directory.resolve()}/")
    finally:
        os.close(found)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model as a ConfigMap lays it out, beside a secret."""
    (tmp_path / "secret").write_text("key")
    model = tmp_path / "m"
    (model / "..2026_01_01/1").mkdir(parents=True)
    (model / "..2026_01_01/config.pbtxt").write_text("")
    (model / "..2026_01_01/1/model.py").write_text("")
    (model / "..data").symlink_to("..2026_01_01")
    (model / "config.pbtxt").symlink_to("..data/config.pbtxt")
    (model / "1").mkdir()
    (model / "1/model.py").symlink_to("../..data/1/model.py")
    for name, target in {
        "up": "../secret",
        "absolute": str(tmp_path / "secret"),
        "own_absolute": str(model / "config.pbtxt"),
        "root": "/",
        "round": "../m/config.pbtxt",
        "loop": "loop",
        "magic": "/proc/self/root",
        "dangling": "nowhere",
    }.items():
        (model / name).symlink_to(target)
    return model


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("config.pbtxt", "..2026_01_01/config.pbtxt"),
        ("1/model.py", "..2026_01_01/1/model.py"),
        ("./1//../1/./model.py", "..2026_01_01/1/model.py"),
        ("..data/1/../config.pbtxt", "..2026_01_01/config.pbtxt"),
        ("up", "Invalid cross-device link"),
        ("../secret", "Invalid cross-device link"),
        ("1/../../secret", "Invalid cross-device link"),
        ("..data/../../secret", "Invalid cross-device link"),
        ("absolute", "Invalid cross-device link"),
        ("own_absolute", "Invalid cross-device link"),
        ("/etc/passwd", "Invalid cross-device link"),
        ("root/etc/passwd", "Invalid cross-device link"),
        ("round", "Invalid cross-device link"),
        ("magic/etc/passwd", "Invalid cross-device link"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "FileNotFoundError"),
        ("missing", "FileNotFoundError"),
        ("config.pbtxt/more", "NotADirectoryError"),
    ],
)
def test_where_paths_lead(opening, model, path, expected):
    assert reached(opening, model, path) == expected


def test_a_name_with_a_zero_byte_is_refused(model):
    assert reached(open_beneath, model, "config.pbtxt\0.txt") == "Invalid argument"


_FORBID = """
import ctypes, errno, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def instruction(code, yes, no, value): return struct.pack("HBBI", code, yes, no, value)
program = (
    instruction(0x20, 0, 0, 0)                                     # the call's number
    + instruction(0x15, 0, 1, 437)                                 # openat2?
    + instruction(0x06, 0, 0, 0x00050000 | int(sys.argv[2]))       # an error
    + instruction(0x06, 0, 0, 0x7FFF0000)                          # allowed
)
class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Filter(4, program)), 0, 0) == 0
from pathlib import Path
from pybackend.author_files import read_beneath
for name in ("config.pbtxt", "up"):
    try:
        print(read_beneath(Path(sys.argv[1]), name, 100))
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("number", [1, 38], ids=["EPERM", "ENOSYS"])
def test_a_kernel_or_profile_without_the_call(model, number):
    """As under Docker's older seccomp profiles: the walk without the kernel's help takes its place."""
    done = subprocess.run(
        [sys.executable, "-c", _FORBID, model, str(number)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines()[0] == "b''", done.stderr
    assert "leads out of" in done.stdout.splitlines()[1]


def test_the_kernel_is_asked(model):
    """The number and the structure are right: this kernel knows the call."""
    with held(model) as top:
        try:
            os.close(reading._open_by_kernel(top, "config.pbtxt"))
        except OSError as error:
            if error.errno in {1, 38}:
                pytest.skip("the kernel here has no openat2, or forbids it")
            raise
    assert ctypes.sizeof(reading._OpenHow) == 24


def test_a_deep_path_takes_few_descriptors(opening, tmp_path):
    """Its author can make it as deep as no path can be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inner = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2100):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 300, hard))
    try:
        with held(tmp_path) as top, pytest.raises(OSError, match="File name too long"):
            opening(top, "/".join(["d"] * 2100))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        parent = os.open(tmp_path, os.O_RDONLY)
        remove_tree("d", parent)
        os.close(parent)
