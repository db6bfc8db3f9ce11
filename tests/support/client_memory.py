"""Shared memory of a client, and HTTP requests whose tensors lie in it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from tests.support.server import Reply, ServerProcess

FLAG = "--allow-client-shm=true"


class ClientRegion:
    """A shared memory object, and the region of the same name that it is registered as."""

    def __init__(self, nbytes: int, name: str = "") -> None:
        self.name = name or f"pybackend_test_{secrets.token_hex(6)}"
        self.key = f"/{self.name}"
        self.nbytes = nbytes
        self._memory = SharedMemory(self.name, create=True, size=nbytes)
        resource_tracker.unregister(
            self.key, "shared_memory"
        )  # its own process would complain about tests that replace it

    @property
    def path(self) -> str:
        """Where Linux keeps it."""
        return f"/dev/shm{self.key}"

    def array(self, dtype: Any = np.float32, offset: int = 0, count: int = -1) -> np.ndarray:
        """A writable view of its elements."""
        return np.frombuffer(self._memory.buf, dtype, count, offset)

    def close(self) -> None:
        """Let go of it, and of its name if it still has one."""
        resource_tracker.register(self.key, "shared_memory")
        try:
            self._memory.unlink()
        except FileNotFoundError:
            resource_tracker.unregister(self.key, "shared_memory")
        with suppress(BufferError):  # a test still has an array
            self._memory.close()

    # Over HTTP

    def register(self, server: ServerProcess, **members: Any) -> Reply:
        """Register all of it, or what ``members`` of the document say."""
        body = {"key": self.key, "byte_size": self.nbytes, **members}
        return server.request("POST", f"/v2/systemsharedmemory/region/{self.name}/register", body)

    def unregister(self, server: ServerProcess) -> Reply:
        return server.request("POST", f"/v2/systemsharedmemory/region/{self.name}/unregister")

    def part(self, nbytes: int | None = None, offset: int = 0) -> dict[str, Any]:
        """The parameters of a tensor that lies in it."""
        parameters: dict[str, Any] = {
            "shared_memory_region": self.name,
            "shared_memory_byte_size": self.nbytes if nbytes is None else nbytes,
        }
        return {**parameters, "shared_memory_offset": offset} if offset else parameters


@contextmanager
def client_region(server: ServerProcess | None, nbytes: int) -> Iterator[ClientRegion]:
    region = ClientRegion(nbytes)
    try:
        if server is not None:
            reply = region.register(server)
            assert reply.status == 200, reply
        yield region
        if server is not None:
            assert region.unregister(server).status == 200
    finally:
        region.close()


def document(
    shape: list[int], source: dict[str, Any], target: dict[str, Any] | None, *, datatype: str = "FP32", **members: Any
) -> dict[str, Any]:
    """A request to a model with an input IN and an output OUT.

    Args:
        shape: of the input.
        source: parameters of the input.
        target: parameters of the output; None asks for it as JSON.
        datatype: of the input.
        members: further members of the document.
    """
    outputs = [{"name": "OUT", "parameters": target or {}}]
    inputs = [{"name": "IN", "datatype": datatype, "shape": shape, "parameters": source}]
    return {"inputs": inputs, "outputs": outputs, **members}
