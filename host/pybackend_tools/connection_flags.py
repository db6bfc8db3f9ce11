"""The flags of commands that talk to a running server."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pybackend.cli.command_parser import CommandParser
from pybackend_client.connection import START_ADVICE, Connection, Credentials, read_key

DEFAULT_URL = "http://localhost:8000"
METRICS_PORT = 8002

_URL, _KEY = "PYBACKEND_URL", "PYBACKEND_API_KEY"
"""Environment variables."""


def add_url(add_argument: Callable[..., Any]) -> None:
    """Add ``--url`` by this method of a parser or a group."""
    add_argument(
        "--url",
        default=os.environ.get(_URL) or DEFAULT_URL,
        metavar="URL",
        help=f"the server: http://HOST:PORT, https://HOST:PORT or unix:PATH [${_URL}, else {DEFAULT_URL}]",
    )


def add_connection_flags(parser: CommandParser, default_timeout_s: float) -> None:
    """Add the flags of access and time limits."""
    group = parser.add_argument_group("connection")
    add = group.add_argument
    add(
        "--timeout",
        type=float,
        default=default_timeout_s,
        metavar="SECONDS",
        help=f"how long to wait for the server [{default_timeout_s:g}]",
    )
    add("--api-key-file", type=Path, metavar="FILE", help=f"file with the server's API key [the key in ${_KEY}]")
    add("--header", action="append", default=[], metavar="NAME=VALUE", help="send this header; may be repeated")
    add(
        "--root-cert",
        type=Path,
        metavar="FILE",
        help="PEM file with the certificate that signs the server's [the system's]",
    )
    add("--client-cert", type=Path, metavar="FILE", help="PEM file with the client's certificate")
    add("--client-key", type=Path, metavar="FILE", help="PEM file with its private key [the same file]")
    add("--insecure", action="store_true", help="accept any certificate of the server")


def access_of(given: argparse.Namespace, parser: CommandParser) -> Credentials:
    """The headers and certificates that the flags select.

    Raises UsageError if a header has another form, and ServerError if the file with the key cannot be read.
    """
    headers = {}
    for name, value in parser.pairs("--header", given.header):
        if not _is_header(name, value):
            parser.refuse_with(f'Bad option: "--header". Got {name}={value}, expected NAME=VALUE')
        headers[name] = value
    key = os.environ.get(_KEY, "").strip() if given.api_key_file is None else read_key(given.api_key_file)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return Credentials(headers, given.root_cert, given.client_cert, given.client_key, verify=not given.insecure)


def connection_of(given: argparse.Namespace, parser: CommandParser, advice: str = START_ADVICE) -> Connection:
    """The connection that the flags describe; the advice is for the error if no server answers."""
    return Connection(given.url, given.timeout, advice, access_of(given, parser))


def _is_header(name: str, value: str) -> bool:
    return (
        all(letter.isalnum() or letter in "-_" for letter in name)
        and name.isascii()
        and value.isascii()
        and value.isprintable()
    )


def metrics_url(given: argparse.Namespace) -> str:
    """The place of the metrics: as ``--metrics-url`` says, or beside that of ``--url``."""
    if given.metrics_url is not None:
        return str(given.metrics_url)
    return f"http://{host_of(given.url)}:{METRICS_PORT}"


def host_of(url: str) -> str:
    """The host of a server's URL, as URLs write it."""
    host = urlsplit(url if "://" in url else f"http://{url}").hostname
    host = "localhost" if url.startswith("unix:") or not host else host
    return f"[{host}]" if ":" in host else host
