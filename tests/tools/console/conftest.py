"""A browser, consoles, and the servers that they show."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess

DEADLINE_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of this directory need a browser, but for those of the gate."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.console)
            item.add_marker(pytest.mark.thorough)
            item.add_marker(pytest.mark.timeout(300))


class Console:
    """``pybackend console`` in a process."""

    def __init__(self, home: Path, *flags: str, command: str = "console") -> None:
        self._output = home / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pybackend", command, *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        wait_until(lambda: self.links or self.process.poll() is not None, "the console has printed its link")
        assert self.links, self.output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def links(self) -> list[str]:
        lines = self.output.splitlines()
        return [line.partition("Console: ")[2] for line in lines if line.startswith("Console: ") and "token=" in line]

    @property
    def url(self) -> str:
        """The address of the first page, without a slash at its end."""
        return self.links[0].partition("/?")[0]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(DEADLINE_S)


def wait_until(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds; fails after a deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s, f"not yet: {what}"
        threading.Event().wait(0.05)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make test-console installs it"
    )
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium: apt install chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """A page in a context of its own, which has opened a console's link; what its scripts complain of is collected."""

    def __init__(self, browser: Any, console: Console, **options: Any) -> None:
        self.console = console
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(DEADLINE_S * 1000)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("request", self._asked)
        self.page.goto(console.links[-1])
        self.page.wait_for_url("**/")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.console.url, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, path: str) -> Any:
        self.page.goto(self.console.url + path)
        return self.page

    def close(self) -> None:
        self.context.close()


def console_flags(server: ServerProcess) -> list[str]:
    """The flags of a console for a server, on a free port."""
    return [
        f"--url=http://127.0.0.1:{server.port}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}", f"--grpc-url={server.grpc_url}", "--port=0"
    ]  # fmt: skip


@pytest.fixture
def start_console(tmp_path: Path) -> Iterator[Callable[..., Console]]:
    """Starts consoles, and ends them after the pages that show them."""
    consoles: list[Console] = []

    def start(*flags: str) -> Console:
        home = tmp_path / f"console-{len(consoles)}"
        home.mkdir()
        consoles.append(Console(home, *flags))
        return consoles[-1]

    yield start
    for console in consoles:
        assert console.stop() == 0
        assert "Traceback" not in console.output


@pytest.fixture
def visit(browser: Any, start_console: object) -> Iterator[Callable[..., Visit]]:
    """Opens a console's link; nothing foreign may be asked for, and no script may fail."""
    visits: list[Visit] = []

    def opened(console: Console, **options: Any) -> Visit:
        visits.append(Visit(browser, console, **options))
        return visits[-1]

    yield opened
    for each in visits:
        each.close()
        assert not each.foreign, "the pages work offline"
        assert not each.complaints
