import humanize  # from the packed environment
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            sizes = pb_utils.get_input_tensor_by_name(request, "BYTES").as_numpy()
            texts = [humanize.naturalsize(int(size)) for size in sizes]
            output = pb_utils.Tensor("TEXT", np.array(texts, dtype=object))
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
