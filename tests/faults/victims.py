"""Models that do to themselves, or to their host, what a request asks them to."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tests.support.gates import GATE
from tests.support.repositories import write_model
from tests.support.server import Reply, ServerProcess

CONFIG = """
backend: "python"
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

VICTIM = (
    GATE
    + """
import ctypes, json, threading

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        with open(os.path.join(self.directory, "starts"), "a") as starts:
            starts.write("%d %r\\n" % (os.getpid(), time.monotonic()))
        if os.path.exists(os.path.join(self.directory, "broken")):
            raise ValueError("the weights are missing")
        if os.path.exists(os.path.join(self.directory, "gated")):
            pass_gate(self.directory, "initialize")

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy().item().decode()) for request in requests]

    def answer(self, command):
        name, _, argument = command.partition(" ")
        result = getattr(self, name)(argument)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(result)], dtype=object))])

    def echo(self, text):
        mark(self.directory, "echoes")
        return text

    def pid(self, _):
        return os.getpid()

    def gate(self, name):
        pass_gate(self.directory, name)
        return name

    def exit(self, status):
        os._exit(int(status))

    def segv(self, _):
        ctypes.string_at(0)

    def abort(self, _):
        os.abort()

    def end_thread(self, _):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()  # which keeps the process
        ctypes.CDLL(None).pthread_exit(None)
"""
)
"""Commands: ``echo TEXT``, ``pid``, ``gate NAME``, ``exit STATUS``, ``segv``, ``abort``.

``initialize`` notes process and time in ``starts``; it fails while there is a file ``broken``, and waits at the gate
``initialize`` if there is a file ``gated``.
"""


def write_victim(repository: Path, name: str, extra: str = "", code: str = VICTIM) -> Path:
    return write_model(repository, name, code, CONFIG + extra)


def starts(directory: Path) -> list[tuple[int, float]]:
    """Process id and time of every start of a victim, in order; the clock is ``time.monotonic``."""
    lines = (directory / "starts").read_text().splitlines()
    return [(int(pid), float(when)) for pid, when in map(str.split, lines)]


def command(text: str) -> dict[str, object]:
    return {"inputs": [{"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [text]}]}


def ask(server: ServerProcess, model: str, text: str) -> Reply:
    """Send a command and wait for the reply, whatever it is."""
    return server.infer(model, command(text))


def told(server: ServerProcess, model: str, text: str) -> str:
    """Send a command that is obeyed; returns the result."""
    reply = ask(server, model, text)
    assert reply.status == 200, reply
    return reply.json["outputs"][0]["data"][0]


class Asker:
    """Requests in threads, for as long as a ``with`` block lasts."""

    def __init__(self, server: ServerProcess, threads: int = 16) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ask(self, model: str, text: str) -> Future[Reply]:
        return self.call(ask, self._server, model, text)

    def call(self, deed: Callable[..., Reply], *arguments: object, **options: object) -> Future[Reply]:
        """Have something done that ends with a reply; the future is that."""
        return self._pool.submit(deed, *arguments, **options)
