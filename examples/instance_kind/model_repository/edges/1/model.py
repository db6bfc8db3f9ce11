"""EDGES = how much each pixel of IMAGE differs from its four neighbours, computed where this instance belongs.

With torch if it is installed, else with numpy.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

try:
    import torch
except ImportError:
    torch = None

KERNEL = np.array([[0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=np.float32)


class TritonPythonModel:
    def initialize(self, args):
        """The server says which device is meant; to use that one and no other is up to the model."""
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        self.device = f"cuda:{device_id}" if kind == "GPU" else "cpu"
        if torch is not None:
            self.kernel = torch.tensor(KERNEL, device=self.device)[None, None]
            self.compute = self.compute_by_torch
        elif kind == "GPU":
            raise pb_utils.TritonModelException("a GPU instance of this model needs torch: pip install torch")
        else:
            self.compute = self.compute_by_numpy
        library = "numpy" if torch is None else "torch"
        self.label = f"{args['model_instance_name']} on {self.device} with {library}"
        pb_utils.Logger.log_info(self.label)

    def execute(self, requests):
        label = np.array([self.label], dtype=np.object_)
        responses = []
        for request in requests:
            edges = self.compute(pb_utils.get_input_tensor_by_name(request, "IMAGE"))
            responses.append(pb_utils.InferenceResponse([edges, pb_utils.Tensor("COMPUTED_BY", label)]))
        return responses

    def compute_by_torch(self, tensor):
        image = torch.from_dlpack(tensor).to(self.device)  # no copy, unless to a GPU
        with torch.inference_mode():
            edges = torch.nn.functional.conv2d(image[None, None], self.kernel, padding=1)[0, 0]
        return pb_utils.Tensor.from_dlpack("EDGES", edges.cpu())  # outputs lie in the machine's own memory

    def compute_by_numpy(self, tensor):
        image = np.pad(tensor.as_numpy(), 1)
        rows, columns = tensor.shape()
        edges = np.zeros((rows, columns), dtype=np.float32)
        for row, column in np.argwhere(KERNEL):
            edges += KERNEL[row, column] * image[row : row + rows, column : column + columns]
        return pb_utils.Tensor("EDGES", edges)
