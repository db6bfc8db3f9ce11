"""Floods of TLS handshakes: whoever opens connections and says nothing locks nobody out, and holds a bounded amount of
memory."""

import asyncio
import socket
import ssl

import pytest
import trustme

from pybackend.frontend import listener
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.frontend.tls import PortCertificates
from pybackend.settings import TlsSettings

MOST = 4
SILENT = {"nothing": b"", "half a greeting": b"\x16\x03\x01\x02\x00\x01\x00"}


async def application(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def certificates(authority, tmp_path):
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    return PortCertificates(TlsSettings(pem, pem), "http", "http/1.1")


@pytest.mark.parametrize("data", SILENT.values(), ids=SILENT)
def test_the_oldest_silent_client_gives_way(run, authority, certificates, data, monkeypatch):
    monkeypatch.setattr(listener, "MOST_HANDSHAKES", MOST)
    monkeypatch.setattr(listener, "GRACE_S", 0.05)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def answered(address):
        reader, writer = await asyncio.open_connection(*address, ssl=trusting, server_hostname="127.0.0.1")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await reader.readline()
        writer.transport.abort()
        return head

    async def check():
        server = HttpServer(application, ClientMemory(1 << 30))
        sock = bind("127.0.0.1", 0, "HTTP")
        await server.start(sock, certificates)
        address = sock.getsockname()
        silent = [socket.create_connection(address) for _ in range(3 * MOST)]
        try:
            for client in silent:
                client.setblocking(False)
                client.send(data)
            assert [await answered(address) for _ in range(3)] == [b"HTTP/1.1 200 OK\r\n"] * 3
            loop = asyncio.get_running_loop()
            for client in silent[: 2 * MOST + 1]:
                with pytest.raises((ConnectionResetError, EOFError)):  # noqa: PT012  either is an end
                    while await loop.sock_recv(client, 1000):
                        pass
                    raise EOFError
        finally:
            for client in silent:
                client.close()
            await server.stop(asyncio.get_running_loop().time() + 5)

    run(check())


def test_nobody_negotiates_anew(certificates):
    assert certificates.context.options & ssl.OP_NO_RENEGOTIATION
