"""Status and message of a call, as a client's library reads them."""

from urllib.parse import unquote

import hpack
import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.grpc.errors import LONGEST_MESSAGE_BYTES, CallError, trailers, trailers_only
from pybackend.protocol.grpc.status import GrpcStatus


def fields(block):
    return dict(hpack.Decoder().decode(block.encoded))


@pytest.mark.parametrize("text", ["plain", " at both ends ", "100 %", "a\r\nb", "über 😀", "\ud800"])
def test_messages_survive(text):
    found = fields(trailers(GrpcStatus.INTERNAL, text))
    assert found["grpc-status"] == "13"
    assert found["grpc-message"].isascii()
    assert unquote(found["grpc-message"]) == text.encode("utf-8", "replace").decode()


def test_long_messages_are_cut_between_letters():
    found = fields(trailers_only(GrpcStatus.UNAVAILABLE, "ü" * 10_000))
    assert (found[":status"], found["content-type"]) == ("200", "application/grpc")
    assert len(found["grpc-message"]) <= 3 * LONGEST_MESSAGE_BYTES + 16
    assert unquote(found["grpc-message"], errors="strict") == "ü" * (LONGEST_MESSAGE_BYTES // 2) + " ..."


def test_success_has_no_message():
    assert fields(trailers(GrpcStatus.OK)) == {"grpc-status": "0"}


def test_errors_of_the_engine():
    error = CallError.of(InferenceError("no", ErrorCode.NOT_FOUND))
    assert (error.status, error.message) == (GrpcStatus.NOT_FOUND, "no")
