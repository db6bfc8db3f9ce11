"""The console's first page in a browser: models, their states and figures, loading and unloading, and who may see it."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from tests.support.groupable import calling, write_pair
from tests.support.repositories import IDENTITY
from tests.support.server import ServerProcess
from tests.tools.console.conftest import Console, Visit, console_flags, wait_until

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "IN", data_type: TYPE_FP32, dims: [ 2 ] } ]
output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 2 ] } ]
"""
STRANGE = "<img src=x onerror=alert(1)>&quot;{{7*7}}"
"""Text that a careless page would take for something else."""


def write_model(repository: Path, name: str, code: str = MODEL, config: str = CONFIG) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("repository")
    for name in ("echo", "other", STRANGE):
        write_model(found, name)
    write_model(found, "broken", f"raise RuntimeError({STRANGE!r})\n")
    return found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    found = ServerProcess([repository], "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false")
    found.wait_for("models are ready in")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def console(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    found = Console(tmp_path_factory.mktemp("console"), *console_flags(server))
    yield found
    assert found.stop() == 0
    assert "Traceback" not in found.output


def row(visit: Visit, model: str) -> Any:
    return visit.page.locator("tbody tr").filter(has=visit.page.get_by_role("link", name=model, exact=True))


def test_models_are_listed_loaded_and_unloaded_after_a_question(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    seen = visit(console)
    page = seen.page
    row(seen, "echo").get_by_text("READY").wait_for()
    assert "RuntimeError" in row(seen, "broken").inner_text()
    row(seen, "echo").get_by_label("Unload echo", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    assert server.get("/v2/models/echo/ready").status == 200
    row(seen, "echo").get_by_label("Unload echo", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Unload").click()
    server.wait_until("/v2/models/echo/ready", 400)
    row(seen, "echo").get_by_text("UNAVAILABLE").wait_for()
    row(seen, "echo").get_by_label("Load echo", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Load").click()
    row(seen, "echo").get_by_text("READY").wait_for()


def test_a_load_that_fails_says_why_and_stays_on_the_page(console: Console, visit: Callable[..., Visit]) -> None:
    seen = visit(console)
    row(seen, "broken").get_by_label("Load broken", exact=True).click()
    seen.page.get_by_role("alertdialog").get_by_role("button", name="Load").click()
    seen.page.locator(".q-notification").get_by_text("RuntimeError").wait_for()
    page = seen.open("/model?name=broken&version=1")
    page.get_by_role("tab", name="Log").click()
    log = page.get_by_label("Log", exact=True)
    log.get_by_text("loading: broken:1").wait_for()
    assert not re.search(r"\n\n\d\d:\d\d:\d\d ", log.inner_text()), "no empty line between two records"


def test_names_of_strangers_are_text(console: Console, visit: Callable[..., Visit]) -> None:
    seen = visit(console)
    row(seen, STRANGE).get_by_text("READY").wait_for()
    assert not seen.page.locator("img[src=x]").count()
    row(seen, STRANGE).get_by_label(f"Unload {STRANGE}", exact=True).click()
    assert STRANGE in seen.page.get_by_role("alertdialog").inner_text()


def test_a_server_that_goes_away_comes_back_by_itself(
    tmp_path: Path,
    repository: Path,
    start_console: Callable[..., Console],
    visit: Callable[..., Visit],
) -> None:
    first = ServerProcess([repository], "--model-control-mode=explicit", "--load-model=echo")
    first.wait_ready()
    console = start_console(*console_flags(first))
    seen = visit(console)
    row(seen, "echo").get_by_text("READY").wait_for()
    port = first.port
    first.process.kill()
    first.process.wait()
    seen.page.get_by_role("alert").get_by_text("no server answers").wait_for()
    second = ServerProcess([repository], "--model-control-mode=explicit", "--load-model=other", f"--http-port={port}")
    row(seen, "other").get_by_text("READY").wait_for()
    seen.page.get_by_role("alert").get_by_text("no server answers").wait_for(state="hidden")
    first.stop()
    second.stop()


def test_models_that_could_share_a_process_are_named(
    tmp_path: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    write_pair(tmp_path / "models", "step", IDENTITY)
    server = ServerProcess([tmp_path / "models"])
    server.wait_ready()
    seen = visit(start_console(*console_flags(server)))
    with calling(server, "calls_step"):
        seen.page.get_by_text("model 'calls_step' calls 'step' ").wait_for()
    server.stop()


def test_five_hundred_models_are_searched_and_sorted(
    tmp_path: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    for number in range(500):
        write_model(tmp_path / "models", f"model_{number:03}")
    server = ServerProcess([tmp_path / "models"], "--model-control-mode=explicit", "--load-model=model_250")
    server.wait_ready()
    console = start_console(*console_flags(server))
    seen = visit(console)
    seen.page.get_by_text("1 of 500 ready").wait_for()
    seen.page.locator("tbody tr").nth(24).wait_for()
    assert seen.page.locator("tbody tr").count() == 25
    seen.page.get_by_role("columnheader", name="Model").click()
    seen.page.get_by_role("link", name="model_499").wait_for()
    seen.page.get_by_label("Search models").fill("_25")
    row(seen, "model_250").get_by_text("READY").wait_for()
    assert seen.page.locator("tbody tr").count() == 10
    server.stop()


def test_ten_consoles_look_at_once(
    server: ServerProcess, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    seen = [visit(start_console(*console_flags(server))) for _ in range(10)]
    for each in seen:
        row(each, "other").get_by_text("READY").wait_for()
    assert server.get("/v2/health/live").status == 200


def test_what_a_server_does_not_let_clients_do_is_grey_and_says_why(
    repository: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    server = ServerProcess([repository], "--exit-on-error=false")
    server.wait_for("models are ready in")
    seen = visit(start_console(*console_flags(server)))
    button = row(seen, "echo").get_by_label("Unload echo", exact=True)
    button.wait_for()
    assert button.is_disabled()
    assert "--model-control-mode=explicit" in (button.get_attribute("title") or "")
    assert row(seen, "echo").get_by_label("Reload echo", exact=True).is_disabled()
    assert row(seen, "broken").get_by_label("Load broken", exact=True).is_enabled(), "one that has failed may be loaded"
    page = seen.open("/model?name=echo&version=1")
    page.get_by_role("button", name="Send").wait_for()
    assert page.get_by_role("button", name="Unload").is_disabled()
    server.stop()


def test_shares_of_versions_are_changed_after_a_question(
    tmp_path: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    write_model(tmp_path / "models", "echo", config=f"{CONFIG} version_policy {{ all {{ }} }}")
    shutil.copytree(tmp_path / "models" / "echo" / "1", tmp_path / "models" / "echo" / "2")
    server = ServerProcess([tmp_path / "models"], "--model-control-mode=explicit", "--load-model=echo")
    server.wait_ready()
    page = visit(start_console(*console_flags(server))).open("/model?name=echo&version=2")
    page.get_by_role("tab", name="Configuration").click()
    page.get_by_label("Weight of 1").fill("1")
    page.get_by_label("Weight of 2").fill("3")
    page.get_by_role("button", name="Change").click()
    question = page.get_by_role("alertdialog")
    assert "version 1: 1, version 2: 3" in question.inner_text()
    question.get_by_role("button", name="Cancel").click()
    question.wait_for(state="hidden")
    assert server.get("/v2/repository/models/echo/traffic").json["source"] == "default"
    page.get_by_role("button", name="Change").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Change").click()
    page.get_by_text("75.0 % by a change since the load").wait_for()
    assert server.get("/v2/repository/models/echo/traffic").json["shares"] == {"1": 25.0, "2": 75.0}
    page.get_by_role("button", name="As configured").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Return").click()
    page.get_by_text("100.0 % by default").wait_for()
    server.stop()


_NAMELESS = """() => [...document.querySelectorAll('a, button, input:not([type=file]), textarea, [role=combobox], [role=img], [tabindex="0"]')]
  .filter(each => each.offsetParent !== null && each.getAttribute('aria-hidden') !== 'true')
  .filter(each => !(each.getAttribute('aria-label') || each.innerText || each.alt || each.title
    || (each.labels && [...each.labels].some(label => label.innerText || label.getAttribute('aria-label')))))
  .map(each => each.outerHTML.slice(0, 200))"""


def test_pages_are_used_by_keyboard_and_everything_has_a_name(console: Console, visit: Callable[..., Visit]) -> None:
    seen = visit(console)
    page = seen.page
    row(seen, "echo").get_by_text("READY").wait_for()
    assert page.evaluate(_NAMELESS) == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the page"
    page.keyboard.press("Enter")
    link = page.get_by_role("link", name="echo", exact=True)
    link.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Send").wait_for()
    assert page.evaluate(_NAMELESS) == []
    for name in ("Figures", "Traces", "Configuration", "Log"):
        page.keyboard.press("Tab")
        page.get_by_role("tab", name=name).focus()
        page.keyboard.press("Enter")
        page.get_by_role("tabpanel").first.wait_for()
        assert page.evaluate(_NAMELESS) == [], name
    assert len(page.get_by_role("main").all()) == 1
    page = seen.open("/server")
    page.get_by_role("cell", name="echo_0").wait_for()
    assert page.evaluate(_NAMELESS) == []


def test_a_server_over_tls(
    tmp_path: Path, repository: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    secure = ["--http-use-ssl", f"--http-server-cert={tmp_path}/server.pem", f"--http-server-key={tmp_path}/server.key"]
    server = ServerProcess([repository], "--model-control-mode=explicit", "--load-model=echo", *secure)
    server.wait_for("echo .*READY")
    flags = [each.replace("--url=http:", "--url=https:") for each in console_flags(server)]
    seen = visit(start_console(*flags, f"--root-cert={tmp_path}/root.pem"))
    row(seen, "echo").get_by_text("READY").wait_for()
    page = seen.open("/model?name=echo&version=1")
    page.get_by_label("Value of IN").fill("[3, 4]")
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUT").get_by_text("3  4").wait_for()
    stranger = visit(start_console(*flags))
    stranger.page.get_by_role("alert").get_by_text("--root-cert=FILE names the one that signs it").wait_for()
    server.stop()


def test_a_server_without_models_says_what_to_do(
    tmp_path: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    (tmp_path / "models").mkdir()
    server = ServerProcess([tmp_path / "models"], "--model-control-mode=explicit")
    console = start_console(*console_flags(server))
    seen = visit(console, viewport={"width": 390, "height": 800}, color_scheme="dark")
    seen.page.get_by_role("heading", name="This server has no models yet").wait_for()
    assert "body--dark" in (seen.page.locator("body").get_attribute("class") or "")
    server.stop()


def test_a_server_with_keys_is_asked_with_the_key_that_a_browser_gives(
    tmp_path: Path, repository: Path, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    key = "0123456789abcdef-key"
    (tmp_path / "keys").write_text(key)
    (tmp_path / "keys").chmod(0o600)
    server = ServerProcess(
        [repository],
        "--model-control-mode=explicit",
        "--load-model=echo",
        f"--api-key-file={tmp_path / 'keys'}",
        "--api-key-exempt=health",
    )
    server.wait_ready()
    console = start_console(*console_flags(server))
    seen = visit(console)
    seen.page.get_by_role("alert").get_by_text("an API key is needed").wait_for()
    seen.page.get_by_role("button", name="API key").click()
    seen.page.locator(".q-dialog").get_by_label("API key", exact=True).fill(key)
    seen.page.get_by_role("button", name="Use them").click()
    row(seen, "echo").get_by_text("READY").wait_for()
    other = visit(console)
    other.page.get_by_role("alert").get_by_text("an API key is needed").wait_for()
    assert key not in console.output
    server.stop()


def test_behind_a_path_prefix(
    tmp_path: Path, server: ServerProcess, start_console: Callable[..., Console], visit: Callable[..., Visit]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [flag for flag in console_flags(server) if not flag.startswith("--port")]
    console = start_console(*flags, f"--port={port}", f"--public-url=http://127.0.0.1:{port}/tools/console")
    seen = visit(console)
    row(seen, "other").get_by_text("READY").wait_for()
    assert seen.page.url == f"http://127.0.0.1:{port}/tools/console/"


def asked(console: Console, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], str]:
    netloc = urlsplit(console.url).netloc
    connection = http.client.HTTPConnection(netloc, timeout=60)
    connection.request("GET", path, headers=headers or {})
    reply = connection.getresponse()
    body = reply.read().decode()
    connection.close()
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}, body


def test_a_link_opens_one_browser_and_a_cookie_goes_on(console: Console) -> None:
    link = console.links[-1]
    path = link.removeprefix(console.url)
    status, _, text = asked(console, "/")
    assert (status, "needs its link" in text) == (401, True)
    status, headers, _ = asked(console, path)
    assert status == 200
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    wait_until(lambda: console.links[-1] != link, "the console has printed the next link")
    assert asked(console, path)[0] == 401, "a link works once"
    assert asked(console, "/", {"Cookie": cookie.partition(";")[0]})[0] == 200
    assert asked(console, "/?token=wrong", {"Cookie": cookie.partition(";")[0]})[0] == 200, (
        "an old link in a history leads on"
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1.evil.example:1"},
    ],
)
def test_other_hosts_and_origins_are_refused_for_websockets_too(console: Console, headers: dict[str, str]) -> None:
    path = console.links[-1].removeprefix(console.url)
    _, answered, _ = asked(console, path)
    cookie = {"Cookie": answered["set-cookie"].partition(";")[0]}
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="
    }  # fmt: skip
    socket_path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert asked(console, "/", {**cookie, **headers})[0] == 403
    assert asked(console, socket_path, {**cookie, **upgrade, **headers})[0] == 403
    assert asked(console, socket_path, upgrade)[0] == 403, "without a session"
