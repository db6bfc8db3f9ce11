"""Archives from anybody: what is harmless is unpacked as it was packed, everything else is refused and leaves nothing."""

import contextlib
import gzip
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pybackend.environment import archive as archive_module
from pybackend.environment.unpacking import Cancelled, unpack
from pybackend.errors import ModelEnvironmentError
from tests.unit.host.environment.conftest import files, header, tar_of

HONEST = [
    (header("./bin", tarfile.DIRTYPE), b""),
    (header("./bin/python3.12", mode=0o755), b"program" * 1000),
    (header("bin/python", tarfile.SYMTYPE, "python3.12"), b""),
    (header("bin/again", tarfile.LNKTYPE, "./bin/python3.12"), b""),
    (header("lib/deep/" + "x" * 150 + "/file", mode=0o600), b"text"),
    (header("share/terminfo/x", mode=0o6777), b"rights"),
    (header("lib/terminfo", tarfile.SYMTYPE, "../share/terminfo"), b""),
    (header("lib/up", tarfile.SYMTYPE, "deep/../../share"), b""),
    (header("empty"), b""),
]


def unpacked(path, directory, cancelled=None):
    with path.open("rb") as file:
        return unpack(file, str(path), directory, cancelled or threading.Event())


def refusal(path, tmp_path):
    """What is said about an archive; nothing of it stays, nothing appears elsewhere."""
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ModelEnvironmentError) as caught:
        unpacked(path, tmp_path / "env")
    assert sorted(os.listdir(tmp_path)) == before
    assert str(path) in caught.value.message
    return caught.value.message.replace(str(path), "ARCHIVE")


