"""Other servers of models without code, MLServer and LitServe, on the same models and under the same load.

Each is installed from a package index into an environment of its own, at first use.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.bench import bodies, progress, servers
from tests.bench.framework_models import FrameworkModel, write_forest, write_pipeline, write_small_network
from tests.bench.goals import Goal
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.reference import INSTALL_TIMEOUT_S, ReferenceUnavailableError, cache_directory
from tests.bench.turns import LoadSample, Step, alternating, take_turns

MLSERVER, LITSERVE = "mlserver", "litserve"
CONNECTIONS = (1, 8)
CPU_VERSUS_PEER = 0.3
PIPELINE_FILE = "pipeline.joblib"
"""Beside the repository."""

_LITSERVE_PROGRAM = Path(__file__).with_name("litserve_models.py")
_OUTPUTS = {MLSERVER: {"forest": "predict", "pipeline": "predict_proba"}}
"""What MLServer calls the outputs that are compared; it serves no ONNX files."""


@dataclass(frozen=True)
class _Packages:
    """What is installed for a server; the second list without the packages that those of it ask for."""

    wanted: tuple[str, ...]
    alone: tuple[str, ...] = ()


_PACKAGES = {
    # Its processes do not start with a newer uvloop. The build of XGBoost for CPUs computes the same.
    MLSERVER: _Packages(
        ("mlserver==1.7.1", "mlserver-sklearn==1.7.1", "uvloop<0.22", "xgboost-cpu"), ("mlserver-xgboost==1.7.1",)
    ),
    LITSERVE: _Packages(("litserve==0.2.19", "onnxruntime", "scikit-learn", "xgboost-cpu")),
}


def launcher(name: str) -> servers.Launcher:
    """One of these servers; installs it at first use.

    Raises:
        ReferenceUnavailableError: it cannot be installed here.
    """
    python = _install(name)
    start = {MLSERVER: _mlserver, LITSERVE: _litserve}[name]

    @contextmanager
    def started(repository: Path) -> Iterator[servers.RunningServer]:
        with start(python, repository) as server:
            yield server

    return servers.Launcher(name, started, started)


def _install(name: str) -> Path:
    """The interpreter of a server's environment, which is made where it is missing."""
    packages = _PACKAGES[name]
    base = cache_directory() / packages.wanted[0].replace("==", "-")
    python, complete = base / "bin" / "python", base / ".complete"
    if not complete.exists():
        progress.show(f"installing {packages.wanted[0]} into {base}; this happens once")
        shutil.rmtree(base, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(base)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *packages.wanted])
        if packages.alone:
            _run([*pip, "--no-deps", *packages.alone])
        complete.touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        raise ReferenceUnavailableError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")


@contextmanager
def _mlserver(python: Path, repository: Path) -> Iterator[servers.RunningServer]:
    http_port, grpc_port, metrics_port = servers.free_ports(3)
    home = repository.parent / MLSERVER
    for model, runtime, file in (
        ("pipeline", "mlserver_sklearn.SKLearnModel", repository.parent / PIPELINE_FILE),
        ("forest", "mlserver_xgboost.XGBoostModel", repository / "forest" / "1" / "xgboost.ubj"),
    ):
        (home / model).mkdir(parents=True)
        _write(
            home / model / "model-settings.json",
            {"name": model, "implementation": runtime, "parameters": {"uri": str(file)}},
        )
    settings = {"debug": False, "host": "127.0.0.1", "http_port": http_port, "grpc_port": grpc_port}
    _write(home / "settings.json", {**settings, "metrics_port": metrics_port, "metrics_dir": str(home / "metrics")})
    command = [str(python), "-c", "from mlserver.cli import main; main()", "start", str(home)]
    with servers.running(MLSERVER, command, http_port) as server:
        yield server


