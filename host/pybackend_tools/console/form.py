"""The form of a request, made from the model's metadata: a field for each input."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from nicegui import ui

from pybackend.errors import ServerError
from pybackend_client.inference import array_of
from pybackend_client.values import (
    ModelTensor,
    Tensor,
    file_value,
    is_npy,
    json_value,
    random_tensor,
    shape_text,
    tensor_of,
    text_value,
)
from pybackend_tools.console import pictures
from pybackend_tools.console.frame import heading, say
from pybackend_tools.console.gate import MOST_UPLOAD_BYTES
from pybackend_wire.dtypes import DATATYPES

_MOST_TYPED = 200_000
_MOST_SAMPLE = 64
_MOST_TEXT_FILE_BYTES = 8 * 1024 * 1024
"""Bound of a file of JSON or CSV: each of its values is an object of Python, many times as large as its text."""

_LONGEST_NUMBER = 19
_VALUE, _FILE, _RANDOM, _NONE = "Value", "File", "Random", "Leave out"


class InputField:
    """The field of one input."""

    def __init__(self, wanted: ModelTensor, *, optional: bool) -> None:
        self.wanted = wanted
        self._file: tuple[str, bytes] | None = None
        self._layout = pictures.layout_of(wanted)
        elements = int(np.prod([max(1, size) for size in wanted.shape], dtype=np.float64))
        is_text = wanted.datatype == "BYTES"
        modes = [_VALUE, _FILE, *([] if is_text else [_RANDOM]), *([_NONE] if optional else [])]
        first = (
            _NONE
            if optional
            else _FILE
            if self._layout is not None
            else _VALUE
            if elements <= _MOST_SAMPLE
            else _RANDOM
        )
        with ui.element("section").classes("input tight") as section:
            section.props["aria-label"] = f"Input {wanted.name}"
            with ui.element("div").classes("line"):
                heading(wanted.name, 3)
                ui.label(f"{wanted.datatype} {shape_text(wanted.shape)}").classes("soft small mono")
                ui.element("div").style("flex:1")
                self._mode: Any = ui.toggle(modes, value=first, on_change=self._show_mode).props("flat dense no-caps")
                self._mode.classes("modes").props["aria-label"] = f"How {wanted.name} is given"
            self._typed: Any = self._typed_field(elements)
            self._note: Any = ui.label().classes("soft small")
            with ui.element("div").classes("tight") as self._file_part:
                self._make_file_part()
        self._show_mode()

    def _typed_field(self, elements: int) -> Any:
        if self.wanted.datatype == "BYTES":
            field: Any = ui.textarea(placeholder="Text, or a JSON list of texts").props("autogrow")
        elif elements == 1 and self._is_one:
            field = ui.input(value=self._sample()).props("spellcheck=false")
        else:
            field = (
                ui.textarea(value=self._sample() if elements <= _MOST_SAMPLE else "")
                .props("autogrow spellcheck=false")
                .classes("mono")
            )
        field.props(f"outlined dense maxlength={_MOST_TYPED}")
        field.props["aria-label"] = f"Value of {self.wanted.name}"
        return field

    @property
    def _is_one(self) -> bool:
        """True if the input takes one element for each item of a batch."""
        return all(size == 1 for size in self.wanted.shape[-1:])

    def _sample(self) -> str:
        """Random values as a person would write them."""
        if self.wanted.datatype not in DATATYPES:
            return ""
        tensor = random_tensor(self.wanted)
        values = array_of(tensor.data, tensor.datatype).reshape(tensor.shape)
        if values.dtype.kind == "f":
            values = np.round(values.astype(np.float64), 2)
        while values.ndim > 1 and self.wanted.shape[len(self.wanted.shape) - values.ndim] < 0:
            values = values[0]  # the batch dimension may be left out
        return json.dumps(values.ravel().tolist()[0] if values.size == 1 and self._is_one else values.tolist())

    def _make_file_part(self) -> None:
        kinds = "a picture, .npy, .json or .csv" if self._layout is not None else ".npy, .json or .csv"
        if self.wanted.datatype == "BYTES":
            kinds = "any file as one element, .npy or .json"
        with ui.element("div").classes("line"):
            upload: Any = ui.upload(
                on_upload=self._take, on_rejected=self._refuse, auto_upload=True, max_file_size=MOST_UPLOAD_BYTES
            ).style("display:none")
            button = ui.button("Choose a file", on_click=lambda: upload.run_method("pickFiles")).props("outline dense")
            button.props["aria-label"] = f"Choose a file for {self.wanted.name}"
            self._file_name: Any = ui.label(kinds).classes("soft small")
        self._preview: Any = ui.element("img").classes("answer").style("max-height:10rem;align-self:flex-start")
        self._preview.visible = False
        with ui.element("div").classes("line") as self._choices:
            is_float = self.wanted.datatype in {"FP16", "FP32", "FP64", "BF16"}
            self._scale: Any = ui.select(
                list(pictures.SCALES), value="0 to 1" if is_float else "0 to 255", label="Values"
            )
            self._fit: Any = ui.select(["Stretch", "Cut the middle out"], value="Stretch", label="Proportions")
            for choice in (self._scale, self._fit):
                choice.props("outlined dense options-dense").style("min-width:10rem")
            self._scale.visible = is_float
            self._fit.visible = self._layout is not None and min(self._layout.height, self._layout.width) > 0
            ui.label("" if self._layout is None else str(self._layout)).classes("soft small")
        self._choices.visible = False

    def _show_mode(self) -> None:
        mode = self._mode.value
        self._typed.visible = mode == _VALUE
        self._file_part.visible = mode == _FILE
        self._note.visible = mode in {_RANDOM, _NONE}
        self._note.text = "new random values with each request" if mode == _RANDOM else "this input is optional"

    async def _take(self, event: Any) -> None:
        data = await event.file.read()
        await asyncio.to_thread(self._keep, PurePosixPath(event.file.name).name, data)

    def _keep(self, name: str, data: bytes) -> None:
        self._file = (name, data)
        text, picture = f"{name}, {len(data):,} bytes", None
        try:
            picture = pictures.thumbnail(data)
            tensor_of(self._file_value(name, data), self.wanted)
        except ServerError as error:
            self._file, picture, text = None, None, f"{name} was refused: {error}"
        self._file_name.text = text
        self._preview.visible = picture is not None
        self._choices.visible = picture is not None and self._layout is not None
        if picture is not None:
            self._preview.props["src"] = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            self._preview.props["alt"] = f"Preview of {name}"

    def _refuse(self) -> None:
        say(f"A file may have {MOST_UPLOAD_BYTES >> 20} MB at most here. Larger ones: `pybackend infer`", bad=True)

    def tensor(self) -> Tensor | None:
        """The input's tensor, None if it is left out. Raises ServerError if the value does not fit."""
        mode = self._mode.value
        if mode == _NONE:
            return None
        if mode == _RANDOM:
            return random_tensor(self.wanted)
        if mode == _VALUE:
            return tensor_of(self._typed_value(), self.wanted)
        if self._file is None:
            raise ServerError(f"input '{self.wanted.name}' needs a file: choose one, or type a value")
        return tensor_of(self._file_value(*self._file), self.wanted)

    def _typed_value(self) -> Any:
        text = self._typed.value or ""
        if self.wanted.datatype == "BYTES":
            return text if not text.lstrip().startswith("[") else text_value(text.strip(), self.wanted)
        if not text.strip():
            raise ServerError(f"input '{self.wanted.name}' wants {self.wanted}: type a value, or choose random ones")
        return text_value(text.strip().replace("True", "true").replace("False", "false"), self.wanted)

    def _file_value(self, name: str, data: bytes) -> Any:
        if self._layout is not None and pictures.opened(data) is not None:
            crops = self._fit.value != "Stretch"
            return pictures.array_of_picture(data, self.wanted, self._layout, self._scale.value, crops=crops)
        is_text = self.wanted.datatype != "BYTES" or name.endswith(".json")
        if is_text and not is_npy(data) and len(data) > _MOST_TEXT_FILE_BYTES:
            raise ServerError(
                f"input '{self.wanted.name}': a file of JSON or CSV may have {_MOST_TEXT_FILE_BYTES >> 20} MB at most here: save larger "
                "arrays with numpy.save()"
            )
        return file_value(data, Path(name), self.wanted)


