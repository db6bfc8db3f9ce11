"""Starts one server on the models of all examples, runs every example's clients against it, and stops it.

    python examples/demo.py [EXAMPLE ...]

Exits 0 if every client that could run printed its PASS line, 1 otherwise. `tests/examples` uses the parts of this file.
"""

import argparse
import fcntl
import functools
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path

HERE = Path(__file__).resolve().parent

NEEDS = {"torch_linear": "torch"}
"""Examples whose models import a package that is not always there."""

FRAMEWORKS = {
    "onnx": ("onnxruntime", "onnx"),
    "openvino": ("openvino",),
    "forest": ("xgboost", "skops", "pandas"),
    "optimized": ("sklearn", "skops", "treelite"),
    "sklearn": ("sklearn", "skops"),
    "text_generation": ("torch", "transformers"),
    "torch": ("torch",),
}
"""Examples of models without code, and the packages that serve the model and make it."""

PACKED = {"packed_environment": "readable_sizes"}
"""Examples with a requirements.txt, and the model that runs in an environment made of it."""

NOT_TO_BE_HAD = {4, 7}
"""What `pybackend pack` exits with where no package index answers, or what it needs is not installed."""

RUNNERS = {".py": sys.executable, ".sh": "sh", ".mjs": "node", ".cjs": "node"}
"""The program that runs a client, by the end of its file's name."""

CLIENT_NEEDS = {
    "client_curl.sh": "curl",
    "client_grpc.cjs": "@grpc/grpc-js",
    "client_mlflow.py": "mlflow",
    "client_openai.py": "openai",
    "client_requests.py": "requests",
}
"""Clients that need more than their language: a program, a package of Python, a package of npm."""

READ_METRICS = {"custom_metrics", "response_cache"}
"""Examples whose clients look at the metrics page too."""

PROGRAMS = {"bind", "tritonserver"}
"""Examples whose clients are programs with a server of their own: they have no models for this one."""

LOADED_ON_REQUEST = {"to_fahrenheit", "to_kelvin"}
"""Models that are not loaded when the server starts: another model does it when they are needed."""

CACHE = "--cache-config=local,size=16777216"
"""For the models that enable a response cache."""

CLIENT_MEMORY = "--allow-client-shm=true"
"""For the clients that send tensors in shared memory."""

OPENAI, MLFLOW = "--allow-openai", "--allow-mlflow"
"""For the clients of OpenAI's API and of MLflow's server."""

SERVICES = 3
"""The server says where it listens for HTTP, for gRPC, and for metrics."""

READY_TIMEOUT_S = 150
STOP_TIMEOUT_S = 40
CLIENT_TIMEOUT_S = 60
MAKE_TIMEOUT_S = 300
PACK_TIMEOUT_S = 600


class DemoError(Exception):
    """The demo cannot go on; the message is for the person who started it."""


def find_examples():
    """The folders here that hold a client and a model repository, or the program that makes it, in alphabetical order."""
    found = [*HERE.glob("*/model_repository"), *HERE.glob("frameworks/*/make_model.py")]
    found += [HERE / program / "client.py" for program in PROGRAMS]
    return sorted(path.parent for path in found if find_clients(path.parent))


@functools.cache
def missing(example):
    """What keeps this example from running here, or None. Makes its environment or its model, if it has a recipe."""
    if example.name in FRAMEWORKS:
        return make_model(example, FRAMEWORKS[example.name])
    package = NEEDS.get(example.name)
    if package and importlib.util.find_spec(package) is None:
        return f"{package} is not installed here (pip install '.[{package}]' in a clone of pybackend)"
    return pack_environment(example, PACKED[example.name]) if example.name in PACKED else None


