"""``pybackend serve --console``: a console in its own process, for as long as the server runs."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from contextlib import suppress

from pybackend.runner import Addresses
from pybackend.settings import Settings
from pybackend_client.connection import read_key

_ENDING_S = 5.0


class ConsoleBeside:
    """The process. It gets the server's addresses and a key on its standard input, where nobody else can read them."""

    def __init__(self, settings: Settings, addresses: Addresses) -> None:
        told = {
            "url": _url(addresses.http, secure=settings.http.tls is not None),
            "metrics_url": _url(addresses.metrics, secure=False) if addresses.metrics else "",
            "grpc_url": _reachable(addresses.grpc),
            "headers": {**addresses.diagnostics_headers, **_headers(settings)},
        }
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "pybackend_tools.console"], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._input = self._process.stdin
        with suppress(BrokenPipeError):
            self._input.write(json.dumps(told).encode() + b"\n")
            self._input.flush()

    def close(self) -> None:
        """End the console, and wait for it."""
        with suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _headers(settings: Settings) -> dict[str, str]:
    """The headers that the server's routes need."""
    headers = {each.header: each.value for each in settings.http.restrictions}
    if settings.api_keys is not None:
        headers["Authorization"] = f"Bearer {read_key(settings.api_keys.file)}"
    return headers


def _url(address: str, *, secure: bool) -> str:
    if address.startswith("unix:"):
        return address
    return f"{'https' if secure else 'http'}://{_reachable(address)}"


def _reachable(address: str) -> str:
    """An address at which this machine reaches a port."""
    host, _, port = address.rpartition(":")
    with suppress(ValueError):
        found = ipaddress.ip_address(host.strip("[]"))
        if found.is_unspecified:
            return f"{'127.0.0.1' if found.version == 4 else '[::1]'}:{port}"
    return address
