"""Pictures as tensors, and tensors as pictures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pybackend.errors import ServerError
from pybackend_client.values import ModelTensor
from pybackend_wire.dtypes import DATATYPES

MOST_PIXELS = 40_000_000

MOST_ELEMENTS = 16_000_000
"""Bound of a tensor that the console makes."""

_LONGEST_SIDE = 20_000
"""Each row of a picture costs additional memory, and is resized separately."""

SCALES = {"0 to 255": (0.0, 255.0), "0 to 1": (0.0, 1.0), "-1 to 1": (-1.0, 1.0), "ImageNet": (0.0, 1.0)}
"""The values of black and white; ImageNet's are also divided by the deviations of that set."""

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_SHOWN = 4096
_LEAST_SHOWN = 8


@dataclass(frozen=True)
class Layout:
    """The picture that an input takes."""

    height: int  # -1 for any
    width: int  # -1 for any
    channels: int  # 1 for shades of grey
    channels_first: bool
    has_axis: bool  # shades of grey may have an axis of one channel, or none
    rank: int

    def __str__(self) -> str:
        kind = "shades of grey" if self.channels == 1 else "colours"
        if self.height < 0 or self.width < 0:
            return f"keeps its size, in {kind}"
        return f"becomes {self.width} x {self.height}, in {kind}"


def layout_of(wanted: ModelTensor) -> Layout | None:
    """How a picture lies in an input, None if the input can be none."""
    dtype = DATATYPES[wanted.datatype].numpy if wanted.datatype in DATATYPES else None
    if wanted.datatype in {"BYTES", "BOOL"} or (dtype is None and wanted.datatype != "BF16"):
        return None
    shape = wanted.shape[1:] if len(wanted.shape) == 4 else wanted.shape
    if len(shape) == 3 and shape[2] in _CHANNELS:
        return Layout(shape[0], shape[1], shape[2], False, True, len(wanted.shape))
    if len(shape) == 3 and shape[0] in _CHANNELS:
        return Layout(shape[1], shape[2], shape[0], True, True, len(wanted.shape))
    if len(shape) == 3 and shape[0] == -1 and len(wanted.shape) == 3 and min(shape[1:]) >= _LEAST_SHOWN:
        return Layout(shape[1], shape[2], 1, False, False, 3)
    if len(shape) == 3 and shape == (-1, -1, -1):
        return Layout(-1, -1, 3, False, True, len(wanted.shape))
    if len(shape) == 2 and min(shape) >= _LEAST_SHOWN:
        return Layout(shape[0], shape[1], 1, False, False, 2)
    return None


def opened(data: bytes) -> Image.Image | None:
    """The picture in a file, which has not been decoded yet; None if it is none.

    Raises ServerError for a picture with too many pixels, or with too long a side.
    """
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise _too_large() from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return None
    if picture.width * picture.height > MOST_PIXELS:
        raise _too_large()
    if max(picture.size) > _LONGEST_SIDE:
        raise ServerError(
            f"the picture has {picture.width} x {picture.height} pixels: a side may have {_LONGEST_SIDE:,}, cut it first"
        )
    return picture


def _too_large() -> ServerError:
    return ServerError(f"the picture has more than {MOST_PIXELS // 1_000_000} million pixels: make it smaller first")


def array_of_picture(data: bytes, wanted: ModelTensor, layout: Layout, scale: str, *, crops: bool) -> np.ndarray:
    """The picture in a file as an input takes it.

    ``crops``: cut the middle out to get the input's proportions, instead of stretching. Raises ServerError if it cannot
    be read.
    """
    picture = opened(data)
    if picture is None:
        raise ServerError(f"input '{wanted.name}': the file is no picture")
    try:
        turned = ImageOps.exif_transpose(picture).convert(_CHANNELS[layout.channels])
    except (OSError, ValueError, SyntaxError) as error:
        raise ServerError(f"input '{wanted.name}': the picture is broken: {error}") from None
    size = (turned.width if layout.width < 0 else layout.width, turned.height if layout.height < 0 else layout.height)
    if size[0] * size[1] * layout.channels > MOST_ELEMENTS:
        raise ServerError(
            f"input '{wanted.name}' would have more than {MOST_ELEMENTS:,} elements: make the picture smaller first"
        )
    if size != turned.size:
        turned = ImageOps.fit(turned, size) if crops else turned.resize(size)
    array = _scaled(np.asarray(turned), scale, wanted)
    if layout.channels == 1 and layout.has_axis:
        array = array[:, :, np.newaxis]
    if layout.channels_first:
        array = array.transpose(2, 0, 1)
    return array.reshape((1,) * (layout.rank - array.ndim) + array.shape)


def _scaled(array: np.ndarray, scale: str, wanted: ModelTensor) -> np.ndarray:
    black, white = SCALES[scale]
    dtype = np.dtype(np.float32) if wanted.datatype == "BF16" else DATATYPES[wanted.datatype].numpy
    assert dtype is not None
    if dtype.kind != "f":
        return array.astype(dtype)
    values = array.astype(np.float32) / 255 * (white - black) + black
    if scale == "ImageNet" and array.ndim == 3 and array.shape[2] == 3:
        values = (values - np.array(_IMAGENET_MEAN, np.float32)) / np.array(_IMAGENET_DEVIATION, np.float32)
    return values.astype(dtype)


def picture_of_array(values: np.ndarray) -> bytes | None:
    """A tensor as a PNG, None if it does not look like a picture."""
    array = values
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.dtype.kind not in "uif" or not array.size:
        return None
    if array.ndim == 3 and array.shape[0] in {1, 3} and array.shape[2] not in {1, 3, 4}:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in {3, 4}):
        return None
    if min(array.shape[:2]) < _LEAST_SHOWN or max(array.shape[:2]) > _MOST_SHOWN:
        return None
    picture = Image.fromarray(array if array.dtype == np.uint8 else _stretched(array))
    if max(picture.size) < 200:
        factor = 200 // max(picture.size) + 1
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    return _png(picture)


def _stretched(array: np.ndarray) -> np.ndarray:
    """Numbers as shades: the smallest is black, the largest is white."""
    numbers: Any = np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0)
    low, high = numbers.min(), numbers.max()
    shades: np.ndarray = ((numbers - low) / (high - low or 1) * 255).astype(np.uint8)
    return shades


def thumbnail(data: bytes) -> bytes | None:
    """A small PNG of the picture in a file, None if it is none. Raises ServerError for one with too many pixels."""
    picture = opened(data)
    if picture is None:
        return None
    try:
        small = ImageOps.exif_transpose(picture).convert("RGB")
        small.thumbnail((320, 240))
    except (OSError, ValueError, SyntaxError):
        return None
    return _png(small)


def _png(picture: Image.Image) -> bytes:
    target = io.BytesIO()
    picture.save(target, "PNG")
    return target.getvalue()
