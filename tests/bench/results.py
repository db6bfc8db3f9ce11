"""Everything one run of the benchmark measured, and the machine it ran on; kept as JSON beside the printed tables."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.bench import bodies
from tests.bench.call_memory import CallMemorySample
from tests.bench.console_cost import ConsoleSamples
from tests.bench.footprint import FootprintSample
from tests.bench.framework_memory import InstanceMemory
from tests.bench.frameworks import FrameworkSample
from tests.bench.grpc_load import IdleSample
from tests.bench.http2_cost import Http2Sample
from tests.bench.in_process_cost import InProcessSample
from tests.bench.instances import InstanceSample
from tests.bench.large_tensors import GrowthSample
from tests.bench.loadgen import LoadResult
from tests.bench.openai_streams import OpenAiSample
from tests.bench.operations import ManyModelsSample, ScrapeSample
from tests.bench.packing import EnvironmentLoadSample, PackSample
from tests.bench.plan import Plan
from tests.bench.queue_cost import QueueSample
from tests.bench.startup import StartSample
from tests.bench.turns import LoadSample

_DISTRIBUTIONS = ("pybackend", "uvicorn", "uvloop", "httptools", "fastapi", "msgspec", "numpy")


@dataclass
class Results:
    """All samples of one run, in the order in which they were taken."""

    plan: Plan
    machine: dict[str, str]
    ladder: list[LoadSample] = field(default_factory=list)
    noisy: list[LoadSample] = field(default_factory=list)
    batched: list[LoadSample] = field(default_factory=list)
    large: list[LoadSample] = field(default_factory=list)
    client_memory: list[LoadSample] = field(default_factory=list)
    growth: list[GrowthSample] = field(default_factory=list)
    calls: list[LoadSample] = field(default_factory=list)
    ensemble: list[LoadSample] = field(default_factory=list)
    chain: list[LoadSample] = field(default_factory=list)
    stream: list[LoadSample] = field(default_factory=list)
    strings: list[LoadSample] = field(default_factory=list)
    varied: list[LoadSample] = field(default_factory=list)
    front_ends: list[LoadSample] = field(default_factory=list)
    grpc: list[LoadSample] = field(default_factory=list)
    grpc_large: list[LoadSample] = field(default_factory=list)
    grpc_stream: list[LoadSample] = field(default_factory=list)
    grpc_idle: list[IdleSample] = field(default_factory=list)
    queues: list[QueueSample] = field(default_factory=list)
    http2: list[Http2Sample] = field(default_factory=list)
    in_process: list[InProcessSample] = field(default_factory=list)
    bound: list[LoadSample] = field(default_factory=list)
    openai: list[OpenAiSample] = field(default_factory=list)
    call_memory: list[CallMemorySample] = field(default_factory=list)
    starts: list[StartSample] = field(default_factory=list)
    instances: list[InstanceSample] = field(default_factory=list)
    packs: list[PackSample] = field(default_factory=list)
    environment_loads: list[EnvironmentLoadSample] = field(default_factory=list)
    sandbox: list[LoadSample] = field(default_factory=list)
    footprints: list[FootprintSample] = field(default_factory=list)
    frameworks: list[FrameworkSample] = field(default_factory=list)
    framework_memory: list[InstanceMemory] = field(default_factory=list)
    model_servers: list[LoadSample] = field(default_factory=list)
    operations: list[LoadSample] = field(default_factory=list)
    scrapes: list[ScrapeSample] = field(default_factory=list)
    many_models: list[ManyModelsSample] = field(default_factory=list)
    console: ConsoleSamples = field(default_factory=ConsoleSamples)

    def save(self, path: Path) -> None:
        """Write all samples as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def loads(self, server: str, workload: str, connections: int) -> dict[int, LoadResult]:
        """The windows of one server under one load, by round."""
        samples = (
            *self.ladder,
            *self.noisy,
            *self.batched,
            *self.large,
            *self.calls,
            *self.ensemble,
            *self.chain,
            *self.console.loads,
        )
        return {
            sample.round: sample.result
            for sample in (*samples, *self.client_memory, *self.stream, *self.strings, *self.sandbox, *self.operations)
            if (sample.server, sample.workload, sample.connections) == (server, workload, connections)
        }

    def grpc_loads(self, server: str, workload: str, connections: int) -> dict[int, LoadResult]:
        """The same among those that were taken for gRPC, HTTP's beside them included."""
        return {
            sample.round: sample.result
            for sample in (*self.grpc, *self.grpc_large, *self.grpc_stream)
            if (sample.server, sample.workload, sample.connections) == (server, workload, connections)
        }

    def added(
        self, server: str, workload: str, value: Callable[[LoadResult], float], *, over: str = bodies.DIRECT
    ) -> dict[int, float]:
        """What a server takes for a request beyond what it takes for a simpler one, by round."""
        simple = self.loads(server, over, 1)
        whole = self.loads(server, workload, 1)
        return {round_: value(whole[round_]) - value(simple[round_]) for round_ in whole if round_ in simple}

    def load_seconds(self, start: str, sandbox: str) -> dict[int, float]:
        """How long it took to load one model more of a kind, by round."""
        return {s.round: s.seconds for s in self.instances if (s.start, s.sandbox) == (start, sandbox)}

    def pack_seconds(self, part: str) -> dict[int, float]:
        """How long one part of packing took, by round."""
        return {s.round: s.seconds for s in self.packs if s.part == part}

    def environment_load_seconds(self, environment: str) -> dict[int, float]:
        """How long it took to load a model in an environment, by round."""
        return {s.round: s.seconds for s in self.environment_loads if s.environment == environment}

    def start_seconds(self, server: str, models: int) -> dict[int, float]:
        """How long the starts of one server with so many models took, by round."""
        return {s.round: s.seconds for s in self.starts if (s.server, s.models) == (server, models)}


def describe_machine() -> dict[str, str]:
    """What a reader must know to compare with another machine's figures."""
    versions = {name: _version(name) for name in _DISTRIBUTIONS}
    return {
        "cpu": _first_field("/proc/cpuinfo", "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _first_field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_field(path: str, name: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        label, _, value = line.partition(":")
        if label.strip() == name:
            return value.strip()
    return "unknown"