def _write(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


@contextmanager
def _litserve(python: Path, repository: Path) -> Iterator[servers.RunningServer]:
    (port,) = servers.free_ports(1)
    command = [str(python), "-P", str(_LITSERVE_PROGRAM), str(repository), str(port)]
    with servers.running(LITSERVE, command, port) as server:
        yield server


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Let the servers take turns on the models that each of them can serve, with JSON, which all of them understand.

    Raises:
        ServerError: a server did not start, or a package that makes the models is not installed.
    """
    repository = scratch / "models"
    random = np.random.default_rng(0)
    try:
        models = [write(repository, random) for write in (write_forest, write_pipeline, write_small_network)]
        _write_pipeline_as_pickle(repository)
    except ModuleNotFoundError as error:
        raise servers.ServerError(
            f"{error.name} is not installed: pip install '.[bench]' in a clone of pybackend"
        ) from error
    samples = []
    with ExitStack() as stack:
        running = [stack.enter_context(each.start(repository)) for each in launchers]
        workloads = {
            (server.name, model.workload.name): workload
            for server in running
            for model in models
            if (workload := _as_json(model, server.name)) is not None
        }
        for server in running:
            for (name, _), workload in workloads.items():
                if name == server.name:
                    _check(server.port, workload)
        for round_ in range(plan.rounds):
            for connections in CONNECTIONS:
                load = Load(connections, plan.duration_s, plan.warm_up_s)
                for model in models:
                    for server in alternating(running, round_):
                        workload = workloads.get((server.name, model.workload.name))
                        if workload is not None:
                            (sample,) = take_turns([server], [Step(workload, load, 1)], scratch)
                            samples.append(replace(sample, round=round_))
    return samples


def _write_pipeline_as_pickle(repository: Path) -> None:
    """The pipeline in the form that the others read."""
    import joblib
    import skops.io

    joblib.dump(skops.io.load(repository / "pipeline" / "1" / "model.skops"), repository.parent / PIPELINE_FILE)


def _as_json(model: FrameworkModel, server: str) -> bodies.Workload | None:
    """A model's request for one server; None if the server cannot serve the model."""
    name = model.workload.path.split("/")[3]
    outputs = _OUTPUTS.get(server)
    if outputs is not None and name not in outputs:
        return None
    inputs = [
        {"name": tensor, "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
        for tensor, array in model.inputs.items()
    ]
    document: dict[str, object] = {"inputs": inputs}
    if outputs is not None:
        document["outputs"] = [{"name": outputs[name]}]
    body = json.dumps(document, separators=(",", ":")).encode()
    return replace(model.workload, headers={"Content-Type": "application/json"}, body=body)


def _check(port: int, workload: bodies.Workload) -> None:
    """Compare the answer with the library's; its name and shape are each server's own."""
    _, body = bodies.fetch(port, workload)
    answer = np.array(json.loads(body)["outputs"][0]["data"], np.float32).ravel()
    (expected,) = workload.expected.values()
    if answer.shape != expected.ravel().shape or not np.allclose(answer, expected.ravel(), rtol=1e-5):
        raise bodies.WrongReplyError(f"{workload.name}: the output is {answer}, not {expected}")


def goals(samples: Sequence[LoadSample]) -> Iterator[Goal]:
    """CPU time against each of the others, by ratios within a round."""
    windows = {(each.server, each.workload, each.connections, each.round): each.result for each in samples}
    cpu: Callable[[tuple[str, str, int, int]], float] = lambda key: (  # noqa: E731
        windows[key].host_cpu_us + windows[key].stub_cpu_us
    )
    for server, workload, connections in dict.fromkeys(key[:3] for key in windows):
        if server != servers.PYBACKEND:
            ratios = [
                cpu((servers.PYBACKEND, *key[1:])) / cpu(key)
                for key in windows
                if key[:3] == (server, workload, connections) and (servers.PYBACKEND, *key[1:]) in windows
            ]
            name = f"{workload}, connections: {connections}: CPU of host + stub against {server}'s"
            yield Goal(name, ratios, CPU_VERSUS_PEER, at_least=False)