def run_program(*command, timeout_s):
    """Runs a program to its end; all that it prints is one text."""
    return subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def make_model(example, packages):
    """Runs an example's make_model.py; returns the reason why that is impossible here, or None."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed here (pip install {package})"
    done = run_program(sys.executable, example / "make_model.py", timeout_s=MAKE_TIMEOUT_S)
    if done.returncode:
        raise DemoError(f"{example / 'make_model.py'} failed: {done.stdout}")
    return None


def pack_environment(example, model):
    """Packs an example's requirements.txt, unless that was done before; returns why that is impossible here, or None."""
    requirements, folder = example / "requirements.txt", example / "model_repository" / model
    archive = folder / "env.tar.gz"
    with open(folder / "config.pbtxt") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if archive.exists() and archive.stat().st_mtime > requirements.stat().st_mtime:
            return None
        print(f"Packing {requirements.relative_to(HERE.parent)} ...", flush=True)
        done = run_program(
            sys.executable, "-m", "pybackend", "pack", requirements, "-o", archive, timeout_s=PACK_TIMEOUT_S
        )
    print(done.stdout, end="", flush=True)
    if done.returncode in NOT_TO_BE_HAD:
        return done.stdout.strip()
    if done.returncode:
        raise DemoError(f"{requirements} cannot be packed: {done.stdout}")
    return None


def assemble_repository(examples, folder):
    """Makes `folder` a repository with every model of `examples`, by links; returns the models' names."""
    repositories = [example / "model_repository" for example in examples if example.name not in PROGRAMS]
    models = [model for repository in repositories for model in sorted(repository.iterdir())]
    for model in models:
        (folder / model.name).symlink_to(model, target_is_directory=True)
    return [model.name for model in models]


def control_flags(models):
    """The flags of a server that loads these models at start, less those that are loaded on request, and has a cache."""
    loads = [f"--load-model={model}" for model in models if model not in LOADED_ON_REQUEST]
    return ["--model-control-mode=explicit", CACHE, CLIENT_MEMORY, OPENAI, MLFLOW, *loads]


def find_clients(example):
    """The example's clients: those with grpc in their name call over gRPC, the others over HTTP."""
    return sorted(client for client in example.glob("client*") if client.suffix in RUNNERS)


def missing_tool(client):
    """What keeps this client from running here, or None."""
    runner, need = RUNNERS[client.suffix], CLIENT_NEEDS.get(client.name)
    if shutil.which(runner) is None:
        return f"there is no {runner}"
    if need is None:
        return None
    if client.suffix == ".py":
        found = importlib.util.find_spec(need)  # an example's folder with the package's name has no origin
        return None if found and found.origin else f"{need} is not installed (pip install {need})"
    if client.suffix == ".sh":
        return None if shutil.which(need) else f"there is no {need}"
    installed = (client.parent / "node_modules" / need).is_dir()
    return (
        None
        if installed
        else f"{need} is not installed (npm install --prefix {client.parent.relative_to(HERE.parent)})"
    )


def client_flags(client, server):
    """The flags that lead a client to this server."""
    if "grpc" in client.name:
        return ["--url", server.addresses["GRPCInferenceService"]]
    flags = ["--url", server.url]
    if client.parent.name in READ_METRICS:
        flags += ["--metrics", server.addresses["Metrics Service"]]
    return flags


def run_client(client, server):
    """Runs one client; returns (whether it passed, what it printed)."""
    try:
        command = (RUNNERS[client.suffix], client, *client_flags(client, server))
        done = run_program(*command, timeout_s=CLIENT_TIMEOUT_S)
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
        return False, f"{printed.decode(errors='replace')}no end after {CLIENT_TIMEOUT_S} s\n"
    lines = done.stdout.splitlines()
    return done.returncode == 0 and bool(lines) and lines[-1] == f"PASS: {client.parent.name}", done.stdout


