"""Error codes that cross the process boundary, and the exceptions for violations of the protocol."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The eight codes of the inference API, numbered as in ``TritonError``."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class WireError(Exception):
    """A protocol error on the channel between host and stub."""


class LocalProtocolError(WireError):
    """This side tried to send something that the protocol does not allow, which is a bug."""


class RemoteProtocolError(WireError):
    """The other side broke the protocol; no further frame from it can be trusted."""
