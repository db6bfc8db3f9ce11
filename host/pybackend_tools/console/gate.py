"""The console's gate: who may see its pages, and from where. All of HTTP and all websockets pass it.

A link with a token opens a session, once; the next link has another token. Web pages of other origins, and names that
others have pointed at this machine, are refused by the headers Origin and Host.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pybackend.errors import SettingError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

SESSION = "pybackend.session"
"""The member of a scope with its session."""

MOST_UPLOAD_BYTES = 64 * 1024 * 1024

_PORTS = {"http": 80, "https": 443}
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<link rel="icon" href="data:,">{head}<title>pybackend console</title><style>body{{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1.5rem;
color:#1f2733;background:#fff}}@media(prefers-color-scheme:dark){{body{{color:#dfe5ee;background:#14181f}}}}</style></head>
<body><main><h1>{title}</h1><p>{text}</p></main></body></html>"""


@dataclass
class Session:
    """The choices of one browser, in memory only."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)  # sent to the server: an API key, for example
    dark: bool | None = None  # None follows the browser
    kept: list[Any] = field(default_factory=list, repr=False)  # requests to send again


@dataclass
class ConsoleAddress:
    """Where browsers find the console: on this machine, and perhaps behind a proxy.

    On this machine, its pages lie below a path that nobody else knows: browsers send a cookie to all ports of a host,
    and other users, and models, may listen at some, but below its path only.
    """

    port: int
    public_url: str = ""  # the proxy's, such as ``https://ops.example.org/console``; ``""`` for none
    prefix: str = field(default="", init=False)  # the path before all paths
    hosts: frozenset[str] = field(default=frozenset(), init=False)
    origins: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        origins = {f"http://{host}" for host in hosts}
        if self.public_url:
            scheme, netloc, self.prefix = _divided(self.public_url)
            hosts |= _spellings(scheme, netloc)
            origins |= {f"{scheme}://{each}" for each in _spellings(scheme, netloc)}
        else:
            self.prefix = f"/{secrets.token_urlsafe(16)}"
        self.hosts, self.origins = frozenset(hosts), frozenset(origins)

    @property
    def url(self) -> str:
        """The address of the first page, with a slash at its end."""
        base = self.public_url.rstrip("/") if self.public_url else f"http://127.0.0.1:{self.port}{self.prefix}"
        return f"{base}/"

    @property
    def is_secure(self) -> bool:
        """True if browsers come over TLS only."""
        return self.public_url.startswith("https:")


def _divided(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in _PORTS or not parts.hostname or not plain or any(each in url for each in " '\"<>\\"):
        raise SettingError(
            f"--public-url: '{url}' is not the address of a page: write, for example, https://ops.example.org/console"
        )
    return parts.scheme, parts.netloc.lower(), parts.path.rstrip("/")


def _spellings(scheme: str, netloc: str) -> set[str]:
    """The host of a URL with its port and, if that is the scheme's own, without."""
    parts = urlsplit(f"{scheme}://{netloc}")
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    own = parts.port in {None, _PORTS[scheme]}
    return {f"{name}:{parts.port or _PORTS[scheme]}", *([name] if own else [])}