@pytest.mark.spec("pb-V01")
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress], ids=["tar", "gzip", "zstd"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_an_archive_is_unpacked_as_it_was_packed(compress, form, archive, tmp_path):
    directory = tmp_path / "env"
    inventory = unpacked(archive(compress(tar_of(*HONEST, format=form))), directory)
    assert (directory / "bin" / "python").read_bytes() == b"program" * 1000
    assert (directory / "bin" / "again").samefile(directory / "bin" / "python3.12")
    assert (directory / "lib" / "terminfo" / "x").read_bytes() == b"rights"
    modes = {
        name: stat.S_IMODE((directory / name).stat().st_mode)
        for name in ("bin", "bin/python3.12", "share/terminfo/x", "empty")
    }
    assert modes == {"bin": 0o755, "bin/python3.12": 0o755, "share/terminfo/x": 0o755, "empty": 0o644}
    assert inventory.differences(directory, contents=True) == []
    assert inventory.total_bytes == 2 * 7000 + 4 + 6


def test_compiled_files_stay_valid(archive, tmp_path):
    """They remember when their sources were changed."""
    info = header("module.py")
    info.mtime = 1_600_000_000
    unpacked(archive(tar_of((info, b"x = 1"))), tmp_path / "env")
    assert (tmp_path / "env" / "module.py").stat().st_mtime == 1_600_000_000


@pytest.mark.parametrize("when", [-5.0, 1e300, float("inf"), float("nan")], ids=["negative", "huge", "inf", "nan"])
def test_impossible_times_are_none(when, archive, tmp_path):
    info = header("file")
    info.pax_headers = {"mtime": str(when)}
    unpacked(archive(tar_of((info, b"x"), format=tarfile.PAX_FORMAT)), tmp_path / "env")
    assert (tmp_path / "env" / "file").read_bytes() == b"x"


def test_the_umask_of_the_host_does_not_matter(archive, tmp_path):
    code = (
        "import os, sys, threading; from pathlib import Path; from pybackend.environment.unpacking import unpack\n"
        "os.umask(0o077); file = open(sys.argv[1], 'rb'); unpack(file, 'x', Path(sys.argv[2]), threading.Event())"
    )
    path = archive(tar_of(*HONEST))
    subprocess.run([sys.executable, "-c", code, path, tmp_path / "env"], check=True)
    modes = {
        stat.S_IMODE((tmp_path / "env" / name).stat().st_mode) for name in ("", "bin", "lib", "lib/deep", "bin/python")
    }
    assert modes == {0o755}


def test_a_file_that_is_there_twice_is_the_last_one(archive, tmp_path):
    entries = [
        *files(a=b"first", b=b"other"),
        (header("c", tarfile.SYMTYPE, "b"), b""),
        (header("a", tarfile.LNKTYPE, "b"), b""),
        *files(b=b"last", c=b"file"),
    ]
    inventory = unpacked(archive(tar_of(*entries)), tmp_path / "env")
    found = {name: (tmp_path / "env" / name).read_bytes() for name in "abc"}
    assert found == {"a": b"other", "b": b"last", "c": b"file"}
    assert inventory.differences(tmp_path / "env", contents=True) == []


def test_what_is_only_counted_may_be_there_twice(archive, tmp_path):
    """As `pybackend env inspect` reads an archive to which a file was appended again."""
    entries = [
        *files(a=b"first", b=b"kept"),
        (header("c", tarfile.LNKTYPE, "a"), b""),
        (header("d", tarfile.LNKTYPE, "c"), b""),
        *files(a=b"second", c=b"third"),
    ]
    with archive(tar_of(*entries)).open("rb") as file:
        inventory = unpack(file, "x", tmp_path / "env", threading.Event(), lambda name: name in {"b", "d"})
    assert {name: size for name, (size, _) in inventory.files.items()} == {"a": 6, "b": 4, "c": 5, "d": 5}
    assert [path.name for path in (tmp_path / "env").iterdir()] == ["b"]


LINK_OUT = header("way", tarfile.SYMTYPE, "..")
MALICIOUS = {
    "dots": ([(header("a/../../evil"), b"x")], "Path contains '..': 'a/../../evil'"),
    "only_dots": ([(header("..", tarfile.DIRTYPE), b"")], "Path contains '..': '..'"),
    "inner_dots": ([(header("a/../b"), b"x")], "Path contains '..': 'a/../b'"),
    "absolute": ([(header("/tmp/evil"), b"x")], "Path is absolute: '/tmp/evil'"),
    "absolute_directory": ([(header("//etc/", tarfile.DIRTYPE), b"")], "Path is absolute: '//etc'"),
    "through_link": ([(LINK_OUT, b""), (header("way/evil"), b"x")], "Path leads through a symbolic link: 'way/evil'"),
    "through_inner_link": (
        [*files(a__b=b"x"), (header("c", tarfile.SYMTYPE, "a"), b""), *files(c__d=b"x")],
        "Path leads through a symbolic link: 'c/d'",
    ),
    "link_out": ([(LINK_OUT, b"")], "the link 'way' leads out of the environment, to '..'"),
    "link_far_out": (
        [(header("a/b", tarfile.SYMTYPE, "../../../etc/passwd"), b"")],
        "the link 'a/b' leads out of the environment, to '../../../etc/passwd'",
    ),
    "links_that_add_up": (
        [
            (header("d/real", tarfile.DIRTYPE), b""),
            (header("d/up", tarfile.SYMTYPE, ".."), b""),
            (header("out", tarfile.SYMTYPE, "d/up/../etc"), b""),
        ],
        "the link 'out' leads out of the environment, to 'd/up/../etc'",
    ),
    "link_to_link_out": (
        [(header("one", tarfile.SYMTYPE, "two/x"), b""), (header("two", tarfile.SYMTYPE, "three/.."), b""),
         (header("three", tarfile.SYMTYPE, "."), b"")],
        "leads out of the environment",
    ),
    "absolute_link": ([(header("bin/python", tarfile.SYMTYPE, "/usr/bin/python3"), b"")], "leads to an absolute path"),
    "empty_link": ([(header("a", tarfile.SYMTYPE, ""), b"")], "the link 'a' has an empty target"),
    "link_over_directory": ([*files(a__b=b"x"), (header("a", tarfile.SYMTYPE, "c"), b"")], "'a' is both a directory and"),
    "directory_over_link": (
        [*files(b=b"x"), (header("a", tarfile.SYMTYPE, "b"), b""), (header("a", tarfile.DIRTYPE), b"")],
        "'a' is both a directory and something else",
    ),
    "file_as_directory": ([*files(a=b"x"), *files(a__b=b"x")], "'a' is both a directory and something else"),
    "root_as_file": ([(header("./"), b"x")], "'.' is both a directory and something else"),
    "hard_link_out": ([(header("a", tarfile.LNKTYPE, "../../etc/passwd"), b"")], "Path contains '..'"),
    "absolute_hard_link": ([(header("a", tarfile.LNKTYPE, "/etc/passwd"), b"")], "Path is absolute: '/etc/passwd'"),
    "hard_link_to_nothing": ([(header("a", tarfile.LNKTYPE, "etc"), b"")], "'a' is a hard link to 'etc', which is not an earlier file"),
    "hard_link_to_link": (
        [(header("b", tarfile.SYMTYPE, "c"), b""), (header("a", tarfile.LNKTYPE, "b"), b"")],
        "'a' is a hard link to 'b', which is not an earlier file",
    ),
    "hard_link_to_itself": ([*files(a=b"x"), (header("a", tarfile.LNKTYPE, "a"), b"")], "which is not an earlier file"),
    "fifo": ([(header("a", tarfile.FIFOTYPE), b"")], "'a' is neither a file nor a directory nor a link"),
    "disk": ([(header("dev/sda", tarfile.BLKTYPE), b"")], "'dev/sda' is neither a file nor a directory nor a link"),
    "terminal": ([(header("dev/tty", tarfile.CHRTYPE), b"")], "'dev/tty' is neither a file nor a directory nor a link"),
    "sparse": ([(header("a", tarfile.GNUTYPE_SPARSE), b"")], "'a' is a sparse file"),
    "long_name": ([(header("x" * 300), b"x")], "this file system does not accept the name"),
}  # fmt: skip


@pytest.mark.spec("pb-V03")
@pytest.mark.parametrize("case", MALICIOUS)
def test_what_would_do_harm_is_refused(case, archive, tmp_path):
    entries, expected = MALICIOUS[case]
    assert expected in refusal(archive(tar_of(*files(before=b"harmless"), *entries)), tmp_path)


@pytest.mark.spec("pb-V03")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"path": "../evil"}, "Path contains '..'"),
        ({"path": "a\0b"}, "Path is not a valid file name"),
        ({"path": "x/" * 3000 + "y"}, "Path is not a valid file name"),
        ({"size": "-1024"}, "broken or truncated"),
        ({"size": str(2**60)}, "it holds more than 2000000 files or 200 GiB"),
        ({"size": "many"}, "broken or truncated"),
        ({"mtime": "today"}, "broken or truncated"),
        ({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, "it has sparse files"),
        ({"GNU.sparse.map": "0,1"}, "it has sparse files"),
        ({"GNU.sparse.size": "1"}, "it has sparse files"),
        ({"comment": "x" * 2_000_000}, "an extended header is too large"),
    ],
    ids=[
        "path",
        "zero",
        "long",
        "negative",
        "huge",
        "no_size",
        "no_time",
        "sparse_1.0",
        "sparse_0.1",
        "sparse_0.0",
        "extended",
    ],
)
def test_headers_that_lie_are_refused(headers, expected, archive, tmp_path):
    info = header("file")
    info.pax_headers = headers
    assert expected in refusal(archive(tar_of((info, b"x"), format=tarfile.PAX_FORMAT)), tmp_path)


