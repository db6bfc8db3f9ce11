"""OUTPUT0 = 2 * INPUT0 for up to four rows at once. There is no config.pbtxt: the model describes itself."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        """The same as nobatch_model, but every tensor gets a batch dimension in front of `dims`."""
        config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()  # shape [batch, 4]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", rows * 2)]))
        return responses
