"""A client of the Debug Adapter Protocol: what an editor does to stop in a model's code, as far as tests need it."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.server import ServerProcess

DEADLINE_S = 30


class DebugClient:
    """A connection to debugpy. Messages are read where they are waited for; what came meanwhile is kept."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._stream = self._socket.makefile("rb")
        self._sent = 0
        self._responses: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Go away without a word, as an editor does that is closed."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What an editor does

    def attach(self, breakpoints: Mapping[Path, Sequence[int]], **arguments: object) -> None:
        """Attach with breakpoints set by file and line; whoever waits for a client goes on afterwards."""
        self.request("initialize", clientID="test", adapterID="debugpy", linesStartAt1=True, pathFormat="path")
        attached = self.send("attach", justMyCode=True, **arguments)
        self.wait_event("initialized")
        for path, lines in breakpoints.items():
            self.set_breakpoints(path, lines)
        self.request("configurationDone")
        self.wait_response(attached)

    def set_breakpoints(self, path: Path, lines: Sequence[int]) -> None:
        """Set the breakpoints of a file; fails unless all are accepted."""
        body = self.request(
            "setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": line} for line in lines]
        )
        assert [point["verified"] for point in body["breakpoints"]] == [True] * len(lines), body

    def wait_stopped(self) -> Mapping[str, Any]:
        """Wait until a thread stops; returns its innermost frame, with ``thread`` and ``reason`` added."""
        stopped = self.wait_event("stopped")
        frames = self.request("stackTrace", threadId=stopped["threadId"])["stackFrames"]
        return {**frames[0], "thread": stopped["threadId"], "reason": stopped["reason"], "depth": len(frames)}

    def evaluate(self, frame: Mapping[str, Any], expression: str) -> str:
        """What an expression is worth in a frame, as text."""
        return str(self.request("evaluate", expression=expression, frameId=frame["id"], context="repl")["result"])

    def resume(self, frame: Mapping[str, Any], command: str = "continue") -> None:
        """Let a stopped thread run on: ``continue``, ``next``, ``stepOut``."""
        self.request(command, threadId=frame["thread"])

    def detach(self) -> None:
        """End the session; what is stopped runs on."""
        self.request("disconnect", terminateDebuggee=False)
        self.close()

    # Messages

    def request(self, command: str, **arguments: object) -> dict[str, Any]:
        """Send a request and return the body of its response; fails if it is refused."""
        return self.wait_response(self.send(command, **arguments))

    def send(self, command: str, **arguments: object) -> int:
        """Send a request; returns its number."""
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        content = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        return self._sent

    def wait_response(self, number: int) -> dict[str, Any]:
        while number not in self._responses:
            self._receive()
        response = self._responses.pop(number)
        assert response["success"], response
        return response.get("body") or {}

    def wait_event(self, name: str) -> dict[str, Any]:
        while True:
            for event in self._events:
                if event["event"] == name:
                    self._events.remove(event)
                    return event.get("body") or {}
            self._receive()

    def _receive(self) -> None:
        size = 0
        while line := self._stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        assert size, "the debugger has closed the connection"
        message = json.loads(self._stream.read(size))
        if message["type"] == "response":
            self._responses[message["request_seq"]] = message
        elif message["type"] == "event":
            self._events.append(message)


def attach(server: ServerProcess, instance: str, path: Path, *texts: str) -> DebugClient:
    """Attach to an instance as soon as it listens, with breakpoints at the lines of a file that have these texts."""
    port = debugger_port(server, instance)
    server.wait_for(rf" {instance}/debugger\.py:\d+\] .*127\.0\.0\.1:{port}")
    client = DebugClient(port)
    client.attach({path: [line_of(path, text) for text in texts]})
    return client


def debugger_port(server: ServerProcess, instance: str) -> int:
    """Where an instance listens to debuggers, as the server has said."""
    return int(server.wait_for(rf"attach to .*127\.0\.0\.1:(\d+) \({instance}\)")[1])


def line_of(path: Path, text: str) -> int:
    (number,) = [number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return number