EXTENDED = {
    "long_name": tarfile.GNUTYPE_LONGNAME,
    "long_link": tarfile.GNUTYPE_LONGLINK,
    "pax": tarfile.XHDTYPE,
    "solaris": tarfile.SOLARIS_XHDTYPE,
    "global": tarfile.XGLTYPE,
}


@pytest.mark.spec("pb-V03")
@pytest.mark.parametrize("kind", EXTENDED.values(), ids=EXTENDED)
def test_a_huge_header_is_refused_before_it_is_read(kind, archive, tmp_path):
    """Whatever the interpreter's tarfile would do with it."""
    path = archive(gzip.compress(header("x", kind, size=300 << 20).tobuf() + bytes(16 << 20), 1))
    tracemalloc.start()
    try:
        assert "an extended header is too large" in refusal(path, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [*EXTENDED.values(), tarfile.REGTYPE], ids=[*EXTENDED, "file"])
def test_a_negative_size_is_damage(kind, archive, tmp_path):
    content = header("x", kind, size=-1024).tobuf(tarfile.GNU_FORMAT) + tar_of(*HONEST)
    assert "has a negative size): copy it again" in refusal(archive(content), tmp_path)


@pytest.mark.parametrize("kind", [*EXTENDED.values()], ids=EXTENDED)
def test_headers_without_end_are_refused(kind, archive, tmp_path):
    block = header("x", kind).tobuf()
    assert "more than 64 extended headers precede one file" in refusal(archive(block * 100 + tar_of()), tmp_path)


