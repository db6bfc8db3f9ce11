"""Writing the log to somebody who may not read it."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from contextlib import suppress

import pytest

from pybackend.observability import log_stream
from pybackend.observability.log_stream import LogStream

LINE = b"x" * 999 + b"\n"


def notice(lines):
    return b"dropped %d\n" % lines


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        with suppress(OSError):
            os.close(end)


def read_until(descriptor, end, deadline_s=60):
    data = b""
    limit_s = time.monotonic() + deadline_s
    while not data.endswith(end):
        assert time.monotonic() < limit_s, data[-100:]
        data += os.read(descriptor, 1 << 16)
    return data


def test_a_line_is_written_at_once(pipe):
    LogStream(pipe[1], notice).write(LINE)
    os.set_blocking(pipe[0], False)
    assert os.read(pipe[0], 2000) == LINE


def test_long_lines_arrive_whole(pipe):
    stream = LogStream(pipe[1], notice)
    stream.write(b"y" * 300_000 + b"\n")
    stream.write(b"last\n")
    assert read_until(pipe[0], b"last\n") == b"y" * 300_000 + b"\nlast\n"


def test_a_reader_that_sleeps_keeps_nobody_waiting(pipe, monkeypatch):
    monkeypatch.setattr(log_stream, "MOST_WAITING_BYTES", 100_000)
    stream = LogStream(pipe[1], notice)
    for number in range(1000):
        stream.write(b"%03d" % number + LINE)
    stream.flush(0.01)  # gives up
    data = read_until(pipe[0], b"\n")
    while b"dropped" not in data[-20:]:
        data += read_until(pipe[0], b"\n")
    lines = data.splitlines()
    kept = len(lines) - 1
    assert [int(line[:3]) for line in lines[:-1]] == list(range(kept))
    assert lines[-1] == b"dropped %d" % (1000 - kept)
    stream.flush(10)
    stream.write(b"again\n")
    assert read_until(pipe[0], b"again\n") == b"again\n"
    assert "pybackend-log" not in {thread.name for thread in threading.enumerate()}


def test_a_reader_that_is_gone_matters_to_nobody(pipe):
    stream = LogStream(pipe[1], notice)
    os.close(pipe[0])
    for _ in range(100):
        stream.write(LINE)
    stream.flush(10)


def test_one_that_goes_while_lines_wait(pipe):
    stream = LogStream(pipe[1], notice)
    for _ in range(200):
        stream.write(LINE)
    os.close(pipe[0])
    stream.flush(10)
    stream.write(LINE)
    stream.flush(10)


def test_a_file_is_written_where_it_ends(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    with path.open("ab") as file:
        LogStream(file.fileno(), notice).write(LINE)
    assert path.read_bytes() == b"before\n" + LINE


def test_a_full_disk_matters_to_nobody():
    with open("/dev/full", "wb", buffering=0) as file:
        stream = LogStream(file.fileno(), notice)
        stream.write(LINE)
        stream.flush(10)


def test_a_terminal_that_is_held():
    """As by Ctrl-S; and the terminal itself stays as the shell knows it."""
    ours, theirs = pty.openpty()
    try:
        stream = LogStream(theirs, notice)
        termios.tcflow(theirs, termios.TCOOFF)
        for _ in range(100):
            stream.write(LINE)
        assert not fcntl.fcntl(theirs, fcntl.F_GETFL) & os.O_NONBLOCK
        termios.tcflow(theirs, termios.TCOON)
        stream.write(b"last\n")
        assert read_until(ours, b"last\r\n").count(b"x" * 999) == 100
    finally:
        stream.flush(10)
        os.close(stream._descriptor)
        os.close(ours)
        os.close(theirs)


def test_a_terminal_whose_window_hangs():
    ours, theirs = pty.openpty()
    try:
        stream = LogStream(theirs, notice)
        for _ in range(200):
            stream.write(LINE)
        stream.write(b"last\n")
        assert read_until(ours, b"last\r\n").count(b"x" * 999) == 200
    finally:
        stream.flush(10)
        os.close(stream._descriptor)
        os.close(ours)
        os.close(theirs)


def test_a_line_that_comes_while_the_process_ends_does_not_keep_it():
    """No thread begins any more that could write the rest of it: nobody reads the pipe."""
    program = """
import sys
from pybackend.observability.log_stream import LogStream

stream = LogStream(1, lambda lines: b"")

class Last:
    def __del__(self, write=stream.write):
        write(b"x" * 1_000_000)

cycle = [Last()]
cycle.append(cycle)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
