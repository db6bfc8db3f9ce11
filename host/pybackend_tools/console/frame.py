"""What all pages share: the bar, the banner for a server that is away, questions, and texts of strangers.

Texts of strangers (names, labels, outputs, logs) are only ever text of an element or a value of a property: never HTML,
never a part of a property's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nicegui import context, ui

from pybackend.errors import PybackendError, ServerError
from pybackend_client.connection import Connection, control_path
from pybackend_tools.console.gate import SESSION, Session
from pybackend_tools.console.watch import Watch, Watches

STYLE = (Path(__file__).parent / "style.css").read_text()

_CONTROL_TIMEOUT_S = 600.0
_REFRESH_S = 0.5


class Page:
    """One page in one browser."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches
        self.session: Session = context.client.request.scope[SESSION]
        self._root: str = context.client.request.scope.get("root_path", "")
        self.watch: Watch = watches.of(self.session)
        self._seen = -1
        self._on_look: list[Callable[[], Awaitable[None] | None]] = []
        self._banner: Any = None
        self.watch.open()
        context.client.on_delete(self._leave)

    async def ask(self, path: str, member: str) -> Any:
        """A member of a document of the server. Raises PybackendError if there is none."""
        found = await asyncio.to_thread(self.watch.server.get, path)
        if not isinstance(found, dict) or member not in found:
            raise ServerError(f"{self.watch.server.url} answers in a form that this console does not know")
        return found[member]

    def _leave(self) -> None:
        self.watch.close()

    def href(self, path: str, **query: str) -> str:
        """The address of a page of the console."""
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
        return f"{self._root}{path}{'?' if asked else ''}{asked}"

    @contextmanager
    def frame(self, title: str, current: str) -> Iterator[None]:
        """The page around its content. ``current``: the path of its entry in the bar."""
        ui.page_title(f"{title} - pybackend" if title else "pybackend")
        ui.colors(primary="#2f66d0", negative="#b3261e", positive="#1a7f4b")
        dark = ui.dark_mode(value=self.session.dark)
        with ui.header().classes("bar"):
            _link("pybackend", self.href("/")).classes("brand")
            with ui.element("nav") as nav:
                nav.props["aria-label"] = "Pages"
                for name, path in (("Models", "/"), ("Server", "/server")):
                    entry = _link(name, self.href(path))
                    if path == current:
                        entry.props["aria-current"] = "page"
            ui.space()
            ui.label(self.watch.settings.url).classes("where").props["title"] = self.watch.settings.url
            icon_button("key", "API key", self._ask_for_key)
            icon_button("contrast", "Light or dark", lambda: self._turn(dark))
        with ui.element("div").classes("page") as content:  # inside the landmark of NiceGUI's own
            self._banner = ui.label().classes("banner").props('role="alert"')
            self._banner.visible = False
            yield
        ui.skip_link("Skip to the page", target=content)
        self.on_look(self._show_trouble)
        ui.timer(_REFRESH_S, self._refresh)

    def on_look(self, show: Callable[[], Awaitable[None] | None]) -> None:
        """Call a function after each look at the server, and soon after the page has opened."""
        self._on_look.append(show)

    async def _refresh(self) -> None:
        if self.watch.looks == self._seen:
            return
        self._seen = self.watch.looks
        for show in self._on_look:
            wait = show()
            if wait is not None:
                await wait

    def _show_trouble(self) -> None:
        watch = self.watch
        text = watch.trouble
        if watch.is_locked:
            text += " The key symbol above takes one."
        elif text:
            text += ". The figures below are old."
        self._banner.text = text
        self._banner.visible = bool(text)

    def _turn(self, dark: Any) -> None:
        dark.value = not dark.value
        self.session.dark = dark.value

    def _ask_for_key(self) -> None:
        with ui.dialog() as dialog, ui.element("form").classes("card") as form:
            form.on("submit.prevent", lambda: self._enter_key(key.value or "", header.value or "", dialog))
            ui.label("API key").props('role="heading" aria-level="2"')
            _text("The server may want an API key, or a header for a restricted group. The console keeps them in memory, for this "
                  "browser only, until the console ends.").classes("soft small")  # fmt: skip
            key: Any = ui.input("API key").props('type="password" outlined dense autocomplete="off"')
            header: Any = ui.input("Header of a restricted group, as NAME: VALUE").props(
                'type="password" outlined dense autocomplete="off"'
            )
            with ui.element("div").classes("line"):
                ui.space()
                ui.button("Cancel", on_click=dialog.close).props("flat type=button")
                ui.button("Use them").props("unelevated type=submit")
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _enter_key(self, key: str, header: str, dialog: Any) -> None:
        name, colon, value = header.partition(":")
        entries = {**({"Authorization": f"Bearer {key.strip()}"} if key.strip() else {})}
        if colon:
            entries[name.strip()] = value.strip()
        odd = [
            each
            for pair in entries.items()
            for each in pair
            if not each.isascii() or not each.isprintable() or not each
        ]
        if odd or (header.strip() and not colon):
            say("A key is visible ASCII characters, and a header NAME: VALUE", bad=True)
            return
        dialog.close()
        self.session.headers = entries
        context.client.run_javascript("location.reload()")

    async def control(self, model: str, action: str) -> None:
        """Load, reload or unload a model after a question."""
        question = {
            "load": f"Load {model}?",
            "reload": f"Load {model} again from its files? Requests go on; the new state takes over when it is ready.",
            "unload": f"Unload {model}? It answers the requests that it has, and refuses all others.",
        }[action]
        if not await confirmed(question, action.capitalize(), hurts=action == "unload"):
            return
        connection = Connection(self.watch.settings.url, _CONTROL_TIMEOUT_S, "", self.watch.access)
        path = f"{control_path(model)}/{'unload' if action == 'unload' else 'load'}"
        say(f"{action.capitalize()} {model} ...")
        try:
            await asyncio.to_thread(connection.post_json, path, {})
        except PybackendError as error:
            say(f"{model}: {error}", bad=True)
        else:
            say(f"{model}: done")
        self.watch.look_now()


