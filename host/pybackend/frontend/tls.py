"""The certificates of a port."""

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from pybackend.errors import ServerError
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.settings import TlsSettings


class Pem(NamedTuple):
    """The contents of a port's files; None for no ``root``."""

    chain: bytes
    key: bytes
    root: bytes | None


class Secured:
    """What makes a port secure: ``context`` is for the next connection."""

    context: ssl.SSLContext


class PortCertificates(Secured):
    """The certificates of one port, and the context that they make.

    New files count for new connections; open ones go on as they are.

    The service is ``http`` or ``grpc``, as flags begin; the protocol is its name for the choice of one during the
    handshake (ALPN). A ServerError names a file that cannot be used, and its flag.

    Attributes:
        settings: name the files.
        files: reads the files again when they change.
        pem: their contents.
    """

    def __init__(self, settings: TlsSettings, service: str, protocol: str) -> None:
        self.settings = settings
        self._service = service
        self._protocol = protocol
        files = [file for file in (settings.certificate, settings.key, settings.root) if file is not None]
        self.files = FollowedFiles(f"certificates of {service.upper()}", files, self._read, self._take)
        self.context, self.pem = self.files.first

    def _take(self, read: tuple[ssl.SSLContext, Pem]) -> None:
        self.context, self.pem = read

    def _read(self) -> tuple[ssl.SSLContext, Pem]:
        settings, service = self.settings, self._service
        context = _context(self._protocol, mutual=settings.mutual)
        try:
            pair = settings.certificate.read_bytes(), settings.key.read_bytes()
            context.load_cert_chain(settings.certificate, settings.key)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(
                f"--{service}-server-cert {settings.certificate} and --{service}-server-key {settings.key}",
                f"{_reason(error)}. Both are PEM files, and belong to each other",
            ) from None
        root = None
        if settings.root is not None:
            try:
                root = settings.root.read_bytes()
                context.load_verify_locations(settings.root)
            except (OSError, ssl.SSLError) as error:
                raise _unusable(
                    f"--{service}-root-cert {settings.root}",
                    f"{_reason(error)}. It is a PEM file with the certificates that sign those of clients",
                ) from None
        return context, Pem(*pair, root)


class HandedCertificates(Secured):
    """The certificates of a port in a process that reads no files."""

    def __init__(self, pem: Pem, protocol: str, *, mutual: bool) -> None:
        self._protocol = protocol
        self._mutual = mutual
        self.take(pem)

    def take(self, pem: Pem) -> None:
        """Use these from now on."""
        context = _context(self._protocol, mutual=self._mutual)
        with ExitStack() as stack:
            chain, key, *roots = [stack.enter_context(_unnamed_file(part)) for part in pem if part is not None]
            context.load_cert_chain(chain, key)
            for root in roots:
                context.load_verify_locations(root)
        self.context = context


@contextmanager
def _unnamed_file(contents: bytes) -> Iterator[str]:
    """The path of a file in memory: OpenSSL reads files only."""
    with open(os.memfd_create("pybackend-certificate"), "w+b", buffering=0) as file:
        file.write(contents)
        yield f"/proc/self/fd/{file.fileno()}"


def _context(protocol: str, *, mutual: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs a client little and the server much
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([protocol])
    return context


def port_certificates(settings: TlsSettings | None, service: str, protocol: str) -> PortCertificates | None:
    """The certificates of a port, None for a plain one; otherwise as :class:`PortCertificates`."""
    if settings is None:
        return None
    try:
        return PortCertificates(settings, service, protocol)
    except ServerError as error:
        raise ServerError(f"failed to start {service.upper()} service: {error}") from None


def _unusable(files: str, reason: str) -> ServerError:
    return ServerError(f"{files} cannot be used: {reason}")


def _reason(error: OSError) -> str:
    return error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else str(error)
