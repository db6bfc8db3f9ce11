"""How a client of the load counts answers."""

from __future__ import annotations

from typing import Any

import pytest

from pybackend_tools.analyzer.load_program import Client

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Notes:
    """In the place of a job: notes what its client says."""

    def __init__(self) -> None:
        self.errors: list[str | None] = []

    def answered(self, _due_s: float, error: str | None) -> None:
        self.errors.append(error)

    def free(self, client: Any) -> None:
        """There is no other request."""

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize("before", [b"", b'data: {"x": 1}\n\n' * 2000], ids=["short", "long"])
@pytest.mark.parametrize("cut", range(1, 15))
def test_an_error_that_ends_a_stream_is_found_wherever_it_is_cut(before: bytes, cut: int) -> None:
    notes = Notes()
    client = Client(notes)  # type: ignore[arg-type]
    error = b'data: {"error": "too late"}\n\n'
    for part in (HEAD, *([chunk(before)] if before else []), chunk(error[:cut]), chunk(error[cut:]), b"0\r\n\r\n"):
        client.data_received(part)
    (found,) = notes.errors
    assert found is not None
    assert found.endswith(error.decode())


def test_a_stream_without_an_error_is_a_success() -> None:
    notes = Notes()
    client = Client(notes)  # type: ignore[arg-type]
    client.data_received(HEAD + chunk(b'data: {"x": 1}\n\n') + b"0\r\n\r\n")
    assert notes.errors == [None]
