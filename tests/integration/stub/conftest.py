"""A real stub whose host is the test: it says what it likes, when it likes, and hears every word."""

import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from pybackend.process.bundle import stage_bundle
from pybackend_wire.framing import JSON, UNLIMITED, FrameDecoder, decode_frame, encode_frame
from pybackend_wire.host_messages import Execute, FromHost, Initialize, Load, ModelToLoad, encoded
from pybackend_wire.messages import PROTOCOL_VERSION, RequestOptions, StubMessage
from tests.support.repositories import PREAMBLE

DEADLINE_S = 30


class PlayedHost:
    """The host's end of a stub's socket.

    Args:
        directory: for the model's file.
        code: of the model; pb_utils and np are imported for it.
        decoupled: the model answers any number of times.
        concurrency: executions that may overlap.
    """

    def __init__(self, directory: Path, code: str, *, decoupled: bool = False, concurrency: int = 1) -> None:
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.socket.settimeout(DEADLINE_S)
        their_nudges, self._nudges = os.pipe()
        self._decoder = FrameDecoder(UNLIMITED, UNLIMITED)
        self._heard: deque[list] = deque()
        inherited = [theirs.fileno(), their_nudges]
        arguments = [sys.executable, "-I", "-B", str(stage_bundle()), *map(str, inherited), str(os.getpid()), "0", "-1"]
        self.process = subprocess.Popen(
            arguments, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        theirs.close()
        os.close(their_nudges)
        hello = self.wait_for(StubMessage.HELLO)
        assert hello[1] == PROTOCOL_VERSION
        path = directory / "model.py"
        path.write_text(PREAMBLE + code)
        self.say(Load("json", None, ModelToLoad(str(path), "model", "model_0", str(directory))))
        self.wait_for(StubMessage.COMPLETED)
        ways = {"decoupled": decoupled, "concurrency": concurrency, "reschedules": False, "drops_unknown_outputs": True}
        ways["maps_regions"] = False
        self.say(Initialize(args={}, output_names=["OUT"], copy_inputs=False, **ways))
        self.initialized = self.wait_for(StubMessage.INITIALIZED)

    def say(self, *messages: FromHost, tail: bytes = b"") -> None:
        self.socket.sendall(encode_frame(JSON, [encoded(message) for message in messages], [tail]))

    def nudge(self) -> None:
        """Ask to be heard at once."""
        os.write(self._nudges, b"\0")

    def hear(self) -> list:
        """The next message; waits for it."""
        while not self._heard:
            count = self.socket.recv_into(self._decoder.get_buffer())
            assert count, f"the stub has gone: {self.process.stdout.read().decode()}"
            for frame in self._decoder.received(count):
                self._heard.extend(decode_frame(JSON, frame))
        return self._heard.popleft()

    def wait_for(self, *kinds: int) -> list:
        """The next message of one of these kinds; what comes before it is lost."""
        while True:
            message = self.hear()
            if message[0] in kinds:
                return message

    def close(self) -> None:
        """Go away; the stub ends."""
        self.socket.close()
        try:
            self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._nudges)


def execute(number: int, *requests: tuple) -> Execute:
    """EXECUTE with one request without tensors, or with these."""
    return Execute(number, requests or [request()])


def request(request_id: str = "") -> tuple:
    """A request without tensors; its id can tell the model what to do."""
    return ([], None, RequestOptions(id=request_id))


@pytest.fixture
def host(tmp_path):
    """A function that starts a stub with a model's code; it is ended with the test."""
    hosts = []

    def start(code: str, **options: object) -> PlayedHost:
        hosts.append(PlayedHost(tmp_path, code, **options))
        return hosts[-1]

    yield start
    for each in hosts:
        each.close()
