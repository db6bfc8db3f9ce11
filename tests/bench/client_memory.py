"""Tensors in shared memory of the client, there and back, beside the same tensors in bodies.

All servers register the same shared memory object and take turns, so what one has written the next one overwrites.
"""

import http.client
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np

from tests.bench import bodies, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import MB, Plan
from tests.bench.turns import LoadSample, Step, take_turns

FEWEST_BYTES = 16 * MB
"""Smaller tensors spend their time on other things than copying."""

SMALL_BYTES = 64 * 1024
"""The yardstick of a tensor of which a single element is read."""

_FLAG = "--allow-client-shm=true"
_TIMEOUT_S = 30


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Drive identity with tensors in bodies and in shared memory, and have single elements of tensors read."""
    repository = scratch / "models"
    repositories.write_client_memory(repository)
    sizes = [size for size in plan.tensor_bytes if size >= FEWEST_BYTES]
    load = Load(1, plan.duration_s, plan.warm_up_s, plan.large_requests)
    allowing = [
        servers.pybackend_launcher(options=(_FLAG,)) if launcher.name == servers.PYBACKEND else launcher
        for launcher in launchers
    ]
    samples: list[LoadSample] = []
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in allowing]
        for size in sizes:
            with _shared(running, 2 * size) as (region, array):
                array[: size // 4] = np.arange(size // 4, dtype=np.float32)
                workloads = [bodies.identity_body(size)]
                workloads += (bodies.identity_shared(size, region, view=view) for view in (False, True))
                if size == sizes[-1]:
                    workloads += (bodies.first_element(length, region) for length in (SMALL_BYTES, size))
                for workload in workloads:
                    for server in running:
                        _check(server, workload, array, size)
                steps = [Step(workload, load, plan.rounds) for workload in workloads]
                samples += take_turns(running, steps, scratch)
                del array
    return samples


def _check(server: servers.RunningServer, workload: bodies.Workload, array: bodies.Array, size: int) -> None:
    """See that a server answers, and leaves the tensor where the client wants it."""
    array[size // 4 :] = 0
    bodies.check(server.port, workload)
    is_shared = workload.name in {bodies.shared_name(size, view=view) for view in (False, True)}
    if is_shared and not np.array_equal(array[: size // 4], array[size // 4 :]):
        raise bodies.WrongReplyError(f"{workload.name}: {server.name} has not written its output to shared memory")


@contextmanager
def _shared(running: Sequence[servers.RunningServer], nbytes: int) -> Iterator[tuple[str, bodies.Array]]:
    """A shared memory object that every server has registered; gives the region's name and the object as an array."""
    name = f"bench_{os.getpid()}"
    memory = SharedMemory(name, create=True, size=nbytes)
    try:
        for server in running:
            _post(server, f"/v2/systemsharedmemory/region/{name}/register", {"key": f"/{name}", "byte_size": nbytes})
        yield name, np.frombuffer(memory.buf, np.float32)
        for server in running:
            _post(server, f"/v2/systemsharedmemory/region/{name}/unregister", {})
    finally:
        memory.unlink()


def _post(server: servers.RunningServer, path: str, document: dict[str, object]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(document))
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != http.client.OK:
        raise bodies.WrongReplyError(f"{server.name}: {path}: status {reply.status}: {body!r}")
