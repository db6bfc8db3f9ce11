"""The certificates of a port."""

from __future__ import annotations

import ssl

from pybackend.errors import ServerError
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.settings import TlsSettings


class PortCertificates:
    """The certificates of one port, and the context that they make. New files count for new connections; open ones go on as they are.

    The service is ``http`` or ``grpc``, as flags begin; the protocol is its name for the choice of one during the handshake
    (ALPN). A ServerError names a file that cannot be used, and its flag.

    Attributes:
        context: for the next connection.
        files: reads the files again when they change.
    """

    def __init__(self, settings: TlsSettings, service: str, protocol: str) -> None:
        self._settings = settings
        self._service = service
        self._protocol = protocol
        files = [file for file in (settings.certificate, settings.key, settings.root) if file is not None]
        self.files = FollowedFiles(f"certificates of {service.upper()}", files, self._read, self._take)
        self.context = self.files.first

    def _take(self, context: ssl.SSLContext) -> None:
        self.context = context

    def _read(self) -> ssl.SSLContext:
        settings, service = self._settings, self._service
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # which costs a client little and the server much
        try:
            context.load_cert_chain(settings.certificate, settings.key)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(
                f"--{service}-server-cert {settings.certificate} and --{service}-server-key {settings.key}",
                f"{_reason(error)}. Both are PEM files, and belong to each other",
            ) from None
        if settings.root is not None:
            try:
                context.load_verify_locations(settings.root)
            except (OSError, ssl.SSLError) as error:
                raise _unusable(
                    f"--{service}-root-cert {settings.root}",
                    f"{_reason(error)}. It is a PEM file with the certificates that sign those of clients",
                ) from None
        if settings.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols([self._protocol])
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
