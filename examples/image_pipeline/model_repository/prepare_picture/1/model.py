"""PIXELS = the picture in shades of grey from 0 to 1, scaled to 24 by 24."""

import numpy as np
import triton_python_backend_utils as pb_utils

SIZE = 24


def prepare(picture):
    """The pixels nearest to those of a picture of 24 by 24, grey."""
    rows, columns = (np.arange(SIZE) * length // SIZE for length in picture.shape[:2])
    return picture[np.ix_(rows, columns)].mean(axis=2, dtype=np.float32) / np.float32(255)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        picture = pb_utils.get_input_tensor_by_name(request, "PICTURE").as_numpy()
        if not picture.size:
            error = pb_utils.TritonError("PICTURE is empty", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", prepare(picture))])
