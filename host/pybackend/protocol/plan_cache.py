"""Plans of JSON parts that were seen before: clients that send binary tensors repeat theirs to the byte.

Where: in front of ``infer_request`` on the hot path. A hit saves the parsing and the validation of everything but the
tensors' bytes, which is more than half of what a small request costs the codec.
"""

from __future__ import annotations

from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.protocol.infer_plan import InferPlan

LARGEST_HEADER_BYTES = 4096
MOST_PLANS = 256
"""With the largest header a bound of 1 MB per model; beyond, the cache starts anew."""


class PlanCache:
    """Validated plans of one model, by the bytes of their JSON part."""

    def __init__(self) -> None:
        self._plans: dict[bytes, InferPlan] = {}

    def get(self, header: bytes) -> InferPlan | None:
        """A plan of one's own for this JSON part, its tensors still without bytes; None if it was not seen before."""
        known = self._plans.get(header)
        if known is None:
            return None
        template = known.request
        request = InferenceRequest(template.model_name, template.model_version)
        request.requested_outputs = template.requested_outputs
        request.batch_size = template.batch_size
        inputs = request.inputs
        binary = []
        for tensor, size in known.binary_inputs:
            copy = InputTensor(tensor.name, tensor.datatype, tensor.shape)
            inputs.append(copy)
            binary.append((copy, size))
        return InferPlan(request, binary, known.binary_bytes, known.output_format)

    def put(self, header: bytes, plan: InferPlan) -> None:
        """Remember a validated plan before its tensors get their bytes, if the same JSON part is likely to come again.

        One with an id or parameters is likely to differ each time, and one with data in it is no template. The labels of
        classes change with the parts of an ensemble.
        """
        request = plan.request
        if (
            len(header) > LARGEST_HEADER_BYTES
            or request.id
            or request.has_options
            or plan.output_format.classes
            or len(plan.binary_inputs) != len(request.inputs)
        ):
            return
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        template = InferenceRequest(request.model_name, request.model_version)
        template.requested_outputs = request.requested_outputs
        template.batch_size = request.batch_size
        inputs = [(InputTensor(each.name, each.datatype, each.shape), size) for each, size in plan.binary_inputs]
        self._plans[header] = InferPlan(template, inputs, plan.binary_bytes, plan.output_format)
