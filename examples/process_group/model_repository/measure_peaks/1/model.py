"""HEIGHTS = how high SIGNAL is at PLACES, in parts of the highest of them."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            signal = pb_utils.get_input_tensor_by_name(request, "SIGNAL").as_numpy()
            places = pb_utils.get_input_tensor_by_name(request, "PLACES").as_numpy()
            heights = signal[places]
            # `heights /= ...` is fine, because it is a new array. `signal /= ...` is not: large inputs are read-only in
            # a group.
            if len(heights):
                heights /= heights.max()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("HEIGHTS", heights)]))
        return responses
