"""The part of the server's page with the findings of ``pybackend doctor`` on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from nicegui import ui

from pybackend.errors import PybackendError
from pybackend_tools.console.frame import Page, heading, paragraph

_TIMEOUT_S = 120.0
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_ELSEWHERE = "The server runs on another machine: type `pybackend doctor` there."
_FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
"""The server's own ports are in use by the server."""


class Checks:
    """The findings. They appear after a press of the button."""

    def __init__(self, page: Page) -> None:
        self._page = page
        url = page.watch.server.url
        is_here = url.startswith("unix:") or urlsplit(url).hostname in _HERE
        with ui.element("section").classes("card"):
            with ui.element("div").classes("line"):
                heading("Checks of this machine and of the models' files")
                ui.element("div").style("flex:1")
                self._button: Any = ui.button("Check now", on_click=self._check).props("outline dense")
                self._button.enabled = is_here
            self._note: Any = paragraph("" if is_here else _ELSEWHERE).classes("soft").props('role="status"')
            if is_here:
                self._note.text = (
                    "`pybackend doctor` reads files and tries out what the kernel permits. It runs no code of a model."
                )
            self._rows: Any = ui.element("div").classes("stack")

    async def _check(self) -> None:
        self._button.props("loading")
        try:
            findings = json.loads(await _output(await self._repositories()))
            self._show(findings)
        except (OSError, ValueError, KeyError, TypeError, TimeoutError) as error:
            self._note.text = f"`pybackend doctor` has not answered: {str(error) or 'it took too long'}"
        finally:
            self._button.props(remove="loading")

    async def _repositories(self) -> list[str]:
        """The server's repositories on this machine, none if it does not tell."""
        with suppress(PybackendError, KeyError, TypeError):
            rows = await self._page.ask("/v2/diagnostics/settings", "settings")
            value = next((row["value"] for row in rows if row["name"] == "--model-repository"), "")
            return [each for each in value.split(", ") if each and "://" not in each]
        return []

    def _show(self, findings: Sequence[Mapping[str, str]]) -> None:
        good = sum(each["status"] == "ok" for each in findings)
        self._note.text = f"{good} of {len(findings)} checks have found nothing to say."
        groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for each in findings:
            if each["status"] != "ok":
                groups.setdefault((each["status"], each["advice"]), []).append(each)
        self._rows.clear()
        with self._rows:
            for (status, advice), group in groups.items():
                with ui.element("div").classes("tight"):
                    layers = ", ".join(each["layer"] for each in group)
                    ui.label(layers).classes(f"finding {'bad' if status == 'fail' else ''}")
                    if len(group) == 1:
                        paragraph(group[0]["found"])
                    paragraph(advice).classes("soft small").style("margin:0;overflow-wrap:anywhere")


async def _output(repositories: Sequence[str]) -> bytes:
    """The output of ``pybackend doctor --json``. Raises OSError or TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "pybackend", "doctor", "--json", *_FREE_PORTS, *(f"--model-repository={each}" for each in repositories),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output
