"""Unix-domain sockets: which files are replaced and removed, and which are not."""

import os
import re
import socket
import stat

import pytest

from pybackend.errors import ServerError
from pybackend.frontend.listening import address_of, bind, release


@pytest.fixture
def path(tmp_path):
    return tmp_path / "http.sock"


def reaches(path):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("slashes", ["", "//"])
def test_a_socket_has_a_file_while_it_lasts(path, slashes):
    old = os.umask(0o077)
    try:
        sock = bind(f"unix:{slashes}{path}", 8000, "HTTP")
    finally:
        os.umask(old)
    assert address_of(sock) == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert reaches(path)
    release(sock)
    assert not path.exists()


def test_a_relative_path(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    sock = bind("unix:http.sock", 0, "HTTP")
    monkeypatch.chdir("/")
    assert reaches(path)
    release(sock)
    assert not path.exists()


def test_a_stale_file_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    sock = bind(f"unix:{path}", 0, "HTTP")
    assert reaches(path)
    release(sock)


def test_a_path_in_use(path):
    first = bind(f"unix:{path}", 0, "HTTP")
    text = f"failed to start GRPC service: cannot listen on 'unix:{path}': it is already in use. Stop the program"
    with pytest.raises(ServerError, match=re.escape(text)):
        bind(f"unix:{path}", 0, "GRPC")
    assert reaches(path)
    release(first)


def test_a_full_backlog_is_in_use(path):
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(ServerError, match="already in use"):
            bind(f"unix:{path}", 0, "HTTP")
        for client in waiting:
            client.close()


def test_the_file_of_a_successor_stays(path):
    sock = bind(f"unix:{path}", 0, "HTTP")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        release(sock)
        release(sock)
        assert path.exists()


@pytest.mark.parametrize(
    ("prepare", "name", "text"),
    [
        (lambda path: path.write_text("precious"), "file", "there is a file that is no socket. Remove it, or choose"),
        (lambda path: path.mkdir(), "file", "there is a file that is no socket."),
        (lambda path: path.symlink_to("elsewhere"), "file", "there is a file that is no socket."),
        (lambda path: None, "absent/file", "No such file or directory"),
        (lambda path: None, "x" * 200, "bytes, and the system allows 107. Choose a shorter one"),
        (lambda path: None, "./", "it names no file. Write unix:/run/pybackend/http.sock"),
    ],
)
def test_paths_that_cannot_be_used(tmp_path, prepare, name, text):
    prepare(tmp_path / name)
    address = f"unix:{tmp_path}/{name}"
    begin = f"failed to start HTTP service: cannot listen on '{address}': "
    with pytest.raises(ServerError, match=f"{re.escape(begin)}.*{re.escape(text)}"):
        bind(address, 0, "HTTP")
    if (tmp_path / "file").is_file():
        assert (tmp_path / "file").read_text() == "precious"
