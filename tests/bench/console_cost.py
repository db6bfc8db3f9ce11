"""What an open console costs the requests of its server, and how long its first page takes with many models."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import bodies, progress, repositories, servers
from tests.bench.loadgen import Load, drive
from tests.bench.plan import Plan
from tests.bench.procstat import ProcessTree, process_cpu_ns
from tests.bench.turns import LoadSample

PLAIN = bodies.add_sub_binary()
ALONE, LOOKED_AT = f"{PLAIN.name}, no console", f"{PLAIN.name}, a console open"
MANY_MODELS = 500
_LOOKS = 5
"""Windows have about so many looks of the console at the server, one every two seconds."""
_LOOK_S = 2.0
_FORGETS_S = 15.0
"""So long the console still looks for a page that has been closed, as it may come back."""
_DEADLINE_MS = 60_000


def is_possible() -> bool:
    """True where the console, playwright and a browser are installed: ``make test-console`` installs the packages."""
    try:
        import nicegui  # noqa: F401
        import playwright  # noqa: F401
    except ImportError:
        return False
    return shutil.which("chromium") is not None


@dataclass
class ConsoleSamples:
    """What was measured.

    Attributes:
        loads: the same load in turns without and with an open console.
        idle_cores: of the host's processor time, the share of one core that an open console takes while there are no
            requests.
        pages_s: the seconds until the first page shows 500 models.
    """

    loads: list[LoadSample] = field(default_factory=list)
    idle_cores: list[float] = field(default_factory=list)
    pages_s: list[float] = field(default_factory=list)


def measure(plan: Plan, scratch: Path) -> ConsoleSamples:
    """All samples."""
    found = ConsoleSamples()
    _measure_load(plan, scratch / "load", found)
    _measure_pages(plan, scratch / "many", found)
    return found


def _measure_load(plan: Plan, scratch: Path, found: ConsoleSamples) -> None:
    repository = scratch / "models"
    repositories.write_pair(repository)
    request = scratch / "request"
    request.write_bytes(PLAIN.request)
    duration_s = _LOOKS * _LOOK_S * plan.duration_s / 2
    load = Load(plan.busy_connections, duration_s, plan.warm_up_s)
    with _looked_at(repository, scratch, []) as (server, console, browser):
        host = ProcessTree(server.pid, ())
        visit = _visit(browser, console)
        for round_ in range(plan.single_rounds):
            visit.page.goto("about:blank")
            time.sleep(_FORGETS_S)
            idle = _cores(server.pid, duration_s)
            alone = drive(server.port, host, request, load)
            visit.open("/")
            visit.page.get_by_text("2 of 2 ready").wait_for(timeout=_DEADLINE_MS)
            found.idle_cores.append(_cores(server.pid, duration_s) - idle)
            looked_at = drive(server.port, host, request, load)
            for name, result in ((ALONE, alone), (LOOKED_AT, looked_at)):
                found.loads.append(LoadSample(server.name, name, plan.busy_connections, round_, result))
                progress.show(f"{name}: host {result.host_cpu_us:.1f} us, p99 {result.p99_us:,.0f} us")
        visit.close()


def _cores(pid: int, seconds: float) -> float:
    began_ns = process_cpu_ns(pid)
    time.sleep(seconds)
    return (process_cpu_ns(pid) - began_ns) / 1e9 / seconds


def _measure_pages(plan: Plan, scratch: Path, found: ConsoleSamples) -> None:
    repository = scratch / "models"
    names = repositories.write_copies(repository, MANY_MODELS)
    options = ["--model-control-mode=explicit", f"--load-model={names[0]}"]
    with _looked_at(repository, scratch, options) as (_, console, browser):
        visit = _visit(browser, console)
        for _ in range(plan.single_rounds):
            visit.page.goto("about:blank")
            began_s = time.perf_counter()
            visit.open("/")
            visit.page.get_by_text(f"1 of {MANY_MODELS} ready").wait_for(timeout=_DEADLINE_MS)
            found.pages_s.append(time.perf_counter() - began_s)
            progress.show(f"the first page with {MANY_MODELS} models: {1000 * found.pages_s[-1]:.0f} ms")
        visit.close()


@contextmanager
def _looked_at(
    repository: Path, scratch: Path, options: Sequence[str]
) -> Iterator[tuple[servers.RunningServer, Any, Any]]:
    """A server, a console that also reads its metrics, and a browser."""
    from tests.tools.console.conftest import Console

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    home = scratch / "console"
    home.mkdir()
    launcher = servers.pybackend_launcher(options=[f"--metrics-port={port}", *options])
    with launcher.start(repository) as server, _browser() as browser:
        url, metrics_url = f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{port}"
        console = Console(home, f"--url={url}", f"--metrics-url={metrics_url}", "--port=0")
        try:
            yield server, console, browser
        finally:
            console.stop()


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield found
        found.close()


def _visit(browser: Any, console: Any) -> Any:
    from tests.tools.console.conftest import Visit

    return Visit(browser, console)
