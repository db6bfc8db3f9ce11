"""The headers that carry an access token to a server that restricts some of its routes."""

from __future__ import annotations

from pybackend_bind.client.exceptions import PyTritonClientValueError

TOKEN_HEADER = "triton-access-token"  # noqa: S105  a name
_PREFIXES = {"http": "", "grpc": "triton-grpc-protocol-"}


def create_auth_headers(access_token: str, protocol: str) -> dict[str, str]:
    """The headers of requests by ``http`` or ``grpc``.

    Raises PyTritonClientValueError: the token is empty, or a protocol is another.
    """
    if not access_token:
        raise PyTritonClientValueError("access_token is empty: pass the one of triton.get_access_token(), or None")
    if protocol not in _PREFIXES:
        raise PyTritonClientValueError(f"the protocol is {protocol!r}: it must be 'http' or 'grpc'")
    return {_PREFIXES[protocol] + TOKEN_HEADER: access_token}
