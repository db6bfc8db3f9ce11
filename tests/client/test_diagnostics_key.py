"""A client on the server's machine finds the key of its diagnostics by the address to which it is connected."""

from pathlib import Path

import pytest

from pybackend.process.diagnostics_key import find_headers
from pybackend_client.connection import Connection, Credentials
from tests.support.server import ServerProcess


@pytest.mark.parametrize(
    "flags", [("--http-address=0.0.0.0",), ("--http-address=::",), ("--http-address=unix:{}/socket",)]
)
def test_clients_find_the_key_by_the_address_to_which_they_are_connected(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    flags = tuple(flag.format(tmp_path) for flag in flags)
    server = ServerProcess([tmp_path / "models"], *flags)
    (tmp_path / "models").mkdir()
    place = server.wait_for(r"Started HTTPService at (\S+?)\"")[1]
    url = place if place.startswith("unix:") else f"http://localhost:{place.rpartition(':')[2]}"
    assert Connection(url, 30, access=Credentials(find_headers=find_headers)).get("/v2/diagnostics/settings")[
        "settings"
    ]
    server.stop()
