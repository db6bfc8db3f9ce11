"""The certificates of a port."""

from __future__ import annotations

import ssl

from pybackend.errors import ServerError
from pybackend.settings import TlsSettings


def tls_context(settings: TlsSettings | None, service: str, *protocols: str) -> ssl.SSLContext | None:
    """The context for a port; None for a plain one.

    Args:
        settings: its certificates.
        service: ``http`` or ``grpc``, as flags begin.
        protocols: names for the choice of a protocol during the handshake (ALPN).

    Raises:
        ServerError: a file cannot be used; the text names it and its flag.
    """
    if settings is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ServerError(
            f"failed to start {service.upper()} service: --{service}-server-cert {settings.certificate} and "
            f"--{service}-server-key {settings.key} cannot be used: {_reason(error)}. Both are PEM files, and belong "
            "to each other"
        ) from None
    if settings.root is not None:
        try:
            context.load_verify_locations(settings.root)
        except (OSError, ssl.SSLError) as error:
            raise ServerError(
                f"failed to start {service.upper()} service: --{service}-root-cert {settings.root} cannot be used: "
                f"{_reason(error)}. It is a PEM file with the certificates that sign those of clients"
            ) from None
    if settings.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _reason(error: OSError) -> str:
    return error.strerror if not isinstance(error, ssl.SSLError) and error.strerror else str(error)