def test_headers_count_as_content(archive, tmp_path, monkeypatch):
    """Else a small archive could keep the server busy for days."""
    monkeypatch.setattr(archive_module, "FREE_BYTES", 1 << 20)
    info = header("file")
    info.pax_headers = {"comment": "x" * 1_000_000}
    packed = gzip.compress(tar_of(*[(info, b"")] * 4, format=tarfile.PAX_FORMAT), 9)
    assert "and unpacks to more than" in refusal(archive(packed), tmp_path)


def test_an_extended_header_needs_a_file(archive, tmp_path):
    info = header("a", size=len(b"12 path=abc\n"))
    info.type = tarfile.XHDTYPE
    content = info.tobuf() + b"12 path=abc\n".ljust(512, b"\0") + tar_of()
    assert "(no file follows an extended header)" in refusal(archive(content), tmp_path)


@pytest.mark.parametrize(
    "records", [b"12 path=abcd", b"99 path=abc\n", b"path=abc\n", b"6 abc\n", b"5 =a\n", b"-9 a=b\n"]
)
def test_a_damaged_extended_header_is_refused(records, archive, tmp_path):
    content = header("a", tarfile.XHDTYPE, size=len(records)).tobuf() + records.ljust(512, b"\0") + tar_of(*HONEST)
    assert "(an extended header is damaged)" in refusal(archive(content), tmp_path)


def test_a_header_for_all_files_counts_where_a_file_has_none(archive, tmp_path):
    told, untold = header("told"), header("untold")
    told.pax_headers = {"mtime": "1600000001"}
    content = tarfile.TarInfo.create_pax_global_header({"mtime": "1600000000.5", "comment": "by git"})
    unpacked(archive(content + tar_of((told, b"x"), (untold, b"x"), format=tarfile.PAX_FORMAT)), tmp_path / "env")
    times = {name: (tmp_path / "env" / name).stat().st_mtime for name in ("told", "untold")}
    assert times == {"told": 1_600_000_001, "untold": 1_600_000_000}


