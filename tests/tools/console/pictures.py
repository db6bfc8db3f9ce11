"""Makes the manual's pictures of the console: ``make pictures``. They are taken in a browser, of a real server."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.support.server import ServerProcess
from tests.tools.console.conftest import Console, console_flags

ROOT = Path(__file__).parents[3]
TARGET = ROOT / "docs" / "images" / "console"
PICTURE = ROOT / "examples" / "image_pipeline" / "right.png"
MOST_BYTES = 150_000

BROKEN = 'raise FileNotFoundError("labels.txt is missing beside model.py")\n'
BROKEN_CONFIG = """
backend: "python"
input [ { name: "X", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "Y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""


def send_picture(page: Any) -> None:
    page.locator("input[type=file]").set_input_files(PICTURE)
    page.get_by_alt_text("Preview of right.png").wait_for()
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output SCORES").locator(".fill, canvas").first.wait_for()


def send_and_show_code(page: Any) -> None:
    for name, value in (("INPUT0", "[1, 2, 3, 4]"), ("INPUT1", "[10, 20, 30, 40]")):
        page.get_by_label(f"Value of {name}").fill(value)
    page.get_by_role("button", name="Send").click()
    page.get_by_label("Output OUTPUT0").get_by_text("11  22  33  44").wait_for()
    page.get_by_role("button", name="Show as code").click()
    page.get_by_role("tab", name="Python, HTTP").click()


def stream(page: Any) -> None:
    page.get_by_label("Value of VALUES").fill("[3, 1, 4, 1, 5, 9, 2, 6]")
    page.get_by_label("Value of DELAYS_MS").fill("[10, 10, 10, 10, 10, 10, 10, 10]")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("The stream has ended").wait_for()


def fail(page: Any) -> None:
    page.get_by_label("Value of INPUT0").fill("[1, 2]")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").get_by_text("wants").wait_for()


def charts(server: ServerProcess) -> Callable[[Any], None]:
    body = {"inputs": [{"name": "PIXELS", "datatype": "FP32", "shape": [1, 24, 24], "data": [0.5] * 576}]}

    def show(page: Any) -> None:
        page.get_by_role("tab", name="Figures").click()
        for _ in range(10):
            for _ in range(40):
                server.infer("spot_net", body)
            page.wait_for_timeout(2000)

    return show


def steps(server: ServerProcess) -> Callable[[Any], None]:
    body = {"inputs": [{"name": "PICTURE", "datatype": "UINT8", "shape": [24, 24, 3], "data": [9] * 1728}]}

    def show(page: Any) -> None:
        page.get_by_role("tab", name="Figures").click()
        while "no requests yet" in page.locator(".steps").inner_text():
            server.infer("find_spot", body)

    return show


def traces(server: ServerProcess) -> Callable[[Any], None]:
    body = {"id": "42", "inputs": [{"name": "VALUES", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}

    def show(page: Any) -> None:
        server.infer("ask_all", body)  # both called models have run
        page.get_by_role("tab", name="Traces").click()
        page.get_by_role("button", name="Trace the next").click()
        page.get_by_text("Waiting for requests").wait_for()
        for _ in range(10):
            server.infer("ask_all", body)
        page.locator(".waterfall li").first.wait_for()
        page.get_by_text("Means of the last").wait_for()

    return show


def configuration(page: Any) -> None:
    page.get_by_role("tab", name="Configuration").click()
    page.get_by_label("Weight of 2").fill("1")
    page.get_by_label("Weight of 1").fill("9")


def log(page: Any) -> None:
    page.get_by_role("tab", name="Log").click()
    page.get_by_label("Log", exact=True).get_by_text("broken").first.wait_for()


def main() -> int:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pybackend-", dir="/tmp") as folder, sync_playwright() as playwright:
        models = Path(folder) / "models"
        for example in ("add_sub", "image_pipeline", "decoupled", "sequence", "canary"):
            shutil.copytree(ROOT / "examples" / example / "model_repository", models, dirs_exist_ok=True)
        for model in ("ask_all", "mean", "median"):
            shutil.copytree(ROOT / "examples" / "bls" / "model_repository" / model, models / model)
        shutil.copytree(models / "risk" / "1", models / "risk" / "2")
        with (models / "risk" / "config.pbtxt").open("a") as file:
            file.write("version_policy { all {} }\n")
        (models / "broken" / "1").mkdir(parents=True)
        (models / "broken" / "1" / "model.py").write_text(BROKEN)
        (models / "broken" / "config.pbtxt").write_text(BROKEN_CONFIG)
        server = ServerProcess(
            [models],
            "--model-control-mode=explicit",
            "--load-model=*",
            "--exit-on-error=false",
            "--trace-config=mode=memory",
        )
        server.wait_for("models are ready in", deadline_s=180)
        console = Console(Path(folder), *console_flags(server))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        wide, phone = {"width": 1180, "height": 720}, {"width": 390, "height": 780}
        shots: list[tuple[str, str, Any, str, Callable[[Any], None] | None]] = [
            ("models", "/", wide, "light", None),
            ("models-dark", "/", wide, "dark", None),
            ("models-phone", "/", phone, "light", None),
            ("picture", "/model?name=find_spot&version=1", wide, "light", send_picture),
            ("try", "/model?name=add_sub&version=1", wide, "light", send_and_show_code),
            ("try-phone", "/model?name=add_sub&version=1", phone, "dark", send_and_show_code),
            ("stream", "/model?name=repeat&version=1", wide, "light", stream),
            ("mistake", "/model?name=add_sub&version=1", wide, "light", fail),
            ("figures", "/model?name=spot_net&version=1", wide, "light", charts(server)),
            ("steps", "/model?name=find_spot&version=1", wide, "light", steps(server)),
            ("traces", "/model?name=ask_all&version=1", wide, "light", traces(server)),
            ("configuration", "/model?name=risk&version=2", {**wide, "height": 920}, "light", configuration),
            ("log", "/model?name=broken&version=1", wide, "light", log),
            ("server", "/server", wide, "light", None),
        ]
        context, cookies = browser.new_context(), []
        page = context.new_page()
        page.goto(console.links[-1])
        page.wait_for_url("**/")
        cookies = context.cookies()
        for name, path, size, scheme, prepare in shots:
            context = browser.new_context(viewport=size, color_scheme=scheme)
            context.set_default_timeout(180_000)
            context.add_cookies(cookies)
            page = context.new_page()
            page.goto(console.url + path)
            page.wait_for_timeout(4000)  # two looks at the server, so that there are rates
            if prepare is not None:
                prepare(page)
                page.wait_for_timeout(1500)  # the ends of animations
            page.mouse.move(0, 0)
            page.evaluate("window.scrollTo(0, 0)")
            page.screenshot(
                path=TARGET / f"{name}.png", full_page=name not in {"models-phone", "server", "steps", "configuration"}
            )
            context.close()
        browser.close()
        console.stop()
        server.stop()
    large = [path.name for path in TARGET.glob("*.png") if path.stat().st_size > MOST_BYTES]
    for name in large:
        sys.stderr.write(f"{name} has more than {MOST_BYTES:,} bytes\n")
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main())
