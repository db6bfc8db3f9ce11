"""Model Analyzer in its remote mode against a running server, and in its local mode, in which it starts the command
``tritonserver``: it loads a model in several configurations and measures each.

Its own perf_analyzer is an empty package, so it is given the program of :mod:`tests.peers.perf_analyzer`. It asks for
instances on GPUs, which ``--gpu-models=cpu`` runs on the CPU.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.peers.environments import environment
from tests.peers.perf_analyzer import EXAMPLES, PerfAnalyzer
from tests.support.server import ServerProcess, serving

MODEL = "batch_size"
MOST_INSTANCES, LARGEST_BATCH = 2, 2
CONFIGURATIONS = 5
"""The model's own, and one of each number of instances and each batch size."""
FLAGS = ("--model-control-mode=explicit", "--gpu-models=cpu")
TIMEOUT_S = 900


class ModelAnalyzer:
    """The program, and a repository with the model that it measures."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "models"
        shutil.copytree(EXAMPLES / "dynamic_batching" / "model_repository", self.repository)
        self._folder = folder
        self._perf_analyzer = PerfAnalyzer(folder)
        self._program = environment("model_analyzer", "triton-model-analyzer==1.58.0") / "model-analyzer"

    def remote(self, server: ServerProcess, protocol: str) -> str:
        """Why a run against a server in explicit mode did not measure all configurations; empty if it did."""
        return self._profile(
            f"remote-{protocol}",
            *("--triton-launch-mode", "remote", "--client-protocol", protocol),
            *("--triton-http-endpoint", server.url, "--triton-grpc-endpoint", server.grpc_url),
            *("--triton-metrics-url", f"http://127.0.0.1:{server.metrics_port}/metrics"),
        )

    def local(self) -> str:
        """Likewise of a run with servers that it starts."""
        return self._profile(
            "local",
            *("--triton-launch-mode", "local", "--triton-server-path", Path(sys.executable).with_name("tritonserver")),
            *(
                "--triton-http-endpoint",
                f"127.0.0.1:{_free_port()}",
                "--triton-grpc-endpoint",
                f"127.0.0.1:{_free_port()}",
            ),
            *("--triton-metrics-url", f"http://127.0.0.1:{_free_port()}/metrics"),
        )

    def _profile(self, name: str, *launch: str | Path) -> str:
        work = self._folder / name
        command: list[str | Path] = [self._program, "profile", *launch]
        command += ["--model-repository", self.repository, "--profile-models", MODEL, "--concurrency", "1,4"]
        command += ["--run-config-search-mode", "brute", "--run-config-search-max-instance-count", str(MOST_INSTANCES)]
        command += ["--run-config-search-max-model-batch-size", str(LARGEST_BATCH)]
        command += ["--output-model-repository-path", work / "models", "--export-path", work / "results"]
        command += ["--checkpoint-directory", work / "checkpoints", "--skip-detailed-reports", "--skip-summary-reports"]
        command += ["--perf-analyzer-path", self._perf_analyzer.program]
        work.mkdir()
        done = subprocess.run(
            command,
            cwd=work,
            env={**self._perf_analyzer.environment, "PYBACKEND_GPU_MODELS": "cpu"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        said = done.stdout + done.stderr
        found = re.search(r"Profiled (\d+) configurations", said)
        count = int(found[1]) if found else 0
        print(f"{name}: {count} configurations measured")
        return said[-4000:] if done.returncode != 0 or count < CONFIGURATIONS or "load failed" in said else ""


def main(folder: Path) -> bool:
    """One run over each protocol, and one with servers of its own; returns whether every configuration was loaded and
    measured."""
    analyzer = ModelAnalyzer(folder)
    with serving(analyzer.repository, flags=FLAGS) as server:
        faults = [analyzer.remote(server, protocol) for protocol in ("http", "grpc")]
    faults.append(analyzer.local())
    print(*filter(None, faults), sep="\n", end="")
    return not any(faults)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