@pytest.mark.parametrize("tail", ["/file", "/"], ids=["file", "directory"])
def test_a_name_that_is_cut_behind_a_slash_is_what_the_whole_name_says(tail, archive, tmp_path):
    """In the old format a slash at the end makes a directory, and a long name is repeated in the file's header, cut
    off."""
    name = "x" * 99 + tail
    content = header("l", tarfile.GNUTYPE_LONGNAME, size=len(name)).tobuf() + name.encode().ljust(512, b"\0")
    old = header("x" * 99 + "/", tarfile.AREGTYPE, size=0 if tail == "/" else 4).tobuf()
    content += old + (b"" if tail == "/" else b"text".ljust(512, b"\0")) + tar_of()
    unpacked(archive(content), tmp_path / "env")
    found = tmp_path / "env" / name
    assert found.is_dir() if tail == "/" else found.read_bytes() == b"text"


@pytest.mark.spec("pb-V03")
def test_bombs_stop_at_a_bound(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "MOST_MEMBERS", 10)
    many = [(header(f"f{number}"), b"") for number in range(11)]
    assert "it holds more than 10 files" in refusal(archive(tar_of(*many)), tmp_path)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_bomb_is_refused(compress, archive, tmp_path, monkeypatch):
    """A small archive of large files: before that is written which goes beyond the bound, whatever its length really
    is."""
    monkeypatch.setattr(archive_module, "FREE_BYTES", 1 << 20)
    packed = compress(tar_of(*files(a=bytes(1 << 20)))[: 512 + (1 << 20)] + header("b", size=6 << 30).tobuf())
    most_bytes = (1 << 20) + 100 * len(packed)
    text = refusal(archive(packed), tmp_path)
    assert f"it has {len(packed)} bytes and unpacks to more than {most_bytes}, which is 100 times that and" in text


def test_much_behind_the_end_is_refused(archive, tmp_path):
    content = gzip.compress(tar_of(*HONEST) + bytes(64 << 20))
    assert "too much data follows its end" in refusal(archive(content), tmp_path)


CONTENT = tar_of(*HONEST, *files(large=os.urandom(3_000_000)))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress], ids=["tar", "gzip", "zstd"])
@pytest.mark.parametrize("part", [0.0001, 0.3, 0.6, 0.9])
def test_a_truncated_archive_is_refused(compress, part, archive, tmp_path):
    content = compress(CONTENT)
    message = refusal(archive(content[: int(len(content) * part)]), tmp_path)
    assert message.startswith("ARCHIVE (")
    assert "is broken or truncated" in message


def test_an_archive_that_ends_between_two_files_is_refused(archive, tmp_path):
    """Every file of it is whole: only the missing end tells."""
    end = len(tar_of(*files(a=b"x" * 512))) - tarfile.RECORDSIZE + 1024
    content = tar_of(*files(a=b"x" * 512, b=b"y"))[:end]
    assert "it ends in the middle" in refusal(archive(content), tmp_path)


@pytest.mark.parametrize("where", [100, 10_000, -3000])
def test_a_damaged_archive_is_refused(where, archive, tmp_path):
    content = bytearray(gzip.compress(CONTENT))
    content[where] ^= 0xFF
    assert "is broken or truncated" in refusal(archive(bytes(content)), tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is broken or truncated"),
        (b"\0" * 100, "is broken or truncated"),
        (b"garbage" * 1000, "is broken or truncated"),
        (b"PK\x03\x04" + bytes(100), "is a zip file: an environment is a directory, or an archive of the kind .tar, "),
        (b"BZh91AY", "is a bzip2 file"),
        (b"\xfd7zXZ\0", "is a xz file"),
    ],
    ids=["empty", "zeros", "garbage", "zip", "bzip2", "xz"],
)
def test_what_is_no_archive_is_refused(content, expected, archive, tmp_path):
    assert expected in refusal(archive(content), tmp_path)


def test_an_empty_archive_is_an_empty_environment(archive, tmp_path):
    unpacked(archive(tar_of()), tmp_path / "env")
    assert os.listdir(tmp_path / "env") == []


def test_it_can_be_cancelled(archive, tmp_path):
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        unpacked(archive(tar_of(*HONEST)), tmp_path / "env", cancelled)
    assert os.listdir(tmp_path) == ["env.tar"]


