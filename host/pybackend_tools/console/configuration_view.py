"""The part of a model's page about its configuration, in force and in its file, and about the processes that run it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend.modelconfig.normalisation import minimal_document
from pybackend.modelconfig.parser import format_config_text, parse_config_json
from pybackend_client.connection import model_path
from pybackend_tools.console.frame import Page, facts, heading, megabytes, paragraph, pre
from pybackend_tools.console.traffic import TrafficCard

_GRANTS = {
    "off": "all that the server may do",
    "standard": "reading the system's files, writing its own directory, temporary files and caches of libraries, the network, and programs; "
    "not the server, other models, nor hidden files",
    "strict": "its own files and those of its environment; no network, no further processes",
}
_OPTION = "SANDBOX"


class ConfigurationView:
    """The panel of one version of a model."""

    def __init__(self, page: Page, model: str, version: str) -> None:
        self._page, self._model, self._version = page, model, version

    async def show(self, panel: Any, config: Mapping[str, Any], trouble: str) -> None:
        """Fill a panel. ``config``: the one in force; ``trouble``: why there is none."""
        path, asked = model_path(self._model, self._version), f"model={quote(self._model, safe='')}"
        file, file_trouble = await self._answer(f"/v2/diagnostics/configuration?{asked}")
        python, _ = await self._answer(f"{path}/environment")
        sandbox, _ = await self._answer(f"{path}/sandbox")
        environment: Mapping[str, Any] = {}
        environment_trouble = ""
        if python:
            environment, environment_trouble = await self._answer(
                f"/v2/diagnostics/environment?{asked}&version={quote(self._version, safe='')}"
            )
        panel.clear()
        with panel, ui.element("div").classes("stack"):
            with ui.element("div").classes("cols"):
                _show_text("In force", _config_text(config), trouble)
                _show_text("In its file", file.get("text"), file_trouble, place=str(file.get("path", "")))
            traffic = TrafficCard(self._page, self._model) if "ensemble_scheduling" not in config else None
            if python or sandbox:
                _show_sandbox(config, sandbox)
                _show_environment(python, environment, environment_trouble)
        if traffic is not None:
            await traffic.show()

    async def _answer(self, path: str) -> tuple[Mapping[str, Any], str]:
        try:
            found = await asyncio.to_thread(self._page.watch.server.get, path)
        except PybackendError as error:
            return {}, str(error)
        return (found, "") if isinstance(found, dict) else ({}, "the server answers in another form")


def _show_text(title: str, text: str | None, trouble: str, *, place: str = "") -> None:
    with ui.element("section").classes("card"):
        heading(title)
        if place:
            paragraph(place).classes("soft small").style("overflow-wrap:anywhere")
        if trouble or text is None:
            paragraph(trouble or "There is no such file: the server has made the configuration by itself.").classes(
                "soft"
            )
        else:
            pre(text)


def _config_text(config: Mapping[str, Any]) -> str:
    """A configuration as config.pbtxt, without the fields that a load fills in.

    As JSON if the server is another one.
    """
    try:
        return format_config_text(minimal_document(parse_config_json(dict(config), "the server's configuration")))
    except PybackendError:
        return json.dumps(config, indent=2, ensure_ascii=False)


def _show_sandbox(config: Mapping[str, Any], sandbox: Mapping[str, Any]) -> None:
    level = str(sandbox.get("level", "-"))
    options = {
        name: str(each.get("string_value", ""))
        for name, each in config.get("parameters", {}).items()
        if name.startswith(_OPTION)
    }
    with ui.element("section").classes("card"):
        heading("Sandbox")
        facts([
            ("Level", level),
            *([("Grants", _GRANTS[level])] if level in _GRANTS else []),
            *options.items(),
            *((f"Not in force: {layer}", str(why)) for layer, why in (sandbox.get("not_in_force") or {}).items()),
        ])  # fmt: skip


def _show_environment(python: Mapping[str, Any], environment: Mapping[str, Any], trouble: str) -> None:
    archive, size = environment.get("archive"), environment.get("archive_bytes")
    packages = environment.get("packages") or {}
    with ui.element("section").classes("card"):
        heading("Environment")
        facts([
            ("Python", str(python.get("python", "-"))), ("numpy", str(python.get("numpy", "-"))),
            *([("Interpreter", str(environment["interpreter"]))] if "interpreter" in environment else []),
            ("Environment", str(archive or python.get("path") or "the server's")),
            *([("Size of the archive", megabytes(size))] if size is not None else []),
        ])  # fmt: skip
        if trouble:
            paragraph(trouble).classes("soft")
        elif packages:
            with (
                ui.expansion(f"{len(packages)} packages")
                .props("dense dense-toggle header-class=soft")
                .style("margin:0 -.9rem")
            ):
                pre("\n".join(f"{name}=={version}" for name, version in sorted(packages.items())))
