"""The console's gate, without pages behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybackend.errors import SettingError
from pybackend_tools.console.gate import MOST_UPLOAD_BYTES, SESSION, ConsoleAddress, Gate

HERE = {"host": "127.0.0.1:8003"}


class Harness:
    """A gate, and what passes it."""

    def __init__(self, public_url: str = "") -> None:
        self.links: list[str] = []
        self.passed: list[Any] = []
        self.gate = Gate(self._page, ConsoleAddress(8003, public_url), self.links.append)
        self.gate.open()

    async def _page(self, scope: Any, _receive: Any, send: Any) -> None:
        self.passed.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"page"})

    def ask(
        self, path: str, headers: dict[str, str], method: str = "GET", kind: str = "http"
    ) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer; the code of a refused websocket."""
        path, _, query = path.partition("?")
        fields = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": kind, "method": method, "path": path, "query_string": query.encode(), "headers": fields}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        asyncio.run(self.gate(scope, receive, send))
        first = sent[0]
        return first.get("status", first.get("code")), {
            name.decode(): value.decode() for name, value in first.get("headers", [])
        }

    def enter(self, headers: dict[str, str]) -> dict[str, str]:
        """Headers with the cookie of a new session."""
        status, answered = self.ask("/" + self.links[-1].rpartition("/")[2], headers)
        assert status == 200
        return {**headers, "cookie": f'odd[name]={{"json": 1}}; {answered["set-cookie"].partition(";")[0]}; last=1'}


def test_a_link_opens_one_session_and_the_next_link_another() -> None:
    harness = Harness()
    link = "/" + harness.links[0].rpartition("/")[2]
    assert harness.ask("/", HERE)[0] == 401
    first = harness.enter(HERE)
    assert harness.ask(link, HERE)[0] == 401
    second = harness.enter(HERE)
    assert [harness.ask("/", headers)[0] for headers in (first, second)] == [200, 200]
    one, other = (scope[SESSION] for scope in harness.passed)
    assert one is not other
    assert len(harness.links) == 3


def test_browsers_send_the_cookie_to_no_other_port_of_this_machine() -> None:
    """They take no notice of ports, but of paths."""
    path = Harness().links[0].removeprefix("http://127.0.0.1:8003/").partition("/?token=")[0]
    assert len(path) >= 20
    harness = Harness()
    place, _, token = harness.links[0].removeprefix("http://127.0.0.1:8003").partition("?")
    status, answered = harness.ask(f"{place}?{token}", HERE)
    assert (status, answered["set-cookie"].split("; ")[1]) == (200, f"Path={place.rstrip('/')}")
    assert harness.ask(place, {**HERE, "cookie": answered["set-cookie"].partition(";")[0]})[0] == 200
    (scope,) = harness.passed
    assert (scope["path"], scope["root_path"]) == (place, place.rstrip("/"))
    assert path not in place


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "odd", [{"host": "evil.example:8003"}, {"host": "127.0.0.1"}, {"origin": "http://evil.example"}, {"origin": "null"}]
)
def test_other_places_are_refused_with_a_session_too(kind: str, odd: dict[str, str]) -> None:
    harness = Harness()
    headers = harness.enter(HERE)
    assert harness.ask("/", {**headers, **odd}, kind=kind)[0] == {"http": 403, "websocket": 1008}[kind]
    assert not harness.passed
    assert harness.ask("/", {**headers, "origin": "http://localhost:8003"})[0] == 200


def test_a_websocket_needs_a_session() -> None:
    assert Harness().ask("/", HERE, kind="websocket")[0] == 1008


@pytest.mark.parametrize("length", [str(MOST_UPLOAD_BYTES + 1), "-1", "1e9", None])
def test_bodies_have_a_length_that_is_not_too_large(length: str | None) -> None:
    harness = Harness()
    headers = harness.enter(HERE)
    given = {} if length is None else {"content-length": length}
    assert harness.ask("/upload", {**headers, **given}, "POST")[0] == 413
    assert harness.ask("/upload", {**headers, "content-length": "5"}, "POST")[0] == 200


def test_a_proxy_may_remove_the_prefix_or_leave_it() -> None:
    harness = Harness("https://ops.example.org/tools")
    assert harness.links[0].startswith("https://ops.example.org/tools/?token=")
    headers = harness.enter({"host": "ops.example.org", "x-forwarded-prefix": "/evil"})
    for path in ("/server", "/tools/server"):
        assert harness.ask(path, headers)[0] == 200
        assert (harness.passed[-1]["path"], harness.passed[-1]["root_path"]) == ("/tools/server", "/tools")
        assert b"x-forwarded-prefix" not in dict(harness.passed[-1]["headers"])


@pytest.mark.parametrize(
    "url",
    [
        "ops.example.org",
        "ftp://ops.example.org",
        "https://a b/",
        'https://a/"><script>',
        "https://u:p@a/",
        "https://a/?x=1",
    ],
)
def test_odd_public_addresses_are_refused(url: str) -> None:
    with pytest.raises(SettingError, match="is not the address of a page"):
        ConsoleAddress(8003, url)
