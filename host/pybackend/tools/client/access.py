"""How a client proves who it is, and which servers it trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.errors import ServerError


@dataclass(frozen=True)
class Access:
    """The headers and certificates of a client.

    Attributes:
        headers: sent with each request, such as an API key.
        root: PEM file with the certificates that sign those of servers; None for the system's.
        certificate: PEM file with the client's certificate, None for none.
        key: PEM file with its private key; None if it is in the same file.
        verify: False accepts any certificate of a server.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    root: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True

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