class Gate:
    """An ASGI application in front of the pages. ``announce`` is called with each new link."""

    def __init__(
        self, app: Callable[..., Awaitable[None]], place: ConsoleAddress, announce: Callable[[str], None]
    ) -> None:
        self._app = app
        self._place = place
        self._announce = announce
        self._cookie = f"pybackend_console_{place.port}"
        self._sessions: dict[str, Session] = {}
        self._token = ""

    def open(self) -> None:
        """Make a link, which works once, and announce it."""
        self._token = secrets.token_urlsafe(32)
        self._announce(f"{self._place.url}?token={self._token}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        trouble = self._misplaced(headers)
        if trouble:
            await _refuse(scope, send, 403, "Not from here", trouble)
            return
        session = self._session(headers)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
        if scope["type"] == "http" and token and scope["method"] == "GET":
            await self._enter(scope, send, session, token)
            return
        if session is None:
            await _refuse(
                scope, send, 401, "This console needs its link",
                "Open the link that <code>pybackend console</code> has printed last. Each link opens one browser.",
            )  # fmt: skip
            return
        trouble = _oversized(scope, headers)
        if trouble:
            await _refuse(scope, send, 413, "Too large", trouble)
            return
        left = False

        async def receiving() -> Any:
            nonlocal left
            message = await receive()
            left = left or message["type"] == "http.disconnect"
            return message

        try:
            await self._app(self._scope_for_pages(scope, session), receiving, _with_headers(send))
        except RuntimeError:
            if not left:  # the pages' middleware raises it where a browser has turned to another page
                raise

    def _misplaced(self, headers: list[tuple[bytes, str]]) -> str:
        """Why a request comes from the wrong place, ``""`` if it does not."""
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._place.hosts:
            return (
                "The console answers at its own address only. Behind a proxy, start it with <code>--public-url</code>."
            )
        origins = {value.lower() for name, value in headers if name == b"origin"}
        if not origins <= self._place.origins:
            return "Web pages of other origins may not use the console."
        return ""

    def _session(self, headers: list[tuple[bytes, str]]) -> Session | None:
        # Cookies of all programs on this machine arrive here, also some that Python's parser of cookies gives up at.
        for name, value in headers:
            for pair in value.split(";") if name == b"cookie" else ():
                cookie, _, session = pair.strip().partition("=")
                if cookie == self._cookie and session in self._sessions:
                    return self._sessions[session]
        return None

    async def _enter(self, scope: Scope, send: Send, session: Session | None, token: str) -> None:
        """Open a session with a link's token, or go on with the one that is there."""
        cookie = []
        if compare_digest(token.encode(), self._token.encode()) and session is None:
            name = secrets.token_urlsafe(32)
            self._sessions[name] = Session()
            self.open()
            secure = "; Secure" if self._place.is_secure else ""
            path = self._place.prefix or "/"
            text = f"{self._cookie}={name}; Path={path}; HttpOnly; SameSite=Strict{secure}"
            cookie = [(b"set-cookie", text.encode())]
        elif session is None:
            await _refuse(
                scope, send, 401, "This link has been used",
                "Each link opens one browser. The console has printed a new one below it.",
            )  # fmt: skip
            return
        # A page of our own leads on, because browsers send a strict cookie only from one page of a site to another.
        target = f"{self._place.prefix}/"
        head = f'<meta http-equiv="refresh" content="0;url={target}">'
        text = f'<a href="{target}">Go on</a>'
        await _send(send, 200, _PAGE.format(head=head, title="pybackend", text=text).encode(), cookie)

    def _scope_for_pages(self, scope: Scope, session: Session) -> Scope:
        """The scope as the pages see it: below the prefix, whether the proxy has removed it or not."""
        prefix = self._place.prefix
        path = scope["path"]
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :] or "/"
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"x-forwarded-prefix"]
        return {**scope, "path": prefix + path, "root_path": prefix, "headers": headers, SESSION: session}


def _oversized(scope: Scope, headers: list[tuple[bytes, str]]) -> str:
    """Why the body of a request is not accepted, ``""`` if it is."""
    if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
        return ""
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) != 1 or not lengths[0].isdecimal():
        return "A body needs a Content-Length."
    if int(lengths[0]) > MOST_UPLOAD_BYTES:
        return f"The console takes files up to {MOST_UPLOAD_BYTES >> 20} MB. Larger ones: <code>pybackend infer</code>."
    return ""


async def _refuse(scope: Scope, send: Send, status: int, title: str, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await _send(send, status, _PAGE.format(head="", title=title, text=text).encode(), [])


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    own = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    own += [(b"cache-control", b"no-store"), *_HEADERS, *headers]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        await send(message)

    return sending
