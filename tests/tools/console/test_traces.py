"""The traces on a model's page: requests are traced on demand, and shown with the calls between models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess
from tests.tools.console.conftest import Console, Visit, console_flags, wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"
NUMBERS = {"inputs": [{"name": "VALUES", "datatype": "FP32", "shape": [3], "data": [1, 2, 6]}]}
NOTHING = {"inputs": [{"name": "VALUES", "datatype": "FP32", "shape": [0], "data": []}]}
SETTING = "/v2/models/ask_all/trace/setting"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models")
    shutil.copytree(EXAMPLES / "bls" / "model_repository", found, dirs_exist_ok=True)
    return found


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    found = ServerProcess([models], "--trace-config=mode=memory")
    found.wait_ready()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def console(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    pytest.importorskip("nicegui", reason="the console's packages are not installed: make test-console installs them")
    found = Console(tmp_path_factory.mktemp("console"), *console_flags(server))
    yield found
    assert found.stop() == 0
    assert "Traceback" not in found.output


def traces(seen: Visit, model: str = "ask_all") -> Any:
    page = seen.open(f"/model?name={model}&version=1")
    page.get_by_role("tab", name="Traces").click()
    return page


def test_a_request_is_traced_on_demand_and_shown_with_its_calls(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    before = server.get(SETTING).json
    page = traces(visit(console))
    page.get_by_text("No request to this model has been traced lately.").wait_for()
    page.get_by_role("combobox", name="How many requests").click()
    page.get_by_role("option", name="1 request", exact=True).click()
    page.get_by_role("button", name="Trace the next").click()
    page.get_by_text("Waiting for requests").wait_for()
    server.infer("ask_all", {"id": "<b>mine</b>", **NUMBERS})
    rows = page.get_by_role("list", name="The request, part by part").get_by_role("listitem")
    rows.nth(2).wait_for()
    texts = [each.inner_text() for each in rows.all()]
    assert [text.splitlines()[0] for text in texts] == ["ask_all", "mean", "median"]
    assert all(part in texts[0] for part in ("host", "queue", "compute", "output"))
    assert "<b>mine</b>" in page.get_by_label("Which request").first.input_value()
    steps = page.locator(".call .step")
    steps.nth(2).wait_for()
    assert [each.get_by_role("link").inner_text() for each in steps.all()] == ["ask_all", "mean", "median"]
    assert "computes" in steps.nth(1).inner_text()
    wait_until(lambda: server.get(SETTING).json == before, "the settings are those from before")


def test_a_failed_request_shows_its_error_and_a_page_that_closes_ends_the_tracing(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    seen = visit(console)
    page = traces(seen, "mean")
    page.get_by_role("button", name="Trace the next").click()
    page.get_by_text("Waiting for requests").wait_for()
    server.infer("mean", NOTHING)
    page.locator(".waterfall").get_by_text("no values have no mean").wait_for()
    setting = "/v2/models/mean/trace/setting"
    assert server.get(setting).json["trace_level"] == ["TIMESTAMPS"]
    page.close()
    wait_until(lambda: server.get(setting).json["trace_level"] == ["OFF"], "the tracing has ended")


def test_a_server_that_traces_by_itself_is_left_as_it_is(
    console: Console, server: ServerProcess, visit: Callable[..., Visit]
) -> None:
    own = {"trace_level": ["TIMESTAMPS"], "trace_rate": "7"}
    set_ = server.request("POST", "/v2/models/median/trace/setting", own).json
    page = traces(visit(console), "median")
    page.get_by_role("button", name="Trace the next").click()
    page.get_by_text("The server traces one of 7 requests already.").wait_for()
    assert server.get("/v2/models/median/trace/setting").json == set_


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "start it with --trace-config=mode=memory"),
        (("--trace-config=mode=memory", "--http-restricted-api=trace:admin-key=s3cret"), "This API is restricted"),
        (
            ("--trace-config=mode=memory", "--http-restricted-api=diagnostics:admin-key=s3cret"),
            "This API is restricted",
        ),
    ],
    ids=["without a place", "restricted traces", "restricted diagnostics"],
)
def test_what_a_server_refuses_is_grey_and_says_why(
    models: Path,
    flags: tuple[str, ...],
    reason: str,
    start_console: Callable[..., Console],
    visit: Callable[..., Visit],
) -> None:
    server = ServerProcess([models], *flags)
    server.wait_ready()
    page = traces(visit(start_console(*console_flags(server))))
    page.get_by_text(reason).wait_for()
    assert page.get_by_role("button", name="Trace the next").is_disabled()
    server.stop()
