"""The key to a server's diagnostics goes to that server, and nothing else goes out in its place."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pybackend.process.bundle import server_directories
from pybackend.process.diagnostics_key import DiagnosticsKey, key_of


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server for all addresses of IPv4, where the log says so."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        yield listener


@pytest.fixture
def key(listener: socket.socket) -> Iterator[DiagnosticsKey]:
    with closing(DiagnosticsKey(server_directories()[0])) as key:
        key.publish(f"0.0.0.0:{listener.getsockname()[1]}")
        yield key


def test_a_program_at_the_other_loopback_address_does_not_get_the_key(listener, key):
    """Anybody may listen at [::1] with the port of a server that takes IPv4 alone, and ``localhost`` leads there first."""
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as connected:
        assert key_of(connected) == key.value
    with (
        socket.create_server(("::1", port), family=socket.AF_INET6),
        socket.create_connection(("::1", port)) as connected,
    ):
        assert key_of(connected) == ""


def test_a_server_for_all_addresses_gets_its_key_by_ipv4_and_ipv6():
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        closing(DiagnosticsKey(server_directories()[0])) as key,
    ):
        port = listener.getsockname()[1]
        key.publish(f"[::]:{port}")
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port)) as connected:
                assert key_of(connected) == key.value


def test_files_where_models_may_write_are_not_read_as_keys(listener, tmp_path, monkeypatch):
    """A link there would send any file of the user to a program that listens."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex())
    place = Path(server_directories()[1]) / "diagnostics" / "a" / "b"
    place.mkdir(parents=True)
    (place / f"127.0.0.1:{listener.getsockname()[1]}").symlink_to(secret)
    with socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as connected:
        assert key_of(connected) == ""
