"""Streams of OpenAI's API: how long the first piece takes beside the model, and the server's CPU time for each further
one."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, progress, servers
from tests.bench.plan import Plan
from tests.bench.procstat import CpuTimes, cpu_times

_FIRSTS = 30
"""Streams of a single client, one after the other, whose first pieces are timed."""

_CODE = '''
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says when it says a piece, on the clock that all processes share: the first at once, the others after pauses."""

    def execute(self, requests):
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].split()
            arguments = (request.get_response_sender(), int(words[0]), float(words[1]))
            threading.Thread(target=self.say, args=arguments).start()

    def say(self, sender, count, pause_s):
        for number in range(count):
            if number:
                time.sleep(pause_s)
            text = np.array([b"%d " % time.monotonic_ns()], np.object_)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
"""


@dataclass(frozen=True)
class OpenAiSample:
    """One round of so many streams at once.

    Attributes:
        first_ms: from the request to the first piece, of each stream, without the model's time.
        piece_ms: from the model to the client, of each further piece.
        cpu_us: CPU time of the server's own process for each piece, the requests' included.
    """

    streams: int
    round: int
    pieces: int
    first_ms: list[float]
    piece_ms: list[float]
    cpu_us: float


class _Client:
    """A stream, and when its pieces arrived."""

    def __init__(self, port: int, body: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self._request = head + b"content-length: %d\r\n\r\n" % len(body) + body
        self._received = b""
        self.arrivals: list[tuple[int, bytes]] = []

    def begin(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Take what has arrived; True at the end of the stream."""
        data = self.socket.recv(1 << 16)
        now = time.monotonic_ns()
        if not data:
            raise bodies.WrongReplyError("the stream ended early")
        *events, self._received = (self._received + data).split(b"\n\n")
        self.arrivals += [(now, event) for event in events if b"data: {" in event]
        return any(b"[DONE]" in event for event in events)


def measure(plan: Plan, scratch: Path) -> list[OpenAiSample]:
    """Streams of one client, then of many at once."""
    version = scratch / "models" / "clock" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_CODE)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    samples: list[OpenAiSample] = []
    launcher = servers.pybackend_launcher(options=["--allow-openai"])
    with launcher.start(scratch / "models") as server:
        _drive([_Client(server.port, _body(2, 0))])
        for round_ in range(plan.openai_rounds):
            for streams, pieces, pause_s in plan.openai_streams:
                alone = [_Client(server.port, _body(1, 0)) for _ in range(_FIRSTS if streams == 1 else 0)]
                for client in alone:
                    _drive([client])
                clients = [_Client(server.port, _body(pieces, pause_s)) for _ in range(streams)]
                before = cpu_times(server.tree())
                _drive(clients)
                cpu = cpu_times(server.tree()).since(before)
                sample = _sample(clients, round_, cpu)
                sample.first_ms.extend(_sample(alone, round_, cpu).first_ms if alone else ())
                progress.show(f"OpenAI, {streams} streams: {sample.cpu_us:.0f} us of CPU for each piece")
                samples.append(sample)
    return samples


def _body(pieces: int, pause_s: float) -> bytes:
    return json.dumps({"model": "clock", "prompt": f"{pieces} {pause_s}", "stream": True}).encode()


def _drive(clients: Sequence[_Client]) -> None:
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.begin()
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.read():
                    selector.unregister(key.fileobj)
                    key.data.socket.close()


def _sample(clients: Sequence[_Client], round_: int, cpu: CpuTimes) -> OpenAiSample:
    first_ms, piece_ms, count = [], [], 0
    for client in clients:
        for place, (arrived_ns, event) in enumerate(client.arrivals):
            text = json.loads(event[event.index(b"data: ") + 6 :])["choices"][0]["text"].split()
            if text:
                count += 1
                if place == 0:
                    first_ms.append((arrived_ns - client.began_ns) / 1e6)
                else:
                    piece_ms.append((arrived_ns - int(text[0])) / 1e6)
    return OpenAiSample(len(clients), round_, count, first_ms, piece_ms, cpu.host_ns / count / 1000)
