"""Requests that can be sent again: those that somebody has kept, and the samples of a model's warm-up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from nicegui import ui

from pybackend.errors import ServerError
from pybackend_client.inference import Request
from pybackend_client.values import ModelTensor, Tensor, random_tensor, shape_text
from pybackend_tools.console.frame import icon_button, say
from pybackend_tools.console.pictures import MOST_ELEMENTS
from pybackend_wire.bytes_tensor import LENGTH_BYTES
from pybackend_wire.dtypes import BY_CONFIG_NAME, DATATYPES

_MOST_KEPT, _MOST_KEPT_BYTES = 50, 64 * 1024 * 1024


@dataclass(frozen=True, eq=False)
class Kept:
    """A request under a title."""

    title: str
    request: Request = field(repr=False)
    tensors: Sequence[Tensor] = field(repr=False)


class KeptRequests:
    """The list of a model's page.

    ``kept``: what this browser has kept, of all models. ``place``: name and version of the model. ``send`` sends one
    again.
    """

    def __init__(
        self,
        kept: list[Kept],
        place: tuple[str, str],
        config: Mapping[str, Any],
        send: Callable[[Kept], Awaitable[None]],
    ) -> None:
        self._kept, self._place, self._send = kept, place, send
        self._samples: Sequence[Mapping[str, Any]] = config.get("model_warmup", ())
        self._config = config
        self._part: Any = ui.element("section").classes("tight")
        self._part.props["aria-label"] = "Requests to send again"
        self._draw()

    def keep(self, request: Request, tensors: Sequence[Tensor]) -> None:
        """Keep a request."""
        size = sum(len(tensor.data) for each in self._kept for tensor in (*each.tensors, *tensors))
        if len(self._kept) >= _MOST_KEPT or size > _MOST_KEPT_BYTES:
            say(f"{_MOST_KEPT} requests are kept at most, with {_MOST_KEPT_BYTES >> 20} MB: remove some", bad=True)
            return
        inputs = ", ".join(f"{each.name} {shape_text(each.shape)}" for each in tensors)
        words = [time.strftime("%H:%M:%S"), *([request.request_id] if request.request_id else []), inputs]
        self._kept.append(Kept(" ".join(words), request, tensors))
        self._draw()

    def _draw(self) -> None:
        own = [each for each in self._kept if (each.request.model, each.request.version) == self._place]
        self._part.clear()
        self._part.visible = bool(own or self._samples)
        with self._part:
            for sample in self._samples:
                name = str(sample.get("name", ""))
                with ui.element("div").classes("line"):
                    ui.label(f"warm-up sample {name}").classes("small").style("flex:1;overflow-wrap:anywhere")
                    icon_button("replay", f"Replay sample {name}", partial(self._send_sample, sample))
            for each in own:
                with ui.element("div").classes("line"):
                    ui.label(each.title).classes("small").style("flex:1;overflow-wrap:anywhere")
                    icon_button("replay", f"Replay: {each.title}", partial(self._send, each))
                    icon_button("close", f"Remove: {each.title}", partial(self._remove, each))

    async def _send_sample(self, sample: Mapping[str, Any]) -> None:
        try:
            tensors = sample_tensors(sample, batches=bool(self._config.get("max_batch_size")))
        except ServerError as error:
            say(str(error), bad=True)
            return
        await self._send(
            Kept(
                str(sample.get("name", "")),
                Request(*self._place, inputs={each.name: each for each in tensors}),
                tensors,
            )
        )

    def _remove(self, kept: Kept) -> None:
        self._kept.remove(kept)
        self._draw()


def sample_tensors(sample: Mapping[str, Any], *, batches: bool) -> list[Tensor]:
    """The inputs of one request of a warm-up sample.

    Raises ServerError if they lie in the model's files, or are too large.
    """
    batch = (1,) if batches else ()
    return [_sample_tensor(each, spec, batch) for each, spec in sample.get("inputs", {}).items()]


def _sample_tensor(name: str, spec: Mapping[str, Any], batch: tuple[int, ...]) -> Tensor:
    if file := spec.get("input_data_file"):
        raise ServerError(
            f"the sample's values of '{name}' lie in the model's file warmup/{file}: choose that file in the form"
        )
    datatype = BY_CONFIG_NAME[spec["data_type"]].name
    wanted = ModelTensor(name, datatype, (*batch, *map(int, spec.get("dims", ()))))
    count = prod(wanted.shape)
    if count > MOST_ELEMENTS:
        raise ServerError(f"the sample's input '{name}' has more than {MOST_ELEMENTS:,} elements")
    if not spec.get("zero_data"):
        return random_tensor(wanted)
    size = DATATYPES[datatype].itemsize or LENGTH_BYTES  # a text of no letters is its length
    return Tensor(name, datatype, wanted.shape, bytes(size * count))
