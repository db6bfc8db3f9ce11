"""Files that come with a load: where they may go, and that they do not stay."""

import asyncio
import os
import subprocess
import sys
from pathlib import PurePosixPath

import pytest

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.repository.file_override import OverrideDirectories, check_keys, override_paths
from pybackend.sandbox.runtime_directory import RuntimeDirectory


@pytest.fixture
def rooms(tmp_path):
    """Where rooms of servers lie."""
    return tmp_path / "rooms"


@pytest.fixture
def directories(rooms):
    directories = OverrideDirectories(RuntimeDirectory([rooms]))
    yield directories
    directories.close()
    assert not rooms.exists() or list(rooms.iterdir()) == []


@pytest.mark.parametrize("key", ["1/model.py", "", "config", "FILE:1/model.py", " file:1/model.py"])
def test_keys_that_name_no_file(key):
    with pytest.raises(InferenceError) as refused:
        check_keys({"file:1/model.py": b"", key: b""})
    assert refused.value.message.startswith(f"unrecognized load parameter '{key}'.")
    assert refused.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "path", ["", ".", "..", "/", "/../etc/passwd", "//", "../x", "1/../../x", "../m/1/model.py", "1/", "a\0b", "./.."]
)
def test_paths_that_leave_the_folder(path):
    with pytest.raises(ModelLoadError) as refused:
        override_paths({f"file:{path}": b""})
    assert "is no path inside the model's folder" in refused.value.message


@pytest.mark.parametrize("path", ["1/model.py", "/1/model.py", "//1/model.py"])
def test_a_path_begins_in_the_folder_with_and_without_a_slash(path):
    assert override_paths({f"file:{path}": b""}) == {f"file:{path}": PurePosixPath("1/model.py")}


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (("1/model.py", "1//model.py"), "several of the files given have the same path"),
        (("1/model.py", "2/../1/model.py"), "several of the files given have the same path"),
        (("1", "1/model.py"), "'file:1/model.py' lies below a path that is a file itself"),
    ],
)
def test_paths_that_exclude_each_other(paths, reason):
    with pytest.raises(ModelLoadError) as refused:
        override_paths({f"file:{path}": b"" for path in paths})
    assert refused.value.message == reason


def test_files_are_written_as_they_are_and_removed_with_their_last_user(directories, rooms):
    contents = {
        "file:1/model.py": b"code",
        "file:./1/weights/a.bin": memoryview(b"\0\xff"),
        "file:labels.txt": bytearray(),
        "file:é …/x": b"1",
    }
    directory = directories.make("m", contents)
    assert directory.name == "m"
    written = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert written == {"1/model.py": b"code", "1/weights/a.bin": b"\0\xff", "labels.txt": b"", "é …/x": b"1"}
    (root,) = rooms.iterdir()
    assert root.stat().st_mode & 0o066 == 0, "others could list it"
    # Processes of models may be other users, and must be able to read their own files.
    assert all(path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644) for path in directory.rglob("*"))
    directories.hold(directory)
    directories.hold(directory)
    other = directories.make("m", contents)
    assert other != directory
    asyncio.run(directories.let_go(directory))
    assert directory.exists()
    asyncio.run(directories.let_go(directory))
    assert not directory.exists()
    assert other.exists()


def test_directories_of_others_are_not_touched(directories, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    directories.make("m", {"file:1/model.py": b""})
    directories.hold(mine)
    asyncio.run(directories.let_go(mine))
    asyncio.run(directories.let_go(mine))
    assert mine.exists()
    mine.rmdir()


@pytest.mark.parametrize("path", ["x" * 300, "\udcff\ud800"])
def test_files_that_cannot_be_written_leave_nothing(directories, rooms, path):
    with pytest.raises(ModelLoadError, match="the files given cannot be written: "):
        directories.make("m", {"file:1/model.py": b"", f"file:1/{path}": b""})
    (root,) = rooms.iterdir()
    assert list(root.iterdir()) == []


def test_nothing_is_written_after_the_end(directories):
    directories.close()
    with pytest.raises(ModelLoadError, match="stopping"):
        directories.make("m", {"file:1/model.py": b""})


DYING = """
import os, signal, sys
from pathlib import Path
from pybackend.repository.file_override import OverrideDirectories
from pybackend.sandbox.runtime_directory import RuntimeDirectory

print(OverrideDirectories(RuntimeDirectory([Path(sys.argv[1])])).make("m", {"file:1/model.py": b"code"}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_server_left_is_removed_by_the_next_one(directories, rooms):
    alive = directories.make("m", {"file:1/model.py": b"code"})
    killed = subprocess.run([sys.executable, "-c", DYING, str(rooms)], capture_output=True, text=True, check=False)
    left = killed.stdout.strip()
    assert os.path.exists(f"{left}/1/model.py"), killed
    (rooms / "file").write_text("")
    (rooms / "link").symlink_to(rooms)
    directories.remove_abandoned()
    assert not os.path.exists(os.path.dirname(os.path.dirname(left)))
    assert alive.exists()  # its server lives
    (rooms / "file").unlink()
    (rooms / "link").unlink()
