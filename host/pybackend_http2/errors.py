"""Errors of the package. Those of the peer name the section of RFC 9113 whose rule was broken."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The codes of RST_STREAM and GOAWAY (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class LocalProtocolError(Exception):
    """The user of this package asked for something that the protocol forbids; nothing was sent."""


class RemoteProtocolError(Exception):
    """The peer broke a rule or exceeded a bound: the connection ends."""

    def __init__(self, code: ErrorCode, section: str, message: str) -> None:
        super().__init__(f"{message} (RFC 9113 section {section})")
        self.code = code  # the error code for the peer
        self.section = section  # the section of RFC 9113 that has the rule, e.g. ``"6.5.2"``.
        self.debug = str(self).encode()  # the text of the GOAWAY frame


class StreamError(RemoteProtocolError):
    """One stream ends; the connection goes on."""


def protocol_error(section: str, message: str) -> RemoteProtocolError:
    """The error for a frame that must not come, or not now."""
    return RemoteProtocolError(ErrorCode.PROTOCOL_ERROR, section, message)


def frame_size_error(section: str, message: str) -> RemoteProtocolError:
    """The error for a frame whose length is wrong."""
    return RemoteProtocolError(ErrorCode.FRAME_SIZE_ERROR, section, message)
