"""The page of the server, and the console that a server starts beside itself."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.nvidia import StandIn, needs_stand_in
from tests.support.server import ServerProcess, serving
from tests.tools.console.conftest import Console, Visit, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"
KEY = "0123456789abcdef-key"


class Beside:
    """The console of a server, as :class:`Visit` wants it."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        server.wait_for(r"Console: \S+token=")

    @property
    def links(self) -> list[str]:
        return [line.partition("Console: ")[2] for line in self._server.output.splitlines() if "?token=" in line]

    @property
    def url(self) -> str:
        return self.links[0].partition("/?")[0]


def is_listening(console: Beside) -> bool:
    port = urlsplit(console.url).port
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "add_sub" / "model_repository", tmp_path / "models")
    return tmp_path / "models"


def test_a_server_with_keys_and_headers_starts_a_console_that_knows_them(
    tmp_path: Path, models: Path, browser: Any, visit: Callable[..., Visit]
) -> None:
    (tmp_path / "keys").write_text(KEY)
    (tmp_path / "keys").chmod(0o600)
    flags = ["--console", f"--api-key-file={tmp_path / 'keys'}", "--http-restricted-api=diagnostics:admin-key=s3cret"]
    server = ServerProcess([models], *flags)
    console = Beside(server)
    page = visit(console).open("/server")  # type: ignore[arg-type]
    page.get_by_text("1 of 1", exact=True).wait_for()
    page.get_by_role("cell", name="add_sub_0_0").wait_for()
    page.get_by_role("cell", name="console", exact=True).wait_for()
    page.get_by_text("newest lines first").wait_for()
    page.get_by_role("cell", name="diagnostics:admin-key=(hidden)").wait_for()
    page.get_by_label("Log", exact=True).get_by_text("successfully loaded 'add_sub'").wait_for()
    page.get_by_role("button", name="Check now").click()
    page.get_by_text("checks have found nothing to say").wait_for()
    page.get_by_label("Search the log").fill("no such words")
    page.get_by_text("No lines.").wait_for()
    assert "s3cret" not in page.content()
    assert KEY not in page.content()
    assert KEY not in server.output
    page.goto("about:blank")
    server.stop()
    wait_until(lambda: not is_listening(console), "the console has ended with its server")


def test_the_server_says_where_its_metrics_and_grpc_are(
    models: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    server = ServerProcess([models])
    server.wait_ready()
    seen = visit(start_console(f"--url=http://127.0.0.1:{server.port}", "--port=0", "--insecure"))
    page = seen.open("/model?name=add_sub&version=1")
    page.locator("dl.figures").get_by_text("2/2").wait_for()
    page.get_by_role("button", name="Show as code").click()
    code = page.get_by_label("The same request as code")
    found = {}
    for title in ("curl", "Python, gRPC", "pybackend infer"):
        code.get_by_role("tab", name=title).click()
        found[title] = code.get_by_role("tabpanel", name=title).locator("pre").inner_text()
    assert server.grpc_url in found["Python, gRPC"]
    assert not [title for title, text in found.items() if "insecure" in text], "there is no certificate"
    server.stop()


def test_the_console_ends_with_a_killed_server(models: Path) -> None:
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    server = ServerProcess([models], command="dev")
    console = Beside(server)
    assert is_listening(console)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    wait_until(lambda: not is_listening(console), "the console has ended with its server")
    server.stop()


@needs_stand_in
def test_figures_of_gpus(tmp_path: Path, models: Path, browser: Any, visit: Callable[..., Visit]) -> None:
    machine = StandIn(tmp_path / "machine")
    flags = ("--console", "--metrics-interval-ms=100")
    with serving(models, flags=flags, python=machine.python(), env=machine.environment()) as server:
        page = visit(Beside(server)).open("/server")  # type: ignore[arg-type]
        figures = page.get_by_text("25 % busy, 3,221 MB of 85,899 MB, 70 W")
        figures.nth(1).wait_for()
        assert figures.count() == 2
