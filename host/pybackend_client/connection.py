"""HTTP requests to a server of the v2 protocol. Every failure is one sentence for a terminal."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pybackend.errors import InferenceError, ServerError


@dataclass(frozen=True)
class Credentials:
    """The headers and certificates of a client."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # sent with each request, such as an API key
    root: Path | None = None  # PEM file with the certificates that sign those of servers; None for the system's
    certificate: Path | None = None  # PEM file with the client's certificate, None for none
    key: Path | None = None  # PEM file with its private key; None if it is in the same file
    verify: bool = True  # False accepts any certificate of a server
    # further headers for a path, by the connection to the server; None for none
    find_headers: Callable[[str, socket.socket], Mapping[str, str]] | None = None
    most_bytes: int | None = None  # longer answers are refused; None reads any

    def tls_context(self) -> ssl.SSLContext:
        """The settings for connections over TLS. Raises ServerError if a file cannot be used."""
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        try:
            path = self.root
            if self.root is not None:
                context.load_verify_locations(self.root)
            path = self.certificate
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ServerError(f"cannot use the certificates in {path}: {reason}") from None
        return context


def read_key(path: Path) -> str:
    """The first API key of a file, which may be the server's own.

    Raises ServerError if it cannot be read, or has no key.
    """
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ServerError(f"{path} holds no API key: write one into its first line")
    return keys[0]


