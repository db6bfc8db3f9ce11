"""A server inside programs that are not ours: workers of gunicorn, the kernel of Jupyter. `make test-hosts` installs
both."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gates import wait_until
from tests.support.server import DEADLINE_S, free_of_processes

pytestmark = [pytest.mark.thorough, pytest.mark.spec("srv-P14")]

ADD_SUB = Path(__file__).parents[2] / "examples/add_sub/model_repository"

_APPLICATION = """
import os
from contextlib import asynccontextmanager

import numpy as np
import pybackend
from fastapi import FastAPI

server = pybackend.Server(model_repository={repository!r})


@asynccontextmanager
async def lifespan(app):
    async with server:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/sum")
async def sum():
    array = np.ones(4, np.float32)
    response = await server.model("add_sub").async_infer(inputs={{"INPUT0": array, "INPUT1": array}})
    return {{"pid": os.getpid(), "sum": np.asarray(response.outputs["OUTPUT0"]).tolist()}}


app.mount("/v2", server.asgi())
"""


def _read(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as reply:
            return json.load(reply)
    except (urllib.error.URLError, ConnectionError):
        return None


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@pytest.mark.parametrize("preload", [[], ["--preload"]])
def test_each_worker_of_gunicorn_has_a_server(tmp_path: Path, preload: list[str]) -> None:
    pytest.importorskip("gunicorn", reason="not installed: make test-hosts installs it")
    pytest.importorskip("uvicorn_worker", reason="not installed: make test-hosts installs it")
    (tmp_path / "application.py").write_text(_APPLICATION.format(repository=str(ADD_SUB)))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "-w", "2", "-k", "uvicorn_worker.UvicornWorker", *preload]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, "-b", f"127.0.0.1:{port}", "application:app"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
    ) as gunicorn:
        try:
            url = f"http://127.0.0.1:{port}"
            seen: set[int] = set()

            def ask() -> bool:
                answer = _read(f"{url}/sum")
                if answer is not None:
                    assert answer["sum"] == [2, 2, 2, 2]
                    seen.add(answer["pid"])
                return len(seen) == 2

            wait_until(ask, "not every worker answers")
            assert _read(f"{url}/v2/models/add_sub")["name"] == "add_sub"
            processes = [child for worker in seen for child in _children(worker)]
            assert len(processes) >= 4
        finally:
            gunicorn.send_signal(signal.SIGTERM)
            assert gunicorn.wait(DEADLINE_S) == 0
    assert free_of_processes([*seen, *processes])


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    manager = pytest.importorskip("jupyter_client.manager", reason="not installed: make test-hosts installs it")
    pytest.importorskip("ipykernel", reason="not installed: make test-hosts installs it")
    monkeypatch.setenv("HOME", str(tmp_path))
    kernel = Kernel(*manager.start_new_kernel(kernel_name="python3"))
    try:
        yield kernel
    finally:
        kernel.end()


class Kernel:
    """A kernel of Jupyter."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self._client = client
        self._has_ended = False

    def end(self) -> None:
        """Shut it down, once."""
        if not self._has_ended:
            self._has_ended = True
            self._client.stop_channels()
            self.manager.shutdown_kernel()

    def run(self, code: str) -> str:
        """What a cell shows."""
        texts: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            texts.append(content.get("data", {}).get("text/plain", "") or content.get("evalue", ""))

        reply = self._client.execute_interactive(textwrap.dedent(code), timeout=DEADLINE_S, output_hook=hear)
        assert reply["content"]["status"] == "ok", texts
        return "".join(texts)

    def children(self) -> list[int]:
        """The processes that its process has started."""
        found: list[int] = json.loads(
            self.run(
                """
                from pathlib import Path
                [int(pid) for task in Path('/proc/self/task').iterdir() for pid in (task / 'children').read_text().split()]
                """
            )
        )
        return found


def test_a_kernel_of_jupyter_runs_a_server_in_its_loop(kernel: Kernel) -> None:
    kernel.run(
        f"""
        import numpy as np, pybackend
        server = pybackend.Server(model_repository={str(ADD_SUB)!r})
        server.start()
        array = np.ones(4, np.float32)
        inputs = {{"INPUT0": array, "INPUT1": array}}
        """
    )
    assert "2., 2." in kernel.run(
        "np.asarray((await server.model('add_sub').async_infer(inputs=inputs)).outputs['OUTPUT0'])"
    )
    assert "0., 0." in kernel.run("np.asarray(server.model('add_sub').infer(inputs=inputs).outputs['OUTPUT1'])")
    processes = kernel.children()
    assert processes
    kernel.end()
    assert free_of_processes(processes)


@pytest.mark.spec("srv-P15")
def test_a_kernel_of_jupyter_binds_its_functions(kernel: Kernel) -> None:
    kernel.run(
        """
        import numpy as np
        from pybackend_bind import ModelConfig, Tensor, Triton, TritonConfig, batch
        from pybackend_bind.client import ModelClient

        factor = np.float32(2)

        @batch
        def scale(x):
            return {"y": x * factor}

        triton = Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1"))
        tensors = [Tensor(name=name, dtype=np.float32, shape=(-1,)) for name in "xy"]
        triton.bind("scale", scale, tensors[:1], tensors[1:])
        triton.run()
        client = ModelClient(triton.addresses["http"], "scale")
        """
    )
    asked = "client.infer_sample(np.ones(1, np.float32))['y'].tolist()"
    assert kernel.run(asked) == "[2.0]"
    kernel.run("factor = np.float32(3)")  # in another cell: the function lives in the kernel
    assert kernel.run(asked) == "[3.0]"
    kernel.manager.interrupt_kernel()
    assert kernel.run(asked) == "[3.0]"
    processes = kernel.children()
    assert processes
    kernel.end()
    assert free_of_processes(processes)
