"""What running a server costs its requests: watching it, reading its metrics page, reloading a model."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, progress, repositories, servers
from tests.bench.loadgen import Load, drive
from tests.bench.plan import Plan
from tests.bench.procstat import ProcessTree
from tests.bench.turns import LoadSample, Step, take_turns

UNWATCHED = "pybackend, unwatched"
SCRAPE_PERIOD_S = 0.5
"""Far more often than a Prometheus asks."""
_TRACE_RATE = 1000
PLAIN = bodies.add_sub_binary()
AMONG_MANY, SCRAPED = f"{PLAIN.name}, one of many models", f"{PLAIN.name}, one of many models, scraped"
STEADY, RELOADED = f"{PLAIN.name}, steady", f"{PLAIN.name}, one reload"


@dataclass(frozen=True)
class ScrapeSample:
    """One answer of the metrics page.

    Attributes:
        models: how many the server has.
        seconds: from the request to the last byte.
        page_bytes: size of the page.
    """

    models: int
    seconds: float
    page_bytes: int


@dataclass(frozen=True)
class ManyModelsSample:
    """The start of a server with many models.

    Attributes:
        models: how many.
        ready_s: from the start of its process to ready.
    """

    models: int
    ready_s: float


def measure_watching(plan: Plan, scratch: Path) -> list[LoadSample]:
    """The same load on a server with metrics and sampled traces, and on one without."""
    repository = scratch / "models"
    repositories.write_pair(repository)
    traces = [f"--trace-config=triton,file={scratch / 'trace.json'}", "--trace-config=level=TIMESTAMPS"]
    watched = servers.pybackend_launcher(options=[*traces, f"--trace-config=rate={_TRACE_RATE}"])
    unwatched = servers.pybackend_launcher(UNWATCHED, ["--allow-metrics=false"])
    load = Load(plan.busy_connections, plan.duration_s, plan.warm_up_s)
    with watched.start(repository) as first, unwatched.start(repository) as second:
        return take_turns([first, second], [Step(PLAIN, load, plan.single_rounds)], scratch)


def measure_scrapes(plan: Plan, scratch: Path) -> tuple[list[LoadSample], list[ScrapeSample], ManyModelsSample]:
    """Load on one of many models, with and without a scraper that asks all the time."""
    repository = scratch / "models"
    names = repositories.write_copies(repository, plan.scraped_models)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    launcher = servers.pybackend_launcher(options=[f"--metrics-port={port}"])
    workload = bodies.add_sub_binary(names[0])
    scrapes: list[ScrapeSample] = []

    @contextmanager
    def scraping() -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=_scrape, args=(port, plan.scraped_models, ended, scrapes), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    with launcher.start(repository) as server:
        samples = _in_turns(server, (AMONG_MANY, SCRAPED), workload, plan, scratch, scraping)
        return samples, scrapes, ManyModelsSample(plan.scraped_models, server.ready_s)


def measure_reloads(plan: Plan, scratch: Path) -> list[LoadSample]:
    """Load on a model, with and without a reload of that model in the middle of the window."""
    repository = scratch / "models"
    repositories.write_pair(repository)
    code = repository / repositories.ADD_SUB / "1" / "model.py"

    @contextmanager
    def reloading() -> Iterator[None]:
        def reload_() -> None:
            time.sleep(plan.warm_up_s + plan.duration_s / 4)
            code.write_text(code.read_text() + "\n")
            bodies.fetch(server.port, bodies.load(repositories.ADD_SUB))

        thread = threading.Thread(target=reload_, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    options = ["--model-control-mode=explicit", "--load-model=*"]
    with servers.pybackend_launcher(options=options).start(repository) as server:
        return _in_turns(server, (STEADY, RELOADED), PLAIN, plan, scratch, reloading)


def _in_turns(
    server: servers.RunningServer,
    names: tuple[str, str],
    workload: bodies.Workload,
    plan: Plan,
    scratch: Path,
    disturbed: Callable[[], AbstractContextManager[None]],
) -> list[LoadSample]:
    """Windows of steady load, and of load with a disturbance, that take turns; ``names`` are what tables call them."""
    samples = []
    request = scratch / "request"
    request.write_bytes(workload.request)
    load = Load(plan.busy_connections, plan.duration_s, plan.warm_up_s)
    host = ProcessTree(server.pid, ())  # stubs come and go
    for round_ in range(plan.single_rounds):
        steady = drive(server.port, host, request, load)
        with disturbed():
            other = drive(server.port, host, request, load)
        for name, result in zip(names, (steady, other), strict=True):
            samples.append(LoadSample(server.name, name, plan.busy_connections, round_, result))
            progress.show(f"{name}: p99 {result.p99_us:,.0f} us, {result.errors} errors")
    return samples


def _scrape(port: int, models: int, ended: threading.Event, scrapes: list[ScrapeSample]) -> None:
    while not ended.wait(SCRAPE_PERIOD_S):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", "/metrics")
        page = connection.getresponse().read()
        scrapes.append(ScrapeSample(models, time.perf_counter() - began, len(page)))
        connection.close()
