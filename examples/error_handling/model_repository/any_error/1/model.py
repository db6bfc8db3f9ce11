"""Answers with an error of the kind that CODE names."""

import triton_python_backend_utils as pb_utils

CODES = {
    "UNKNOWN": pb_utils.TritonError.UNKNOWN,
    "INTERNAL": pb_utils.TritonError.INTERNAL,
    "NOT_FOUND": pb_utils.TritonError.NOT_FOUND,
    "INVALID_ARG": pb_utils.TritonError.INVALID_ARG,
    "UNAVAILABLE": pb_utils.TritonError.UNAVAILABLE,
    "UNSUPPORTED": pb_utils.TritonError.UNSUPPORTED,
    "ALREADY_EXISTS": pb_utils.TritonError.ALREADY_EXISTS,
    "CANCELLED": pb_utils.TritonError.CANCELLED,
}


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=self.error(request)) for request in requests]

    def error(self, request):
        code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode("utf-8")
        if code not in CODES:
            return pb_utils.TritonError(f"CODE is one of {', '.join(CODES)}", pb_utils.TritonError.INVALID_ARG)
        return pb_utils.TritonError(f"an error of kind {code}", CODES[code])
