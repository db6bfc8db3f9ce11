"""Certificates and keys of clients at a real HAProxy."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from pybackend.frontend.access.api_keys import NO_KEY, WRONG_KEY
from pybackend.settings import ApiKeySettings, KeyExemption, TlsSettings
from pybackend_addons.ray.entrance_access import EntranceFiles
from tests.unit.addons.ray.conftest import DEADLINE_S, Entrance, cluster_with, started

KEY, OTHER_KEY = "a-key-of-a-client", "another-key-of-one"


class Files:
    """Keys, and the certificates of an authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.keys = directory / "keys"
        self.keys.write_text(f"{KEY}\n")
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(directory / "root.pem")
        self.renew()
        self._write("client", self.authority.issue_cert("client@example.org"))

    def renew(self) -> None:
        """A new certificate of the server."""
        self._write("server", self.authority.issue_cert("127.0.0.1"))

    def _write(self, name: str, issued: trustme.LeafCert) -> None:
        issued.private_key_pem.write_to_path(self.directory / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(self.directory / f"{name}.pem")

    def tls(self, *, mutual: bool = False) -> TlsSettings:
        names = (self.directory / name for name in ("server.pem", "server.key", "root.pem"))
        return TlsSettings(*names, mutual=mutual)

    def context(self, *, certified: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.directory / "root.pem"))
        if certified:
            context.load_cert_chain(self.directory / "client.pem", self.directory / "client.key")
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def entrance(files: Files) -> Iterator[Entrance]:
    keys = ApiKeySettings(files.keys, frozenset({KeyExemption.HEALTH}))
    settings = {"api_keys": keys, "http_tls": files.tls(), "grpc_tls": files.tls(mutual=True)}
    with started(cluster_with(**settings), "access") as found:
        found.apply("one")
        end = time.monotonic() + DEADLINE_S
        while ask(found, files, "/v2", authorization=f"bearer {KEY}")[0] == 503:
            assert time.monotonic() < end
        yield found


def ask(entrance: Entrance, files: Files, path: str, *, port: int = 0, **headers: str) -> tuple[int, dict[str, str]]:
    if port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    else:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", entrance.cluster.http_port, timeout=DEADLINE_S, context=files.context()
        )
    with contextlib.closing(connection):
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({}, NO_KEY),
        ({"x_api_key": f"{KEY}x"}, WRONG_KEY),
        ({"authorization": f"Bearer {OTHER_KEY}"}, WRONG_KEY),
        ({"authorization": KEY}, NO_KEY),
        ({"x_api_key": KEY}, ""),
        ({"authorization": f"Bearer {KEY}"}, ""),
        ({"authorization": f"bearer {KEY}", "x_api_key": "another"}, ""),
    ],
)
def test_calls_need_a_key(entrance: Entrance, files: Files, headers: dict[str, str], answer: str) -> None:
    found = ask(entrance, files, "/v2/models/a", **headers)
    if answer:
        assert found == (401, {"error": answer})
        assert ask(entrance, files, "/metrics", port=entrance.cluster.metrics_port, **headers) == found
    else:
        # The replica gets the key of the application, and not that of the client.
        assert found == (200, {"name": "one", "path": "/v2/models/a", "key": entrance.cluster.key})


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/a/ready", "/v2/models/a/versions/1/re%61dy"])
def test_an_exemption_opens_health(entrance: Entrance, files: Files, path: str) -> None:
    assert ask(entrance, files, path)[0] == 200
    assert ask(entrance, files, f"{path}/x")[0] == ask(entrance, files, f"/v2/x{path}")[0] == 401


def code_of(entrance: Entrance, files: Files, method: str, *, certified: bool = True, key: str = "") -> tuple[str, str]:
    read = lambda name: (files.directory / name).read_bytes()  # noqa: E731
    own = (read("client.key"), read("client.pem")) if certified else (None, None)
    credentials = grpc.ssl_channel_credentials(read("root.pem"), *own)
    with grpc.secure_channel(f"127.0.0.1:{entrance.cluster.grpc_port}", credentials) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=[("x-api-key", key)] if key else [], timeout=DEADLINE_S)
        return caught.value.code().name, caught.value.details()


def test_calls_of_grpc_need_a_key_and_a_certificate(entrance: Entrance, files: Files) -> None:
    assert code_of(entrance, files, "ServerMetadata") == ("UNAUTHENTICATED", NO_KEY)
    assert code_of(entrance, files, "ServerMetadata", key="wrong") == ("UNAUTHENTICATED", WRONG_KEY)
    # There is no replica for gRPC here: what passes gets no answer.
    assert code_of(entrance, files, "ServerMetadata", key=KEY)[0] == "UNAVAILABLE"
    code, reason = code_of(entrance, files, "ServerReady")
    assert (code, "an API key" in reason) == ("UNAVAILABLE", False)
    code, reason = code_of(entrance, files, "ServerMetadata", certified=False, key=KEY)
    assert (code, "ssl" in reason.lower() or "connect" in reason) == ("UNAVAILABLE", True)


def test_new_files_are_used(entrance: Entrance, files: Files) -> None:
    async def follow_until_known() -> None:
        following = asyncio.create_task(entrance.files.follow())
        async with asyncio.timeout(DEADLINE_S):
            while not await asyncio.to_thread(is_known):
                assert not following.done()
        following.cancel()

    def is_known() -> bool:
        statuses = [ask(entrance, files, "/v2", x_api_key=key)[0] for key in (KEY, OTHER_KEY)]
        certificate = ssl.get_server_certificate(("127.0.0.1", entrance.cluster.http_port))
        written = (files.directory / "server.pem").read_text()
        return statuses == [401, 200] and certificate.split() == written.split()

    assert not is_known()
    files.keys.write_text(f"{OTHER_KEY}\n")
    files.renew()
    asyncio.run(follow_until_known())


def test_an_entrance_without_files_follows_none(tmp_path: Path) -> None:
    """It goes on: an end would count as a fault of the entrance."""

    async def refuse(_command: str) -> str:
        raise AssertionError

    async def main() -> None:
        following = asyncio.create_task(EntranceFiles(cluster_with(), tmp_path, refuse).follow())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not following.done()
        following.cancel()

    asyncio.run(main())
