"""A server that speaks S3, for tests of repositories in cloud storage, and a gate before it that can fail."""

import http.client
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import requests

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
"""The server takes any."""

_SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_READY = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


class S3Server:
    """A server's bucket; the keys of objects are paths.

    Args:
        address: URL of the server.
        process: the server.
    """

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.process = process
        self._session = requests.Session()
        self._session.headers["Authorization"] = _SIGNED
        self._session.put(f"{address}/{BUCKET}", timeout=60).raise_for_status()

    @property
    def host(self) -> str:
        """``host:port``."""
        return self.address.removeprefix("http://")

    def url(self, path: str) -> str:
        return f"s3://{self.host}/{BUCKET}/{path}"

    def put(self, key: str, content: bytes | str) -> None:
        body = content.encode() if isinstance(content, str) else content
        request = requests.Request("PUT", self.address, data=body).prepare()
        request.url = f"{self.address}/{BUCKET}/{quote(key)}"  # as it is: requests would resolve ".."
        request.headers.update(self._session.headers)
        self._session.send(request, timeout=60).raise_for_status()

    def delete(self, key: str) -> None:
        self._session.delete(f"{self.address}/{BUCKET}/{quote(key)}", timeout=60).raise_for_status()

    def upload(self, directory: Path, prefix: str) -> None:
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())

    def close(self) -> None:
        self._session.close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server process with an empty bucket, for the length of a ``with`` block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
    )
    try:
        server = S3Server(_address(process), process)
        try:
            yield server
        finally:
            server.close()
    finally:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        ready = _READY.search(line)
        if ready:
            return ready[1]
    raise AssertionError(f"the S3 server did not start:\n{said}")


class Gate:
    """Stands between a client and the server, notes what the client asks, and fails on demand.

    Args:
        server: the address of the server.

    Attributes:
        asked: keys of the objects that were read, each with the range.
        before: called with the key before an object is read.
        cuts: how many bytes of an object to send before the connection breaks, by key, once each.
        unquoted: leave out the quotation marks of ETags, as Azure does in listings.
        refusal: status and code of S3 with which everything is answered; None to pass it on.
        answers: while this is not set, requests wait.
        waits: set once a request has waited.
    """

    def __init__(self, server: S3Server) -> None:
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str], None] = lambda _key: None
        self.cuts: dict[str, int] = {}
        self.unquoted = False
        self.refusal: tuple[int, str] | None = None
        self.answers, self.waits = threading.Event(), threading.Event()
        self.answers.set()
        self._behind = server.host
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gate.pass_on(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, path: str, bucket: str = BUCKET) -> str:
        return f"s3://127.0.0.1:{self._server.server_port}/{bucket}/{path}"

    def taken(self) -> list[str]:
        """The keys that were read since the last call, sorted."""
        keys, self.asked = sorted({key for key, _ in self.asked}), []
        return keys

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def pass_on(self, client: BaseHTTPRequestHandler) -> None:
        client.close_connection = True
        if not self.answers.is_set():
            self.waits.set()
            self.answers.wait()
        if self.refusal is not None:
            status, code = self.refusal
            _answer(client, status, {}, f"<Error><Code>{code}</Code></Error>".encode())
            return
        key = unquote(client.path.partition("?")[0]).removeprefix(f"/{BUCKET}").removeprefix("/")
        if key:
            self.before(key)
            self.asked.append((key, client.headers.get("Range", "")))
        behind = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            behind.request("GET", client.path, headers=dict(client.headers))
            reply = behind.getresponse()
            body = reply.read()
        finally:
            behind.close()
        headers = dict(reply.getheaders())
        if self.unquoted and "ETag" in headers:
            headers["ETag"] = headers["ETag"].strip('"')
        _answer(client, reply.status, headers, body, self.cuts.pop(key, None))


def _answer(
    client: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes, cut: int | None = None
) -> None:
    client.send_response(status)
    for name, value in headers.items():
        if name.lower() not in {"connection", "content-length", "transfer-encoding", "date", "server"}:
            client.send_header(name, value)
    client.send_header("Content-Length", str(len(body)))
    client.send_header("Connection", "close")
    client.end_headers()
    with suppress(ConnectionError):  # the client has seen enough
        client.wfile.write(body[:cut])


def variables(**more: str) -> Mapping[str, str]:
    """Environment variables of a process that may read the bucket."""
    return {**os.environ, **CREDENTIALS, **more}