async def confirmed(question: str, action: str, *, hurts: bool) -> bool:
    """Ask, and return whether the answer was yes."""
    with ui.dialog() as dialog, ui.element("div").classes("card").props('role="alertdialog"') as card:
        card.props["aria-label"] = question
        _text(question)
        with ui.element("div").classes("line"):
            ui.space()
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(action, on_click=lambda: dialog.submit(True)).props(
                f"unelevated color={'negative' if hurts else 'primary'}"
            )
    dialog.on("hide", dialog.delete)
    return bool(await dialog)


def say(text: str, *, bad: bool = False) -> None:
    """A short message at the edge of the page; a bad one stays until it is closed."""
    short = text if len(text) <= 1000 else f"{text[:1000]} ..."
    if bad:
        ui.notify(short, type="negative", timeout=0, close_button="Close", multi_line=True)
    else:
        ui.notify(short, timeout=2500)


def heading(text: str, level: int = 2) -> Any:
    """A heading."""
    return _tag(f"h{level}", text)


def _tag(tag: str, text: str) -> Any:
    element = ui.label(text)
    element.tag = tag
    return element


def _text(text: str) -> Any:
    return _tag("p", text).style("margin:0")


paragraph = _text


def _link(text: str, href: str) -> Any:
    element = _tag("a", text)
    element.props["href"] = href
    return element


link = _link


def pre(text: str, *, wraps: bool = False) -> Any:
    """Text as it is."""
    return _tag("pre", text).classes("text wrap" if wraps else "text").props('tabindex="0"')


def icon_button(icon: str, label: str, act: Callable[[], Any]) -> Any:
    """A button that shows an icon; the label is for tooltips and screen readers."""
    button = ui.button(icon=icon, on_click=act, color=None).props("flat round dense")
    button.props["aria-label"] = label
    button.props["title"] = label
    return button


def state(value: str) -> Any:
    """The state of a version."""
    return ui.label(value or "not loaded").classes(f"state {value if value.isalpha() else ''}")


def facts(pairs: list[tuple[str, str]]) -> None:
    """Names and values below each other."""
    with ui.element("dl").classes("facts"):
        for name, value in pairs:
            _tag("dt", name)
            _tag("dd", value)


def figures(pairs: list[tuple[str, str]]) -> list[Any]:
    """Names and numbers beside each other; returns the numbers' elements."""
    shown = []
    with ui.element("dl").classes("figures"):
        for name, value in pairs:
            with ui.element("div"):
                _tag("dt", name)
                shown.append(_tag("dd", value))
    return shown


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A figure as text."""
    return "-" if value is None else f"{value:,.{digits}f}{f' {unit}' if unit else ''}"


def megabytes(size: float | None) -> str:
    """A size in memory as text."""
    return "-" if size is None else f"{size / 1e6:,.0f} MB"
