"""The JSON with which a client registers a shared memory region."""

from typing import NamedTuple

from pybackend.errors import invalid
from pybackend.protocol.json.document import as_object, as_string, as_unsigned, optional, parse_document


class Registration(NamedTuple):
    """A region to register. ``offset`` is where it starts in the shared memory object, in bytes."""

    key: str
    offset: int
    byte_size: int


def parse_registration(body: bytes) -> Registration:
    """Read the body of a request to register a region."""
    document = as_object(parse_document(body, None), "key")
    for member in ("key", "byte_size"):
        if member not in document:
            raise invalid(
                f"Shared memory register request has no '{member}' field. Write "
                '{"key": "/input", "offset": 0, "byte_size": 64}'
            )
    return Registration(
        as_string(document["key"], "key"),
        as_unsigned(optional(document, "offset", 0), "offset"),
        as_unsigned(document["byte_size"], "byte_size"),
    )
