"""perf_analyzer against a running server: every mode in which it calls a model on a CPU.

The program comes with tritonclient 2.41.0, one of the last wheels that carry it; two libraries that it wants are taken
from the wheel of nvidia-pytriton. It measures with short windows here: the runs show that it works, not how fast the
server is.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.environments import files_of_wheel
from tests.support.repositories import write_model
from tests.support.server import ServerProcess, serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FROM_EXAMPLES = {
    "add_sub": ("add_sub",),
    "identity": ("identity",),
    "string_upper": ("string_upper",),
    "sequence": ("accumulate", "accumulate_oldest"),
    "decoupled": ("square",),
    "ensemble": ("difference_of_squares", "multiply", "sum_and_difference"),
    "dynamic_batching": ("batch_size",),
}
SETTINGS = ("--measurement-interval", "500", "--max-trials", "4", "--stability-percentage", "999")
TIMEOUT_S = 120

GRPC = ("-i", "grpc")
JSON = ("--input-tensor-format", "json", "--output-tensor-format", "json")


@dataclass(frozen=True)
class Run:
    """One call of the program.

    Attributes:
        title: what it shows.
        model: the model.
        options: of the program.
    """

    title: str
    model: str
    options: tuple[str, ...] = ()


RUNS = (
    Run("HTTP, binary tensors", "add_sub"),
    Run("HTTP, 8 at once, asynchronous", "add_sub", ("-a", "--concurrency-range", "8:8")),
    Run("HTTP, JSON", "one", JSON),
    Run("HTTP, BYTES", "string_upper", ("--shape", "TEXT:16")),
    Run("HTTP, BYTES as JSON", "string_upper", ("--shape", "TEXT:1", *JSON)),
    Run("HTTP, 100 requests a second", "add_sub", ("--request-rate-range", "100:100")),
    Run("HTTP, dynamic batching", "batch_size", ("-a", "--concurrency-range", "8:8")),
    Run("HTTP, batches of 4", "identity", ("-b", "4", "--shape", "INPUT0:16")),
    Run("HTTP, ensemble", "difference_of_squares"),
    Run("HTTP, sequences", "accumulate", ("-a", "--concurrency-range", "2:2")),
    Run("HTTP, system shared memory", "add_sub", ("--shared-memory", "system")),
    Run("gRPC", "add_sub", GRPC),
    Run("gRPC, 8 at once, asynchronous", "add_sub", (*GRPC, "-a", "--concurrency-range", "8:8")),
    Run("gRPC, BYTES", "string_upper", (*GRPC, "--shape", "TEXT:16")),
    Run("gRPC, compressed with gzip", "add_sub", (*GRPC, "--grpc-compression-algorithm", "gzip")),
    Run("gRPC, stream", "add_sub", (*GRPC, "--streaming")),
    Run("gRPC, stream of a decoupled model", "square", (*GRPC, "--streaming", "--input-data", "square.json")),
    Run("gRPC, sequences on a stream, direct", "accumulate", (*GRPC, "--streaming", "--concurrency-range", "2:2")),
    Run(
        "gRPC, sequences on a stream, oldest",
        "accumulate_oldest",
        (*GRPC, "--streaming", "--request-rate-range", "50:50", "--num-of-sequences", "3"),
    ),
    Run("gRPC, system shared memory", "add_sub", (*GRPC, "--shared-memory", "system")),
)

ONE = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
ONE_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""

_FIGURES = {
    "requests": r"Request count: (\d+)",
    "throughput": r"Throughput: ([\d.]+) infer/sec",
    "latency": r"Avg latency: (\d+) usec",
    "server": r"Avg request latency: (\d+) usec",
    "queue": r"queue (\d+) usec",
    "compute": r"compute infer (\d+) usec",
}


@dataclass(frozen=True)
class Result:
    """What one run brought: the figures that it printed, or the last line of its failure."""

    run: Run
    passed: bool
    figures: dict[str, str]
    last_line: str


class PerfAnalyzer:
    """The program, ready to run; ``folder`` receives its input files."""

    def __init__(self, folder: Path) -> None:
        binaries = files_of_wheel("tritonclient==2.41.0", "bin/perf_analyzer")
        libraries = files_of_wheel("nvidia-pytriton==0.7.0", ".libs/libcudart", ".libs/libb64")
        links = folder / "libraries"
        links.mkdir()
        for name, pattern in (("libcudart.so.12", "libcudart-*"), ("libb64.so.0d", "libb64-*")):
            (links / name).symlink_to(next(libraries.rglob(pattern)))
        self.program = next(binaries.rglob("perf_analyzer"))
        self.program.chmod(0o755)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(links)}
        self._folder = folder
        (folder / "square.json").write_text(json.dumps({"data": [{"NUMBER": [3]}]}))

    def run(self, run: Run, server: ServerProcess) -> Result:
        url = server.grpc_url if "grpc" in run.options else server.url
        done = subprocess.run(
            [self.program, "-m", run.model, "-u", url, *SETTINGS, *run.options],
            cwd=self._folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        found = {name: re.search(pattern, done.stdout) for name, pattern in _FIGURES.items()}
        figures = {name: match[1] for name, match in found.items() if match}
        lines = (done.stdout + done.stderr).strip().splitlines()
        return Result(run, done.returncode == 0 and "throughput" in figures, figures, lines[-1] if lines else "")


def write_models(repository: Path) -> None:
    """The models of the runs: those of the examples, and one with a tensor of one element."""
    repository.mkdir()
    for example, models in FROM_EXAMPLES.items():
        for model in models:
            (repository / model).symlink_to(EXAMPLES / example / "model_repository" / model)
    write_model(repository, "one", ONE, ONE_CONFIG)


def table(results: Sequence[Result]) -> str:
    lines = [
        "| Run | Requests | infer/s | Latency us | Server us | of it queue | compute |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        names = ("requests", "throughput", "latency", "server", "queue", "compute")
        cells = [result.figures.get(name, "-") for name in names] if result.passed else [f"FAILED: {result.last_line}"]
        lines.append(f"| {' | '.join([result.run.title, *cells])} |")
    return "\n".join(lines)


def _flags() -> tuple[str, ...]:
    """The switch for memory of clients; without it, the runs that share memory are refused."""
    known = subprocess.check_output([sys.executable, "-m", "pybackend", "serve", "--help"], text=True)
    return ("--allow-client-shm=true",) if "--allow-client-shm" in known else ()


def main(folder: Path) -> bool:
    """All runs; prints a table and returns whether each of them ended well."""
    write_models(folder / "models")
    program = PerfAnalyzer(folder)
    with serving(folder / "models", flags=_flags()) as server:
        results = [program.run(run, server) for run in RUNS]
    print(table(results))
    return all(result.passed for result in results)
