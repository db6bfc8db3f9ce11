"""Model Analyzer in its remote mode against a running server: it loads a model in several configurations and measures each.

Its own perf_analyzer is an empty package, so it is given the program of :mod:`tests.peers.perf_analyzer`. It asks for instances
on GPUs, which ``--gpu-models=cpu`` runs on the CPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.peers.environments import environment
from tests.peers.perf_analyzer import EXAMPLES, PerfAnalyzer
from tests.support.server import ServerProcess, serving

MODEL = "batch_size"
MOST_INSTANCES, LARGEST_BATCH = 2, 2
CONFIGURATIONS = 5
"""The model's own, and one of each number of instances and each batch size."""
TIMEOUT_S = 900


def main(folder: Path) -> bool:
    """One run over each protocol; returns whether every configuration was loaded and measured."""
    repository = folder / "models"
    shutil.copytree(EXAMPLES / "dynamic_batching" / "model_repository", repository)
    perf_analyzer = PerfAnalyzer(folder)
    program = environment("model_analyzer", "triton-model-analyzer==1.58.0") / "model-analyzer"
    with serving(repository, flags=("--model-control-mode=explicit", "--gpu-models=cpu")) as server:
        results = [_profiles(program, perf_analyzer, server, protocol, folder) for protocol in ("http", "grpc")]
    return all(results)


def _profiles(program: Path, perf_analyzer: PerfAnalyzer, server: ServerProcess, protocol: str, folder: Path) -> bool:
    """One run; prints what it did and returns whether it measured all configurations."""
    work = folder / protocol
    command: list[str | Path] = [program, "profile", "--triton-launch-mode", "remote", "--client-protocol", protocol]
    command += ["--triton-http-endpoint", server.url, "--triton-grpc-endpoint", server.grpc_url]
    command += ["--triton-metrics-url", f"http://127.0.0.1:{server.metrics_port}/metrics"]
    command += ["--model-repository", folder / "models", "--profile-models", MODEL, "--concurrency", "1,4"]
    command += ["--run-config-search-mode", "brute", "--run-config-search-max-instance-count", str(MOST_INSTANCES)]
    command += ["--run-config-search-max-model-batch-size", str(LARGEST_BATCH)]
    command += ["--output-model-repository-path", work / "models", "--export-path", work / "results"]
    command += ["--checkpoint-directory", work / "checkpoints", "--skip-detailed-reports", "--skip-summary-reports"]
    command += ["--perf-analyzer-path", perf_analyzer.program]
    work.mkdir()
    done = subprocess.run(
        command,
        cwd=work,
        env=perf_analyzer.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    found = re.search(r"Profiled (\d+) configurations", said)
    count = int(found[1]) if found else 0
    print(f"{protocol}: {count} configurations measured")
    if done.returncode != 0 or count < CONFIGURATIONS or "load failed" in said:
        print(said[-4000:])
        return False
    return True
