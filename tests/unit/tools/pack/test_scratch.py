"""Directories and drafts of packs that were killed are removed, those of running ones never."""

import os
import stat
import subprocess
import sys

import pytest

from pybackend_tools.pack.errors import OutputError
from pybackend_tools.pack.scratch import check_writable, draft_of, scratch_directory

KILLED = """
import os, signal, sys
from pathlib import Path
from pybackend_tools.pack.scratch import draft_of, scratch_directory
with scratch_directory(Path(sys.argv[1])) as directory, draft_of(Path(sys.argv[2])) as draft:
    (directory / "file").write_text("x")
    draft.write(b"half an archive")
    draft.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_pack_leaves_is_removed_by_the_next(tmp_path):
    work, archive = tmp_path / "work", tmp_path / "env.tar.gz"
    archive.write_bytes(b"the one before")
    subprocess.run([sys.executable, "-c", KILLED, work, archive], check=False)
    assert len(list(work.iterdir())) == 1
    assert len(list(tmp_path.glob(".env.tar.gz.*.partial"))) == 1
    assert archive.read_bytes() == b"the one before"
    other = tmp_path / ".other.tar.gz.abc.partial"
    other.touch()
    with scratch_directory(work) as directory, draft_of(archive) as draft:
        assert list(work.iterdir()) == [directory]
        draft.write(b"new")
        assert archive.read_bytes() == b"the one before"
    assert archive.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.tar.gz.abc.partial", "env.tar.gz", "work"]


def test_packs_at_the_same_time_leave_each_other_alone(tmp_path):
    archive = tmp_path / "env.tar.gz"
    with scratch_directory(tmp_path / "work") as first, draft_of(archive) as one:
        with scratch_directory(tmp_path / "work") as second, draft_of(archive) as two:
            assert first != second
            assert first.is_dir()
            two.write(b"two")
        assert archive.read_bytes() == b"two"
        one.write(b"one")
    assert archive.read_bytes() == b"one"
    assert list((tmp_path / "work").iterdir()) == []


def test_archive_has_the_rights_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        with draft_of(tmp_path / "a.tar.gz") as draft:
            draft.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.tar.gz").stat().st_mode) == 0o640


def test_a_draft_that_fails_is_not_kept(tmp_path):
    with pytest.raises(ValueError, match="halfway"), draft_of(tmp_path / "a.tar.gz"):
        raise ValueError("halfway")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_to_be_full(tmp_path):
    with (
        pytest.raises(OutputError, match=r"no space left in .*make room, or name another place"),
        draft_of(tmp_path / "a"),
    ):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match="it is a directory; name a file in it"):
        check_writable(tmp_path)
    with pytest.raises(OutputError, match="does not exist"):
        check_writable(tmp_path / "none" / "a.tar.gz")
    with pytest.raises(OutputError, match=r"cannot write /proc/a\.tar\.gz"):
        check_writable(tmp_path.__class__("/proc/a.tar.gz"))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError), scratch_directory(tmp_path / "file" / "work"):
        pass
    check_writable(tmp_path / "a.tar.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
