"""The log's file: order, losses, and a file that was moved."""

import errno
import os

import pytest

from pybackend.errors import ServerError
from pybackend.observability import log_stream
from pybackend.observability.log_stream import LogFile
from tests.support.gates import wait_until


def notice(lines, reason):
    return b"dropped %d: %b\n" % (lines, reason.encode())


@pytest.fixture
def complaints():
    return []


@pytest.fixture
def file(tmp_path, complaints):
    return LogFile(tmp_path / "log", notice, complaints.append)


def test_lines_are_appended_in_order(tmp_path, file):
    (tmp_path / "log").write_bytes(b"before\n")
    for number in range(1000):
        file.write(b"%d\n" % number)
    file.flush(30)
    assert (tmp_path / "log").read_bytes() == b"before\n" + b"".join(b"%d\n" % number for number in range(1000))


def test_a_moved_file_keeps_what_came_before(tmp_path, file, complaints):
    file.write(b"before\n")
    file.flush(30)
    (tmp_path / "log").rename(tmp_path / "old")
    file.reopen()
    file.flush(30)
    file.write(b"after\n")
    file.flush(30)
    assert ((tmp_path / "old").read_bytes(), (tmp_path / "log").read_bytes()) == (b"before\n", b"after\n")
    assert complaints == []


def test_a_place_that_is_gone_leaves_the_old_file(tmp_path, complaints):
    place = tmp_path / "place"
    place.mkdir()
    file = LogFile(place / "log", notice, complaints.append)
    place.rename(tmp_path / "moved")
    file.reopen()
    file.write(b"after\n")
    file.flush(30)
    assert (tmp_path / "moved" / "log").read_bytes() == b"after\n"
    assert complaints == [
        f"the log file {place}/log cannot be opened again: No such file or directory. Lines go on into the old file"
    ]


def test_a_full_disk_loses_lines_and_says_how_many(tmp_path, file, complaints, monkeypatch):
    real, room = os.write, [4]

    def write(descriptor, data):
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, bytes(data)[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(log_stream.os, "write", write)
    for number in (b"one", b"two", b"three"):
        file.write(number + b"\n" + number + b"\n")
        file.flush(30)
    room[0] = 1000
    file.write(b"four\n")
    file.flush(30)
    wait_until(lambda: (tmp_path / "log").read_bytes().endswith(b"four\n"), "the last line")
    assert (tmp_path / "log").read_bytes() == b"one\ndropped 5: No space left on device\nfour\n"
    assert complaints == [
        f"the log file {tmp_path}/log cannot be written: No space left on device. Lines are lost until it can"
    ]


def test_more_than_may_wait_is_lost(tmp_path, file, monkeypatch):
    monkeypatch.setattr(log_stream, "MOST_WAITING_BYTES", 10)
    file.write(b"a line that is too long\n")
    file.write(b"short\n")
    file.flush(30)
    assert (tmp_path / "log").read_bytes() == b"dropped 1: the disk was too slow for too long\nshort\n"


def test_a_file_that_cannot_be_opened(tmp_path, complaints):
    with pytest.raises(ServerError, match=f"--log-file={tmp_path} cannot be written: Is a directory"):
        LogFile(tmp_path, notice, complaints.append)
