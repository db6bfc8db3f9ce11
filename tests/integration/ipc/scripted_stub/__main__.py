"""A process that speaks for a stub: all it says, true or not, is in the functions of the "model" file it is told to load.

``hello``, ``load``, ``initialize``, ``execute`` and ``finalize`` may be there, each called with this object and the
message's parts; where one is missing, what an honest stub would say is said.
"""

import array
import json
import mmap
import os
import socket
import struct
import sys

HELLO, COMPLETED, INITIALIZED, FAILED, RESULT, FREE_INPUT, NEED_OUTPUT, LOG, FINALIZED, DETACHED = range(33, 43)
LOAD, INITIALIZE, ATTACH, DETACH, EXECUTE, FREE_OUTPUT, FINALIZE, NO_OUTPUT = range(1, 9)
INPUT, OUTPUT, PROGRESS = 1, 2, 3


class ScriptedStub:
    """The socket, and the segments that the host has attached."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.data, self.descriptors, self.messages = b"", [], []
        self.segments = {}
        self.roles = {}
        self.executions = 0
        self.script = {}

    def send(self, *messages, tail=b""):
        metadata = json.dumps(messages).encode()
        self.socket.sendall(struct.pack("<II", len(metadata), len(tail)) + metadata + tail)

    def receive(self):
        """The next message; segments are attached on the way."""
        while not self.messages:
            self.messages = self.frame()
        message = self.messages.pop(0)
        if message[0] == ATTACH:
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
        """The number of a segment with this role."""
        return next(number for number, found in self.roles.items() if found == role)

    def output_segment(self, nbytes=1 << 20):
        """Ask for output memory and return the segment's number."""
        self.send((NEED_OUTPUT, nbytes))
        while True:
            message = self.receive()
            if message[0] == ATTACH and message[3] == OUTPUT:
                return message[1]
            assert message[0] != NO_OUTPUT

    def result(self, *outputs, tail=b"", times=(1, 1, 1, 1)):
        """Answer one request with these places."""
        self.send((RESULT, *times, [[None, outputs, None]]), tail=tail)

    def progress(self, executions):
        """Say how many executions have begun."""
        self.segments[self.segment(PROGRESS)][:8] = struct.pack("<Q", executions)

    def run(self):
        path = os.environ.get("SCRIPT")
        if path:
            self.read_script(path)
        self.act("hello", lambda: self.send((HELLO, 1, os.getpid(), "3.11.0", "1.26.0", ["json"])))
        while True:
            message = self.receive()
            if message[0] == LOAD:
                self.read_script(message[2])
                self.act("load", lambda: self.send((COMPLETED, None)), message)
            elif message[0] == INITIALIZE:
                self.act("initialize", lambda: self.send((INITIALIZED,)), message)
            elif message[0] == EXECUTE:
                self.executions += 1
                self.progress(self.executions)
                self.act("execute", self.result, message[1])
            elif message[0] == FINALIZE:
                self.act("finalize", lambda: self.send((FINALIZED,)))
                return
            elif message[0] == DETACH:
                self.act("detach", lambda: None, message[1])
            elif message[0] == FREE_OUTPUT:
                self.act("free_output", lambda: None, message[1])

    def read_script(self, path):
        with open(path) as file:
            self.script = {**globals(), "stub": self}
            exec(compile(file.read(), path, "exec"), self.script)

    def act(self, name, otherwise, *arguments):
        action = self.script.get(name)
        if action is None:
            otherwise()
        else:
            action(*arguments)


ScriptedStub(int(sys.argv[1])).run()
