"""Whole answers that differ in a few pieces only: the rest is made once.

The encoding of everything that recurs (head, parts of the body, trailers) is a format for bytes. One operation fills it.
"""

from __future__ import annotations

from pybackend.http2.errors import LocalProtocolError
from pybackend.http2.header_block import HeaderBlock


class AnswerForm:
    """A whole answer with one small piece of data; see ``Stream.respond_in``.

    Args:
        body: the data as a format: ``%b`` stands for a piece that varies, ``%%`` for a percent sign.

    Attributes:
        whole: the format of all frames. Before the pieces of the body it takes the stream's number, packed, and the
            header of DATA; behind them the number again.

    Raises:
        LocalProtocolError: a block does not fit a frame, or the head is an interim one.
    """

    __slots__ = ("whole",)

    def __init__(self, head: HeaderBlock, body: bytes, trailers: HeaderBlock) -> None:
        if head.informational or not (head.fits and trailers.fits):
            raise LocalProtocolError("the head or the trailers of a form are too long, or the head is an interim one")
        self.whole = b"".join(
            (
                escaped(head.first),
                b"%b",
                escaped(head.encoded),
                b"%b",
                body,
                escaped(trailers.last),
                b"%b",
                escaped(trailers.encoded),
            )
        )


def escaped(constant: bytes) -> bytes:
    """Bytes that stay as they are in a format."""
    return constant.replace(b"%", b"%%")
