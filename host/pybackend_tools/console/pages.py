"""The application: the pages, and the addresses at which they lie."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from nicegui import ui

from pybackend_tools.console import models_page
from pybackend_tools.console.frame import STYLE, Page
from pybackend_tools.console.model_page import ModelPage
from pybackend_tools.console.server_page import ServerPage
from pybackend_tools.console.settings import ConsoleSettings
from pybackend_tools.console.watch import Watches


def make_app(settings: ConsoleSettings) -> Callable[..., Awaitable[None]]:
    """The ASGI application of the pages, which need a session in their scope."""
    watches = Watches(settings)

    def models() -> None:
        models_page.show(Page(watches))

    def model(name: str = "", version: str = "") -> None:
        ModelPage(Page(watches), name, version).show()

    def server() -> None:
        ServerPage(Page(watches)).show()

    for path, build in (("/", models), ("/model", model), ("/server", server)):
        ui.page(path, title="pybackend", language="en-US", response_timeout=30)(build)
    ui.add_css(STYLE, shared=True)
    app: Any = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        app,
        title="pybackend",
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10,
        binding_refresh_interval=None,
    )
    return app  # type: ignore[no-any-return]
