"""Error codes that cross the process boundary, and what a broken conversation raises."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The eight codes of the inference API, with the numbers that ``TritonError`` shows to models."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class WireError(Exception):
    """Something is wrong on the channel between host and stub."""


class LocalProtocolError(WireError):
    """This side tried to send what the contract does not allow: a bug of ours."""


class RemoteProtocolError(WireError):
    """The other side broke the contract: it is not to be trusted with one more frame."""