class Options:
    """What a request has beside its inputs: id, parameters, a sequence, and classes instead of scores."""

    def __init__(self, labelled: list[str], *, sequences: bool) -> None:
        self._sequences = sequences
        self._classes: dict[str, Any] = {}
        if sequences:
            with ui.element("div").classes("line"):
                self._sequence: Any = ui.input("Sequence", value="1").props("outlined dense").style("width:8rem")
                self._start: Any = ui.checkbox("starts", value=True)
                self._end: Any = ui.checkbox("ends")
                for box in (self._start, self._end):
                    box.props["aria-label"] = f"The request {box.text} its sequence"
        for name in labelled:
            field: Any = (
                ui.number("Classes", value=3, min=0, max=1000, precision=0).props("outlined dense").style("width:10rem")
            )
            field.props["label"] = f"Best classes of {name}"
            field.props["hint"] = "0 for all scores"
            self._classes[name] = field
        with (
            ui.expansion("Id and parameters").props("dense dense-toggle header-class=soft").style("margin:0 -.9rem"),
            ui.element("div").classes("tight"),
        ):
            self._id: Any = ui.input("Id").props("outlined dense maxlength=1000")
            self._parameters: Any = ui.input("Parameters, a JSON object", placeholder='{"temperature": 0.5}').props(
                "outlined dense maxlength=20000"
            )

    def request_id(self) -> str:
        """The request's id, ``""`` for none."""
        return (self._id.value or "").strip()

    def classes(self) -> dict[str, int]:
        """The number of classes by output."""
        return {name: int(field.value) for name, field in self._classes.items() if field.value}

    def parameters(self) -> dict[str, Any]:
        """The request's parameters. Raises ServerError if they are none."""
        found: dict[str, Any] = {}
        text = (self._parameters.value or "").strip()
        if text:
            try:
                given = json_value(text)
            except ValueError as error:
                raise ServerError(f"the parameters are no JSON: {error}") from None
            found = given if isinstance(given, dict) else {"": None}
            if not all(isinstance(each, str | int | float | bool) for each in found.values()):
                raise ServerError(
                    'the parameters are a JSON object of texts, numbers and truth values, such as {"temperature": 0.5}'
                )
        if self._sequences:
            sequence = (self._sequence.value or "").strip()
            if not sequence:
                raise ServerError("a request to this model belongs to a sequence: write a number or a text as its name")
            found["sequence_id"] = (
                int(sequence) if sequence.isdecimal() and len(sequence) <= _LONGEST_NUMBER else sequence
            )
            found["sequence_start"], found["sequence_end"] = bool(self._start.value), bool(self._end.value)
        return found

    def step(self) -> None:
        """A request was sent: the next one of a sequence does not start it, unless this one ended it."""
        if self._sequences:
            self._start.value = bool(self._end.value)


def optional_names(config: Mapping[str, Any]) -> set[str]:
    """The inputs that a request may leave out."""
    return {each["name"] for each in config.get("input", ()) if each.get("optional")}