class Events:
    """Finds the server-sent events in the parts of a body, which come from ``read1``: it notices a body that breaks off."""

    _BEGIN = b"data: "

    def __init__(self) -> None:
        self._rest = bytearray()

    def in_part(self, part: bytes) -> list[bytes]:
        """The events that end with this part."""
        known = max(0, len(self._rest) - 1)
        self._rest += part
        if self._rest.find(b"\n\n", known) < 0:
            return []
        *events, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        return [event.removeprefix(self._BEGIN) for event in events if event.startswith(self._BEGIN)]

    @staticmethod
    def are_in(content_type: str) -> bool:
        """Whether a body of this type consists of events; an error can be one."""
        return content_type.partition(";")[0].strip().lower() == "text/event-stream"

    @classmethod
    def of(cls, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """The events of a response as they arrive."""
        events = cls()
        while part := response.read1(_READ_BYTES):
            yield from events.in_part(part)


_READ_BYTES = 1024 * 1024
_JSON = {"Content-Type": "application/json"}
_PORTS = {"http": 80, "https": 443}
_LOCAL = "unix:"
_RESTRICTED = "This API is restricted, expecting header"
_BIND_TOKEN = "triton-access-token"  # noqa: S105  the name of the header

START_ADVICE = (
    "Start a server with `pybackend serve DIRECTORY`, name another one with --url, or serve the model for this one "
    "request with --repository DIRECTORY"
)


class LargeAnswerError(ServerError):
    """An answer has more bytes than its reader takes."""


@dataclass(frozen=True)
class Reply:
    """A response with status 200; header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes


class Address:
    """The place of a server.

    Raises ValueError if the URL is none; ``http://`` may be left out, and ``unix:`` names a socket.
    """

    def __init__(self, url: str) -> None:
        self.path = ""  # of the socket, "" for a host
        self.prefix = ""  # of the paths of all requests
        self.host, self.port = "localhost", 0
        self.is_secure = False
        if url.startswith(_LOCAL):
            rest = url.removeprefix(_LOCAL)
            self.path = rest.removeprefix("//") if rest.startswith("///") else rest
            self.url = f"{_LOCAL}{self.path}"
            return
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        try:
            parts = urlsplit(self.url)
            self.host, self.port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        except (KeyError, ValueError):
            self.host = ""
        if not self.host:
            raise ValueError(f"'{url}' is not the URL of a server: write, for example, http://localhost:8000")
        self.prefix = parts.path
        self.is_secure = parts.scheme == "https"

    def connection(self, timeout_s: float, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
        """A connection that is not yet made."""
        if self.path:
            return _LocalConnection(self.path, timeout_s)
        if context is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


class _LocalConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Connection:
    """Sends requests to one server. Its error is an InferenceError; without an answer of the protocol, a ServerError.

    Raises ServerError if the URL or a certificate is wrong.

    ``url``: such as ``http://localhost:8000`` or ``unix:/run/server.sock``; ``http://`` may be left out. ``timeout_s``:
    how long to wait for the connection, and then for each part of a response. ``advice``: for the error if no server
    answers. ``flag``: the one that names the URL, for the error if something else answers.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        advice: str = START_ADVICE,
        access: Credentials | None = None,
        flag: str = "--url",
    ) -> None:
        self._advice = advice
        self._flag = flag
        self._timeout_s = timeout_s
        self._access = Credentials() if access is None else access
        try:
            self._address = Address(url)
        except ValueError as error:
            raise ServerError(str(error)) from None
        self.url = self._address.url
        self._context = self._access.tls_context() if self._address.is_secure else None

    def reading_at_most(self, most_bytes: int) -> Connection:
        """The same, which refuses longer answers."""
        limited = copy(self)
        limited._access = replace(self._access, most_bytes=most_bytes)
        return limited

    def get(self, path: str) -> Any:
        return self._document(self.get_bytes(path))

    def get_bytes(self, path: str) -> bytes:
        return self._request("GET", path, None, {}).body

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        return self._request("POST", path, body, headers)

    def post_json(self, path: str, document: object) -> Any:
        """The JSON document that answers another one, None for an empty answer."""
        body = self._request("POST", path, json.dumps(document).encode(), _JSON).body
        return self._document(body) if body else None

    def events(self, path: str, document: Any) -> Iterator[Any]:
        """The server-sent events that answer a JSON document, one by one as they arrive."""
        connection, response = self._answered("POST", path, json.dumps(document).encode(), {})
        try:
            if response.status != 200 and not Events.are_in(response.getheader("content-type", "")):
                raise InferenceError(self._error_text(response.read(), response.status))
            for event in Events.of(response):
                if response.status != 200:
                    raise InferenceError(self._error_text(event, response.status))
                yield self._document(event)
        except (OSError, http.client.HTTPException) as error:
            raise self._cut_short(error) from None
        finally:
            connection.close()

    def _request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        connection, response = self._answered(method, path, body, headers)
        try:
            reply = Reply({name.lower(): value for name, value in response.getheaders()}, self._body(response))
        except (OSError, http.client.HTTPException) as error:
            raise self._cut_short(error) from None
        finally:
            connection.close()
        if response.status != 200:
            text = self._error_text(reply.body, response.status)
            raise InferenceError(f"{text}{_access_advice(text, response.status)}")
        return reply

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        most = self._access.most_bytes
        if most is None:
            return response.read()
        body = response.read(most + 1)
        if len(body) > most:
            raise LargeAnswerError(
                f"the answer of {self.url} has more than {most >> 20} MB, more than this program reads"
            )
        return body

    def _answered(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """A connection, and a response whose body has not been read."""
        connection = self._address.connection(self._timeout_s, self._context)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from None
        try:
            find = self._access.find_headers
            own = {} if find is None else find(path, connection.sock)
            connection.request(method, self._address.prefix + path, body, {**own, **self._access.headers, **headers})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._cut_short(error) from None

    def _unreachable(self, error: OSError) -> ServerError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerError(
                f"cannot trust the certificate of {self.url}: {error.verify_message}. --root-cert=FILE names the one that signs it"
            )
        if isinstance(error, ssl.SSLError):
            return ServerError(
                f"no TLS connection with {self.url}: {error.reason or error}. If the port has no TLS, write http:// instead"
            )
        return ServerError(f"no server answers at {self.url}: {error.strerror or error}. {self._advice}")

    def _cut_short(self, error: Exception) -> ServerError:
        if isinstance(error, ssl.SSLError):
            return ServerError(
                f"{self.url} refused the TLS connection: {error.reason or error}. --client-cert=FILE and --client-key=FILE show "
                "a certificate"
            )
        if isinstance(error, TimeoutError):
            return ServerError(f"{self.url} has not answered for {self._timeout_s:g} s. --timeout=SECONDS waits longer")
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
            return ServerError(
                f"the program at {self.url} does not answer in HTTP/1: is that the server's port for HTTP? By default it is 8000; "
                f"8001 is for gRPC. {self._flag} names another one"
            )
        return ServerError(
            f"{self.url} did not complete its response: {error}. Its log may say why; is {self._flag} the port for HTTP?"
        )

    def _error_text(self, body: bytes, status: int) -> str:
        document = self._document(body, status)
        if not isinstance(document, dict) or not isinstance(document.get("error"), str):
            raise self._no_such_server(status)
        return str(document["error"])

    def _document(self, body: bytes, status: int = 200) -> Any:
        try:
            return json.loads(body)
        except ValueError:
            raise self._no_such_server(status) from None

    def _no_such_server(self, status: int) -> ServerError:
        return ServerError(
            f"the program at {self.url} is no server of the v2 protocol: it answered with status {status} and a body "
            f"that the protocol does not know. {self._flag} names another one"
        )


def _access_advice(text: str, status: int) -> str:
    """How a command sends what the server wants."""
    if status == 401:
        return " (--api-key-file=FILE sends the key in a file)"
    if not text.startswith(_RESTRICTED):
        return ""
    if _BIND_TOKEN not in text:
        return " (--header=NAME=VALUE sends it)"
    return f" (--header={_BIND_TOKEN}=TOKEN sends it; in the program that serves its functions, triton.get_access_token() has it)"


def model_path(model: str, version: str) -> str:
    """The path of a model, or of one of its versions if ``version`` is not empty."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def control_path(model: str) -> str:
    """The path of the calls that load, unload and change a model."""
    return f"/v2/repository/models/{quote(model, safe='')}"
