"""A process that speaks for a stub: all it says, true or not, is in the functions of the "model" file it is told to
load.

``hello``, ``load``, ``initialize``, ``execute``, ``finalize`` and so on may be there, each called with parts of the
message; where one is missing, what an honest stub would say is said. They find this object as ``stub``.
"""

import array
import json
import mmap
import os
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "stub"))
from pybackend_wire.host_messages import Load, ModelToLoad
from pybackend_wire.messages import PROTOCOL_VERSION, HostMessage, SegmentRole, StubMessage

OTHERS = {
    HostMessage.DETACH: "detach",
    HostMessage.FREE_OUTPUT: "free_output",
    HostMessage.CANCEL: "cancel",
    HostMessage.FLOW: "flow",
    HostMessage.REPLY: "reply",
    HostMessage.ANSWER: "answer",
}
"""What an honest stub may leave unanswered."""


_NAMES = {
    **{name: globals()[name] for name in ("PROTOCOL_VERSION", "json", "os", "struct")},
    **HostMessage.__members__,
    **StubMessage.__members__,
    **SegmentRole.__members__,
}
"""What scripts find without importing it."""


class ScriptedStub:
    """The socket, and the segments that the host has attached."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.data, self.descriptors, self.messages = b"", [], []
        self.segments = {}
        self.roles = {}
        self.executions = 0
        self.execution = 0
        self.script = {}

    def send(self, *messages, tail=b""):
        metadata = json.dumps(messages).encode()
        self.socket.sendall(struct.pack("<II", len(metadata), len(tail)) + metadata + tail)

    def receive(self):
        """The next message; segments are attached on the way."""
        while not self.messages:
            self.messages = self.frame()
        message = self.messages.pop(0)
        if message[0] == HostMessage.ATTACH:
            _, segment, size, role = message
            self.segments[segment] = mmap.mmap(self.descriptors.pop(0), size)
            self.roles[segment] = role
        return message

    def frame(self):
        header = self.exactly(8)
        metadata, tail = struct.unpack("<II", header)
        messages = json.loads(self.exactly(metadata))
        self.exactly(tail)
        return messages

    def exactly(self, count):
        while len(self.data) < count:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(32 * 4))
            if not data:
                os._exit(0)
            for _, _, payload in ancillary:
                received = array.array("i")
                received.frombytes(payload)
                self.descriptors.extend(received)
            self.data += data
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def segment(self, role):
        return next(number for number, found in self.roles.items() if found == role)

    def output_segment(self, nbytes=1 << 20):
        """Ask for output memory and return the segment's number."""
        self.send((StubMessage.NEED_OUTPUT, nbytes))
        while True:
            message = self.receive()
            if message[0] == HostMessage.ATTACH and message[3] == SegmentRole.OUTPUT:
                return message[1]
            assert message[0] != HostMessage.NO_OUTPUT

    def result(self, *outputs, tail=b"", times=(1, 1, 1, 1)):
        """Answer the one request of an execution with these places."""
        self.send((StubMessage.RESULT, self.execution, *times, [[None, outputs, None]]), tail=tail)

    def returned(self):
        """End an execution whose one request is answered otherwise."""
        self.send((StubMessage.RESULT, self.execution, 1, 1, 1, 1, [None]))

    def respond(self, *outputs, final=True, tail=b""):
        """Send a response to the one request of an execution."""
        self.send((StubMessage.RESPOND, self.execution, 0, final, [None, outputs, None]), tail=tail)

    def call(self, number, model="callee", places=(), decoupled=False, execution=0, tail=b""):
        self.send((StubMessage.CALL, number, model, -1, decoupled, execution, places, [], None, []), tail=tail)

    def until(self, kind):
        """Receive until a message of a kind comes, which is returned; what comes before it is lost."""
        while True:
            message = self.receive()
            if message[0] == kind:
                return message

    def progress(self, execution):
        """Say which execution has begun last."""
        self.segments[self.segment(SegmentRole.PROGRESS)][:8] = struct.pack("<Q", execution)

    def run(self):
        path = os.environ.get("SCRIPT")
        if path:
            self.read_script(path)
        greeting = (StubMessage.HELLO, PROTOCOL_VERSION, os.getpid(), "3.11.0", "1.26.0", ["json"], {})
        self.act("hello", lambda: self.send(greeting))
        while True:
            message = self.receive()
            if message[0] == HostMessage.LOAD:
                self.read_script(ModelToLoad(*Load(*message[1:]).model).model_file)
                self.act("load", lambda: self.send((StubMessage.COMPLETED, None)), message)
            elif message[0] == HostMessage.INITIALIZE:
                self.act("initialize", lambda: self.send((StubMessage.INITIALIZED, False)), message)
            elif message[0] == HostMessage.EXECUTE:
                self.executions += 1
                self.execution = message[1]
                self.progress(self.execution)
                self.act("execute", self.result, message[2])
            elif message[0] == HostMessage.FINALIZE:
                self.act("finalize", lambda: self.send((StubMessage.FINALIZED, None)))
                return
            elif message[0] == HostMessage.PROBE:
                self.act("probe", lambda: self.send((StubMessage.READINESS, True, "")))
            elif message[0] in OTHERS:
                self.act(OTHERS[message[0]], lambda: None, *message[1:])

    def read_script(self, path):
        with open(path) as file:
            self.script = {**_NAMES, "stub": self}
            exec(compile(file.read(), path, "exec"), self.script)

    def act(self, name, otherwise, *arguments):
        action = self.script.get(name)
        if action is None:
            otherwise()
        else:
            action(*arguments)


ScriptedStub(int(sys.argv[1])).run()
