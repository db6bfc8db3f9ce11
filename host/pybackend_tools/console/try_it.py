"""The part of a model's page that sends it a request, and shows the answer and programs that send the same request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nicegui import context, ui

from pybackend.errors import InferenceError, PybackendError, ServerError
from pybackend_client.connection import Connection
from pybackend_client.inference import Request, Response, infer, infer_stream
from pybackend_client.values import ModelTensor, Tensor
from pybackend_tools.console.answers import Stream, StreamView, show_output
from pybackend_tools.console.form import InputField, Options, optional_names
from pybackend_tools.console.frame import Page, heading, pre
from pybackend_tools.console.kept_requests import Kept, KeptRequests
from pybackend_tools.console.sample_programs import Server, programs_for

_TIMEOUT_S = 300.0
_MOST_ANSWER_BYTES = 64 * 1024 * 1024
_REFRESH_S = 0.2


class TryIt:
    """The form, the answer, and the programs."""

    def __init__(
        self, page: Page, model: str, version: str, metadata: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        self._page = page
        self._model, self._version = model, version
        self._decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        optional = optional_names(config)
        labelled = [each["name"] for each in config.get("output", ()) if each.get("label_filename")]
        self._outputs = [each["name"] for each in metadata.get("outputs", ())]
        self._stream: Stream | None = None
        self._view: StreamView | None = None
        self._wanted = {
            each["name"]: ModelTensor(each["name"], each["datatype"], tuple(map(int, each["shape"])))
            for each in metadata.get("inputs", ())
        }
        with ui.element("div").classes("cols"):
            with ui.element("section").classes("card") as form:
                form.props["aria-label"] = "Request"
                self._fields = [
                    InputField(wanted, optional=wanted.name in optional) for wanted in self._wanted.values()
                ]
                if not self._fields:
                    ui.label("This model takes no inputs.").classes("soft")
                self._options = Options(labelled, sequences="sequence_batching" in config)
                with ui.element("div").classes("line"):
                    self._button: Any = ui.button("Send", on_click=self._send).props("unelevated")
                    ui.button("Show as code", on_click=self._show_programs).props("flat")
                    ui.button("Keep", on_click=self._keep).props("flat")
                self._kept = KeptRequests(page.session.kept, (model, version), config, self._send_again)
            with ui.element("section").classes("card") as answer:
                answer.props["aria-label"] = "Answer"
                answer.props["aria-live"] = "polite"
                heading("Answer")
                with ui.element("div").classes("stack") as self._answer:
                    ui.label("Send a request to see the answer here.").classes("soft")
        self._code: Any = ui.element("section").classes("card")
        self._code.props["aria-label"] = "The same request as code"
        self._code.visible = False
        ui.timer(_REFRESH_S, self._refresh)
        context.client.on_delete(self._stop)

    def _stop(self) -> None:
        if self._stream is not None:
            self._stream.stopped = True

    def _refresh(self) -> None:
        if self._view is not None:
            self._view.refresh()

    async def _asked(self) -> tuple[Request, list[Tensor]] | None:
        """The request of the form, None after a mistake in it, which is shown."""
        try:
            made = await asyncio.to_thread(lambda: [field.tensor() for field in self._fields])
            tensors = [tensor for tensor in made if tensor is not None]
            classes = {} if self._decoupled else self._options.classes()
            inputs = {tensor.name: tensor for tensor in tensors}
            return Request(
                self._model, self._version, inputs, self._outputs if classes else (), self._options.parameters(),
                self._options.request_id(), classes=classes,
            ), tensors  # fmt: skip
        except ServerError as error:
            self._show_error(str(error))
            return None

    async def _send(self) -> None:
        asked = await self._asked()
        if asked is not None:
            self._options.step()
            await self._send_request(*asked)

    async def _send_again(self, kept: Kept) -> None:
        await self._send_request(kept.request, kept.tensors)

    async def _keep(self) -> None:
        asked = await self._asked()
        if asked is not None:
            self._kept.keep(*asked)

    async def _send_request(self, request: Request, tensors: Sequence[Tensor]) -> None:
        self._stop()
        access = replace(self._page.watch.access, most_bytes=_MOST_ANSWER_BYTES)
        connection = Connection(self._page.watch.settings.url, _TIMEOUT_S, "Is it still running?", access)
        self._button.props("loading")
        try:
            await (self._send_for_stream if self._decoupled else self._send_for_answer)(connection, request)
        finally:
            self._button.props(remove="loading")
        if self._code.visible:
            self._write_programs(request, tensors)

    async def _send_for_answer(self, connection: Connection, request: Request) -> None:
        began_s = time.perf_counter()
        try:
            response = await asyncio.to_thread(infer, connection, request)
        except (PybackendError, ValueError, KeyError, TypeError) as error:
            self._show_error(error.message if isinstance(error, InferenceError) else str(error))
            return
        self._show_response(response, request, (time.perf_counter() - began_s) * 1000)

    async def _send_for_stream(self, connection: Connection, request: Request) -> None:
        stream = self._stream = Stream()
        self._answer.clear()
        with self._answer:
            self._view = StreamView(stream)

        def read() -> None:
            try:
                for event in infer_stream(connection, request):
                    stream.add(event)
                    if stream.stopped:
                        stream.ended = "Stopped"
                        return
                stream.ended = "The stream has ended"
            except (PybackendError, ValueError, KeyError, TypeError) as error:
                stream.ended = str(error)

        await asyncio.to_thread(read)

    def _show_response(self, response: Response, request: Request, took_ms: float) -> None:
        self._view = None
        self._answer.clear()
        document = response.document
        words = [f"version {document.get('model_version', '?')}", f"{took_ms:.1f} ms"]
        words += [f"id {document['id']}"] if document.get("id") else []
        words += [f"{name} = {value}" for name, value in document.get("parameters", {}).items()]
        with self._answer:
            ui.label(", ".join(words)).classes("soft small").style("overflow-wrap:anywhere")
            if not response.outputs:
                ui.label("The response has no outputs.")
            for output in response.outputs:
                show_output(output, classes=output.name in request.classes)

    def _show_error(self, text: str) -> None:
        self._view = None
        self._answer.clear()
        with self._answer:
            first, _, rest = text.strip().partition("\n")
            ui.label(first).classes("banner").props('role="alert"')
            if rest.strip():
                pre(rest)

    async def _show_programs(self) -> None:
        asked = await self._asked()
        if asked is not None:
            self._code.visible = True
            self._write_programs(*asked)

    def _write_programs(self, request: Request, tensors: Sequence[Tensor]) -> None:
        watch = self._page.watch
        server = Server(watch.settings.url, watch.grpc_url, watch.access)
        programs = programs_for(server, request, tensors, self._wanted, decoupled=self._decoupled)
        self._code.clear()
        with self._code:
            heading("The same request as code")
            with ui.tabs().props("dense align=left no-caps inline-label outside-arrows mobile-arrows") as tabs:
                for title in programs.texts:
                    ui.tab(title)
            first = "generate" if self._decoupled else "curl"
            with ui.tab_panels(tabs, value=first).props('animated="false"'):
                for title, text in programs.texts.items():
                    with ui.tab_panel(title).classes("tight") as panel:
                        panel.props["aria-label"] = title
                        pre(text, wraps=True)
                        with ui.element("div").classes("line"):
                            ui.button("Copy", on_click=lambda text=text: ui.clipboard.write(text)).props("flat dense")
            if programs.files:
                ui.label("It reads these files, which lie where it is run:").classes("soft small")
                with ui.element("div").classes("line"):
                    for name, data in programs.files.items():
                        ui.button(name, on_click=lambda name=name, data=data: ui.download.content(data, name)).props(
                            "outline dense icon=download"
                        )
