"""An inference request from a client or from another model."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag

from pybackend.inference.region import RegionOutputs
from pybackend.inference.tensor import InputTensor
from pybackend.tracing.request_trace import RequestTrace

ParameterValue = bool | int | float | str


class RequestFlags(IntFlag):
    """Sequence flags, with the values that models see in ``request.flags()``."""

    SEQUENCE_START = 1
    SEQUENCE_END = 2


class InferenceRequest:
    """One request to one model. It owns its inputs' memory until :meth:`release`.

    Attributes:
        model_name: the requested model.
        model_version: decimal version, or ``""`` for the newest ready version.
        id: the client's request id, ``""`` if the client sent none.
        inputs: in the client's order.
        requested_outputs: names in the client's order; empty means every configured output.
        parameters: custom parameters that the model may read; None if there are none.
        correlation_id: sequence id, 0 or ``""`` if the request belongs to no sequence.
        flags: :class:`RequestFlags` bits.
        priority: 1 is the highest; 0 means the model's default.
        timeout_us: the client's timeout in microseconds; 0 means none.
        batch_size: the first dimension for models that batch, otherwise 1 (never 0).
        is_inner: True if a model sent the request while it executed another request.
        queued_ns: ``time.monotonic_ns()`` when the engine accepted the request.
        regions: the destinations of outputs that clients want in shared memory regions; empty if only inputs lie in
            regions, None if no tensor does.
        trace: the record of the request; None if it is not traced.
    """

    __slots__ = (
        "batch_size",
        "correlation_id",
        "flags",
        "id",
        "inputs",
        "is_inner",
        "model_name",
        "model_version",
        "parameters",
        "priority",
        "queued_ns",
        "regions",
        "requested_outputs",
        "timeout_us",
        "trace",
    )

    def __init__(
        self,
        model_name: str,
        model_version: str = "",
        *,
        id: str = "",  # noqa: A002  the protocol's own word
        inputs: list[InputTensor] | None = None,
        requested_outputs: tuple[str, ...] = (),
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.inputs: list[InputTensor] = [] if inputs is None else inputs
        self.requested_outputs = requested_outputs
        self.parameters = parameters
        self.correlation_id: int | str = 0
        self.flags = 0
        self.priority = 0
        self.timeout_us = 0
        self.batch_size = 1
        self.is_inner = False
        self.queued_ns = 0
        self.regions: RegionOutputs | None = None
        self.trace: RequestTrace | None = None

    @property
    def has_options(self) -> bool:
        """True if any option is set that most requests leave at its default."""
        return bool(
            self.parameters
            or self.correlation_id
            or self.flags
            or self.priority
            or self.timeout_us
            or self.trace is not None
        )

    def leave(self) -> None:
        """Copy the inputs out of the memory of the model they were sent to, so that another model can take them."""
        for tensor in self.inputs:
            tensor.leave()

    @property
    def prefix(self) -> str:
        """The prefix of messages about this request."""
        return f"[request id: {self.id or '<id_unknown>'}] "

    def release(self) -> None:
        """Release the inputs' memory; the request's last owner calls this once."""
        for tensor in self.inputs:
            tensor.release()