class Server:
    """A `pybackend serve` process on free ports of this machine.

    `url` and `metrics_url` are known once the server has printed where it listens. Use it in a `with` statement: it is
    entered when every model is ready, and left when the process has ended.
    """

    LISTENS = re.compile(r"Started (HTTPService|GRPCInferenceService|Metrics Service) at (\S+:\d+)")

    def __init__(self, repository, *flags):
        self.command = [sys.executable, "-m", "pybackend", "serve", str(repository)]
        self.command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        self.command += ["--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags]
        self.log = deque(maxlen=2000)  # the last lines that it printed
        self.addresses = {}
        self.listening = threading.Event()
        self.ended = threading.Event()

    @property
    def url(self):
        return self.addresses["HTTPService"]

    @property
    def metrics_url(self):
        return f"http://{self.addresses['Metrics Service']}/metrics"

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        try:
            self._wait_until_ready(time.monotonic() + READY_TIMEOUT_S)
        except BaseException:
            self.process.kill()
            self._reap()
            raise
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reap()

    def _reap(self):
        self.process.wait()
        self.reader.join(5)
        self.process.stdout.close()

    def _read_log(self):
        for line in self.process.stdout:
            self.log.append(line)
            found = self.LISTENS.search(line)
            if found:
                self.addresses[found[1]] = found[2]
                if len(self.addresses) == SERVICES:
                    self.listening.set()
        self.ended.set()
        self.listening.set()

    def _wait_until_ready(self, deadline):
        self.listening.wait(deadline - time.monotonic())
        while len(self.addresses) < SERVICES or not self._is_ready():
            # Returns at once if the server gives up; a server that loads its models is asked again.
            if self.ended.wait(0.05):
                raise DemoError(f"the server ended before it was ready; it printed:\n{''.join(self.log)}")
            if time.monotonic() > deadline:
                raise DemoError(f"not ready after {READY_TIMEOUT_S} s; the server printed:\n{''.join(self.log)}")

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.url}/v2/health/ready", timeout=5) as reply:
                return reply.status == 200
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
            return False
        except OSError:
            return False


def choose_examples(names):
    """The examples of these names (all if there are none), less those that cannot run here."""
    examples = find_examples()
    unknown = set(names) - {example.name for example in examples}
    if unknown:
        raise DemoError(f"no such example: {', '.join(sorted(unknown))}")
    chosen = []
    for example in examples:
        if names and example.name not in names:
            continue
        reason = missing(example)
        if reason:
            print(f"SKIP: {example.name}: {reason}")
        else:
            chosen.append(example)
    return chosen


def demo(names):
    """Runs the demo; returns the names of the examples that failed."""
    examples = choose_examples(names)
    with tempfile.TemporaryDirectory(prefix="pybackend-demo-") as folder:
        models = assemble_repository(examples, Path(folder))
        print(f"Starting pybackend with {len(models)} models: {', '.join(models)}")
        started = time.monotonic()
        with Server(folder, *control_flags(models)) as server:
            seconds = time.monotonic() - started
            grpc = server.addresses["GRPCInferenceService"]
            print(f"Ready after {seconds:.1f} s: http://{server.url}, gRPC at {grpc}, metrics at {server.metrics_url}")
            failed = []
            for client in (client for example in examples for client in find_clients(example)):
                name = f"{client.parent.name}/{client.name}"
                reason = missing_tool(client)
                if reason:
                    print(f"\nSKIP: {name}: {reason}")
                    continue
                print(f"\n--- examples/{name} {' '.join(client_flags(client, server))}")
                passed, printed = run_client(client, server)
                print(printed, end="")
                if not passed:
                    failed.append(name)
            print("\nStopping the server with SIGTERM ...", end=" ", flush=True)
        status = server.process.returncode
        print(f"it ended with status {status}.")
    if failed or status:
        print(f"\nThe server's last lines:\n{''.join(list(server.log)[-40:])}")
    return failed + ([] if status == 0 else ["the server's own end"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="EXAMPLE", nargs="*", help="folders beside this file (default: all)")
    try:
        failed = demo(parser.parse_args().names)
    except DemoError as error:
        print(f"FAIL: {error}")
        return 1
    if failed:
        print(f"FAIL: {', '.join(failed)}")
        return 1
    print("\nEverything passed. What ran is in examples/: a model.py, a config.pbtxt and a client.py each.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
