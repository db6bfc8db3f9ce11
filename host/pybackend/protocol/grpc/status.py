"""gRPC's status for each kind of failure. Used by the front end for status lines, and by nothing below it."""

from enum import IntEnum

from pybackend.errors import ErrorCode


class GrpcStatus(IntEnum):
    """The status codes that a server sends, with gRPC's numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


STATUS = {
    ErrorCode.UNKNOWN: GrpcStatus.UNKNOWN,
    ErrorCode.INTERNAL: GrpcStatus.INTERNAL,
    ErrorCode.NOT_FOUND: GrpcStatus.NOT_FOUND,
    ErrorCode.INVALID_ARG: GrpcStatus.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: GrpcStatus.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: GrpcStatus.ALREADY_EXISTS,
    ErrorCode.CANCELLED: GrpcStatus.CANCELLED,
}
