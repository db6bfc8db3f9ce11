"""Archives: the same bytes for the same files, readable by everything that reads such archives."""

import gzip
import io
import os
import subprocess
import tarfile

import pytest

from pybackend_tools.pack.contents import Contents, file_of, file_with, walk
from pybackend_tools.pack.writer import MODIFIED_S, write_archive

FORMATS = ["tar.gz", "tar.zst"]
LONG = "lib/" + "a-long-name/" * 20 + "file.py"


@pytest.fixture
def files(tmp_path):
    tree = tmp_path / "tree"
    for name, content in {
        "bin/program": b"\x7fELF" + bytes(range(256)) * 9000,
        "empty": b"",
        LONG: b"print()\n",
        "data/größe": b"x" * 1_048_576,
        "data/random": os.urandom(700_000),
    }.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "bin/program").chmod(0o4775)
    (tree / "bin/link").symlink_to("program")
    (tree / "dir-link").symlink_to("data")
    os.mkfifo(tree / "pipe")
    contents = Contents()
    for name, path in walk(tree):
        contents.add(file_of(name, path))
    contents.add(file_with("made", b"in memory", executable=True))
    return contents


def _archive(files, archive_format, threads):
    buffer = io.BytesIO()
    told = []
    write_archive(buffer, files.sorted(), archive_format, threads, files.size_bytes, lambda *done: told.append(done))
    assert told
    assert all(done <= total == files.size_bytes for done, total in told)
    return buffer.getvalue()


@pytest.mark.parametrize("archive_format", FORMATS)
def test_any_number_of_threads_writes_the_same_bytes(archive_format, files):
    assert len({_archive(files, archive_format, threads) for threads in (1, 2, 5)}) == 1


@pytest.mark.parametrize("archive_format", FORMATS)
def test_gnu_tar_unpacks_it(archive_format, files, tmp_path):
    path = tmp_path / f"a.{archive_format}"
    path.write_bytes(_archive(files, archive_format, 2))
    (tmp_path / "out").mkdir()
    if archive_format == "tar.zst":
        import zstandard

        tar = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    else:
        tar = gzip.decompress(path.read_bytes())
    subprocess.run(["tar", "xf", "-", "-C", tmp_path / "out"], input=tar, check=True)
    for file in files.sorted():
        out = tmp_path / "out" / file.name
        if file.link is None:
            assert out.read_bytes() == b"".join(file.chunks())
            assert bool(out.stat().st_mode & 0o111) == (file.mode == 0o755)
        else:
            assert os.readlink(out) == file.link
    assert not (tmp_path / "out" / "pipe").exists()


def test_members_tell_nothing_of_who_packed_them(files, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with tarfile.open(fileobj=io.BytesIO(_archive(files, "tar.gz", 1))) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(files.files)
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in members} == {(0, 0, "root", MODIFIED_S)}
    assert {member.mode for member in members if member.isreg()} == {0o644, 0o755}


def test_time_of_members_can_be_given(files, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with tarfile.open(fileobj=io.BytesIO(_archive(files, "tar.gz", 1))) as tar:
        assert {member.mtime for member in tar} == {1700000000}


def test_a_file_that_shrinks_is_noticed(files, tmp_path):
    (tmp_path / "tree" / "data" / "random").write_bytes(b"short")
    with pytest.raises(OSError, match="was truncated"):
        _archive(files, "tar.gz", 2)


def test_digest_sees_names_rights_links_and_content(files):
    before = files.digest(2)
    assert before == files.digest(1)
    for changed in (
        file_with("made", b"in Memory", executable=True),
        file_with("made", b"in memory"),
        file_with("more", b""),
    ):
        kept = files.files.get(changed.name)
        files.add(changed)
        assert files.digest(2) != before
        del files.files[changed.name]
        files.add(kept)
    assert files.digest(2) == before
