"""A request on its way to a stub, and back: small tensors in the frame's tail, others where they lie."""

from __future__ import annotations

from typing import Any

from pybackend.inference.request import InferenceRequest
from pybackend.instance.lent_inputs import LentInputs
from pybackend.ipc.channel import StubChannel
from pybackend_wire.messages import TAIL


def encoded_request(channel: StubChannel, lent: LentInputs, request: InferenceRequest) -> tuple[Any, ...]:
    """A request as :class:`pybackend_wire.messages.ExecuteRequest`; its input memory is lent from now on.

    Raises:
        OSError: this process has no descriptor left.
    """
    inputs = []
    for tensor in request.inputs:
        lease: Any = tensor.lease
        if lease is None:
            data = tensor.data
            nbytes = len(data)  # type: ignore[arg-type]  # bytes have arrived by now
            offset = channel.append_tail(data, nbytes)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, TAIL, offset, nbytes))
        else:
            lent.lend(lease)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, lease.segment, lease.offset, lease.nbytes))
    options = None
    if request.id or request.has_options:
        options = (
            request.id,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            request.parameters,
        )
    return (inputs, request.requested_outputs or None, options)


def taken_back(lent: LentInputs, request: InferenceRequest) -> bool:
    """The input memory of a request is the host's again; False if the stub had already given some of it back."""
    leases: list[Any] = [tensor.lease for tensor in request.inputs if tensor.lease is not None]
    taken = [lent.take_back(lease) for lease in leases]
    return all(taken)


def is_lent(lent: LentInputs, request: InferenceRequest) -> bool:
    """True if the stub has not given back any of the request's input memory."""
    leases: list[Any] = [tensor.lease for tensor in request.inputs if tensor.lease is not None]
    return all(lent.has(lease) for lease in leases)