def test_what_was_altered_is_found(archive, tmp_path):
    directory = tmp_path / "env"
    inventory = unpacked(archive(tar_of(*HONEST)), directory)
    (directory / "share" / "terminfo" / "x").write_bytes(b"Rights")
    (directory / "empty").write_bytes(b"x")
    (directory / "lib" / "terminfo").unlink()
    (directory / "lib" / "up").unlink()
    (directory / "lib" / "up").symlink_to("elsewhere")
    assert sorted(inventory.differences(directory, contents=True)) == [
        "empty: has 1 bytes, not 0",
        "lib/terminfo: No such file or directory",
        "lib/up: leads elsewhere",
        "share/terminfo/x: altered",
    ]
    assert len(inventory.differences(directory, contents=False)) == 3


def test_reading_needs_no_second_pass(archive):
    """A stream that cannot go back is enough, so an archive may be as large as it likes."""
    reader = archive_module.ArchiveReader(archive(tar_of(*HONEST)).open("rb"), "x")
    names = [member.path for member in reader.members()]
    assert len(names) == len(HONEST)
    reader._file.close()


def test_streams_of_several_frames_are_one(archive, tmp_path):
    content = tar_of(*HONEST)
    frames = b"".join(zstandard.compress(content[start : start + 5000]) for start in range(0, len(content), 5000))
    members = b"".join(gzip.compress(content[start : start + 5000]) for start in range(0, len(content), 5000))
    for number, packed in enumerate((frames, members)):
        unpacked(archive(packed), tmp_path / str(number))
        assert (tmp_path / str(number) / "lib" / "terminfo" / "x").read_bytes() == b"rights"


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_tar_programs_make_such_archives(form, tmp_path):
    """What the system's own tar writes is read."""
    source = tmp_path / "source"
    unpacked_once = tmp_path / "made.tar"
    long = [] if form == "v7" else [(header("d/" + "y" * 90 + "/\u00e4" * 20), b"long")]
    if form in {"gnu", "posix"}:
        long += [
            (header("e/" + "z/" * 200 + "file"), b"longer"),
            (header("f", tarfile.SYMTYPE, "e/" + "z/" * 200), b""),
        ]
    short = [entry for entry in HONEST if len(entry[0].name) < 100]
    unpacked_once.write_bytes(tar_of(*short, *long))
    unpacked(unpacked_once, source)
    subprocess.run(
        ["tar", "--create", "--gzip", f"--format={form}", "--file", tmp_path / "by_tar.tar.gz", "-C", source, "."],
        check=True,
    )
    inventory = unpacked(tmp_path / "by_tar.tar.gz", tmp_path / "env")
    assert inventory.differences(source, contents=True) == []
    assert (tmp_path / "env" / "bin" / "again").samefile(tmp_path / "env" / "bin" / "python3.12")


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_of_tar_programs_are_refused(form, tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    packed = tmp_path / "by_tar.tar"
    subprocess.run(
        ["tar", "--create", "--sparse", f"--format={form}", "-f", packed, "-C", tmp_path, "sparse"], check=True
    )
    assert "pack it without --sparse" in refusal(packed, tmp_path)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
@given(changes=st.lists(st.tuples(st.integers(0, 8191), st.integers(0, 255)), max_size=8))
def test_altered_archives_are_unpacked_or_refused(form, changes):
    """With no other error."""
    content = bytearray(tar_of(*HONEST[4:], format=form)[:8192] + bytes(1024))
    for place, octet in changes:
        content[place] = octet
    for start in range(0, 8192, 512):  # as an attacker would: with a checksum that is right
        block = content[start : start + 512]
        content[start + 148 : start + 156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        with contextlib.suppress(ModelEnvironmentError):
            for member in archive_module.ArchiveReader(file, "x").members():
                if member.content is not None:
                    member.content.read(1)
