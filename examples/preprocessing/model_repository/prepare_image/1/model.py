"""PIXELS = the picture in FILE, decoded, in shades of grey from 0 to 1, scaled to 16 by 16."""

import re

import numpy as np
import triton_python_backend_utils as pb_utils

SIZE = 16
HEADER = re.compile(rb"P6\s+(?:#[^\n]*\n\s*)*(\d+)\s+(\d+)\s+255\s")


def decode(file):
    """A file in binary PPM format as an array of rows, columns and colours."""
    header = HEADER.match(file)
    if header is None:
        raise ValueError("FILE must be a picture in binary PPM format (P6) with 8 bits for each colour")
    columns, rows = int(header[1]), int(header[2])
    colours = np.frombuffer(file, dtype=np.uint8, offset=header.end())
    if colours.size != rows * columns * 3 or not colours.size:
        raise ValueError(
            f"FILE has {colours.size} bytes of colour, {columns} x {rows} pixels need {rows * columns * 3}"
        )
    return colours.reshape(rows, columns, 3)


def scale(picture):
    """The pixels nearest to those of a picture of 16 by 16."""
    rows, columns = (np.arange(SIZE) * length // SIZE for length in picture.shape[:2])
    return picture[np.ix_(rows, columns)]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        file = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()[0]
        try:
            picture = decode(file)
        except ValueError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        grey = scale(picture).mean(axis=2, dtype=np.float32) / np.float32(255)
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", grey)])
