"""Headers that become parameters of requests."""

from collections.abc import Mapping

from pybackend.errors import invalid
from pybackend.frontend.access.restrictions import Headers
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.protocol.request_parameters import BINARY_DATA_OUTPUT, RESERVED_NAMES, RESERVED_PREFIX

MOST_HEADERS = 256
"""Requests with more headers are refused: the name of each is compared with the pattern."""

_RESERVED = frozenset({*RESERVED_NAMES, "headers", BINARY_DATA_OUTPUT})


class ForwardedHeaders:
    """The headers that one port forwards.

    A part of their names matches the pattern, which is one of RE2. Capitals make no difference, unless it says
    ``(?-i)``. Raises ValueError, which says why, for any other text.
    """

    def __init__(self, pattern: str) -> None:
        # Imported here: it takes 10 ms, and few servers forward headers.
        from pybackend.frontend.access.patterns import compile_pattern

        self._search = compile_pattern(pattern)

    def takes(self, name: bytes) -> bool:
        """True if a header of this name is forwarded."""
        return self._search(name) is not None

    def of(self, headers: Headers, *, keeps_blanks: bool = False) -> Mapping[str, str] | None:
        """The parameters that a request's headers become, by the headers' names; None for none.

        The values of a repeated header are joined with commas, in their order (RFC 9110 section 5.3). Blanks around a
        value are no part of it in HTTP (section 5.5).
        """
        if len(headers) > MOST_HEADERS:
            raise invalid(
                f"the request has {len(headers)} headers, and a server that forwards headers takes {MOST_HEADERS} at most"
            )
        names: dict[str, str] = {}
        found: dict[str, str] = {}
        for name, value in headers:
            if not self.takes(name):
                continue
            written = name.decode("latin-1")
            lower = written.lower()
            if lower in _RESERVED or lower.startswith(RESERVED_PREFIX):
                raise invalid(f"Header '{written}' is reserved for Triton usage and cannot be forwarded.")
            first = names.setdefault(lower, written)
            text = _text(value if keeps_blanks else value.strip(b" \t"))
            found[first] = f"{found[first]}, {text}" if first in found else text
        return found or None


def add_parameters(request: InferenceRequest, forwarded: Mapping[str, str]) -> None:
    """Add forwarded headers to a request. They replace parameters of the body, whatever the case of these names.

    A gateway sets such headers, and the body comes from its client.
    """
    own = request.parameters
    if not own:
        request.parameters = dict(forwarded)
        return
    taken = {name.lower() for name in forwarded}
    kept: dict[str, ParameterValue] = {name: value for name, value in own.items() if name.lower() not in taken}
    request.parameters = {**kept, **forwarded}


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
