"""The requests as they go over the wire, and what counts as the right answer to them."""

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from tests.bench import bodies

HEADER_LENGTH = "Inference-Header-Content-Length"


@contextmanager
def answering(document: dict[str, object], raw: bytes) -> Iterator[int]:
    """A server that gives everybody the same v2 reply; yields its port."""
    head = json.dumps(document).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header(HEADER_LENGTH, str(len(head)))
            self.send_header("Content-Length", str(len(head) + len(raw)))
            self.end_headers()
            self.wfile.write(head + raw)

        def log_message(self, *message: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def reply(name: str, datatype: str, shape: list[int], raw: bytes) -> dict[str, object]:
    output = {
        "name": name,
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": len(raw)},
    }
    return {"outputs": [output]}


def serialised(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def test_strings_are_sent_behind_their_lengths() -> None:
    workload = bodies.strings()
    document_bytes = int(workload.headers[HEADER_LENGTH])
    (described,) = json.loads(workload.body[:document_bytes])["inputs"]
    strings = [b"item %d" % (number * number) for number in range(bodies.STRING_COUNT)]
    assert (described["datatype"], described["shape"]) == ("BYTES", [bodies.STRING_COUNT])
    assert described["parameters"]["binary_data_size"] == workload.tensor_bytes
    assert workload.body[document_bytes:] == serialised(strings)


def test_strings_must_come_back_in_the_opposite_order() -> None:
    strings = [b"item %d" % (number * number) for number in range(bodies.STRING_COUNT)]
    turned, unturned = serialised(strings[::-1]), serialised(strings)
    with answering(reply("OUTPUT0", "BYTES", [len(strings)], turned), turned) as port:
        assert bodies.check(port, bodies.strings()) > len(turned)
    with (
        answering(reply("OUTPUT0", "BYTES", [len(strings)], unturned), unturned) as port,
        pytest.raises(bodies.WrongReplyError, match="10,000 strings: output OUTPUT0 is"),
    ):
        bodies.check(port, bodies.strings())


def test_a_stream_that_lost_a_response_is_a_wrong_reply() -> None:
    complete = np.array([1000, 499_500], np.float32).tobytes()
    short = np.array([999, 498_501], np.float32).tobytes()
    with answering(reply("OUTPUT0", "FP32", [2], complete), complete) as port:
        bodies.check(port, bodies.stream())
    with (
        answering(reply("OUTPUT0", "FP32", [2], short), short) as port,
        pytest.raises(bodies.WrongReplyError, match="1,000 responses of 1 KB: output OUTPUT0"),
    ):
        bodies.check(port, bodies.stream())


def test_no_reply_is_a_wrong_reply() -> None:
    with answering(reply("OUTPUT0", "FP32", [1], b"1234"), b"1234") as port:
        pass
    with pytest.raises(bodies.WrongReplyError, match="add_sub binary: no reply: ConnectionRefusedError"):
        bodies.check(port, bodies.add_sub_binary())


def test_calls_ask_for_the_size_in_elements() -> None:
    workload = bodies.large_calls(50, 40 << 20)
    asked = np.frombuffer(workload.body[int(workload.headers[HEADER_LENGTH]) :], np.float32)
    assert workload.name == "50 BLS calls of 40 MB"
    assert asked.tolist() == [50, 10 << 20]
