"""Removing directories that strangers have filled."""

import os
import subprocess
import sys

import pytest

from pybackend.sandbox.removal import open_directory, remove_tree
from tests.sandbox.hosts import IS_ROOT, OTHER_UID, public_directory


@pytest.fixture
def remove(tmp_path):
    """Removes what has a name in the test's directory."""
    descriptor = open_directory(str(tmp_path))
    yield lambda name: remove_tree(name, descriptor)
    os.close(descriptor)


def test_all_kinds_of_entries_go_and_nothing_outside_does(tmp_path, remove):
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "kept").write_text("x")
    filled = tmp_path / "filled"
    (filled / "a" / "b" / "c").mkdir(parents=True)
    (filled / "a" / "file").write_text("x")
    (filled / "a" / "b" / "link").symlink_to(outside / "inner")
    (filled / "dangling").symlink_to("nowhere")
    (filled / "upwards").symlink_to("..")
    os.mkfifo(filled / "a" / "pipe")
    os.link(outside / "inner" / "kept", filled / "another name")
    remove("filled")
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "inner" / "kept").read_text() == "x"


def test_a_link_is_removed_itself(tmp_path, remove):
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    remove("link")
    assert os.listdir(tmp_path) == ["outside"]


def test_what_is_not_there(remove):
    with pytest.raises(FileNotFoundError):
        remove("nothing")


def test_more_entries_than_are_read_at_a_time(tmp_path, remove):
    for name in ("one", "two"):
        (tmp_path / "filled" / name).mkdir(parents=True)
        for index in range(2500):
            (tmp_path / "filled" / name / str(index)).touch()
    remove("filled")
    assert os.listdir(tmp_path) == []


AS_ANOTHER_USER = """
import os, sys
from pybackend.sandbox.removal import open_directory, remove_tree
os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
os.chdir(sys.argv[1])
os.makedirs("filled/a/b")
open("filled/a/b/file", "w").close()
for path in ("filled/a/b", "filled/a", "filled"):
    os.chmod(path, 0)
remove_tree("filled", open_directory("."))
print(os.listdir("."))
"""


@pytest.mark.skipif(not IS_ROOT, reason="permissions are put aside as another user than root")
def test_directories_whose_permissions_were_taken_away():
    public = public_directory()
    try:
        os.chown(public, OTHER_UID, OTHER_UID)
        said = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, str(public), str(OTHER_UID)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.stdout == "[]\n", said
    finally:
        remove_tree(public.name, open_directory(str(public.parent)))


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount")
def test_a_mount_is_not_entered(tmp_path, remove):
    """A bind mount of the same file system, which device numbers do not tell."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    mounted = tmp_path / "filled" / "a" / "mounted"
    mounted.mkdir(parents=True)
    (tmp_path / "filled" / "file").touch()
    if subprocess.run(["mount", "--bind", tmp_path / "outside", mounted], check=False, capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    try:
        with pytest.raises(OSError, match="mounted"):
            remove("filled")
        assert (tmp_path / "outside" / "kept").exists()
    finally:
        subprocess.run(["umount", mounted], check=True)
    remove("filled")
    assert os.listdir(tmp_path) == ["outside"]
