"""Making directories where other users may change everything meanwhile."""

import os

import pytest

from pybackend.sandbox.file_access import Account
from pybackend.sandbox.new_directories import make_directory
from tests.sandbox.hosts import IS_ROOT, OTHER_UID


def test_directories_are_as_the_one_beside_them(tmp_path):
    tmp_path.chmod(0o2751)
    make_directory(f"{tmp_path}/deep/kept/", None)
    assert (tmp_path / "deep" / "kept").stat().st_mode == tmp_path.stat().st_mode


@pytest.mark.parametrize("depth", [0, 1])
def test_what_takes_the_place_of_a_new_directory_is_left_alone(tmp_path, monkeypatch, depth):
    """Whoever may write beside it can do so at the very moment."""
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    made = shared / "kept"
    mkdir = os.mkdir

    def mkdir_and_lose(name, mode=0o777, *, dir_fd=None):
        mkdir(name, mode, dir_fd=dir_fd)
        if made.is_dir() and not made.is_symlink():
            made.rename(shared / "aside")
            made.symlink_to(secret)

    monkeypatch.setattr(os, "mkdir", mkdir_and_lose)
    with pytest.raises(OSError, match="directory"):
        make_directory(str(made / "deep" if depth else made), None)
    assert secret.stat().st_mode & 0o777 == 0o700
    assert os.listdir(secret) == []


def test_a_full_directory_in_its_place_is_left_alone(tmp_path, monkeypatch):
    full = tmp_path / "full"
    (full / "file").mkdir(parents=True)
    full.chmod(0o700)
    mkdir = os.mkdir

    def mkdir_and_swap(name, mode=0o777, *, dir_fd=None):
        mkdir(name, mode, dir_fd=dir_fd)
        (tmp_path / "kept").rename(tmp_path / "aside")
        full.rename(tmp_path / "kept")

    monkeypatch.setattr(os, "mkdir", mkdir_and_swap)
    with pytest.raises(OSError, match="another directory"):
        make_directory(str(tmp_path / "kept"), None)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(not IS_ROOT, reason="only root may write where its models may not")
def test_nothing_is_made_where_the_user_could_not_make_it():
    for path in ("/etc/pybackend-model", "/run/pybackend-model/deep"):
        with pytest.raises(OSError, match="may not write in /"):
            make_directory(path, Account(OTHER_UID, frozenset()))
        assert not os.path.lexists(path)
