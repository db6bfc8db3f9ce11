"""A request on its way to a stub, and back: small tensors in the frame's tail, others where they lie."""

from __future__ import annotations

from typing import Any

from pybackend.inference.region import RegionInput
from pybackend.inference.request import InferenceRequest
from pybackend.instance.lent_inputs import LentInputs
from pybackend.ipc.channel import StubChannel
from pybackend_wire.messages import TAIL


def encoded_request(channel: StubChannel, lent: LentInputs, request: InferenceRequest) -> tuple[Any, ...]:
    """A request as :class:`pybackend_wire.messages.ExecuteRequest`; its input memory is lent from now on.

    Raises:
        OSError: this process has no descriptor left.
    """
    inputs: list[tuple[Any, ...]] = []
    append_tail = channel.append_tail
    for tensor in request.inputs:
        lease: Any = tensor.lease
        if lease is None:
            data: Any = tensor.data  # the bytes have arrived by now
            inputs.append((tensor.name, tensor.datatype, tensor.shape, TAIL, append_tail(data), len(data)))
        elif type(lease) is RegionInput:
            source, block = lent.regions.source(lease), lease.block
            if block is not None:
                lent.lend(block)  # type: ignore[arg-type]  # models have no other blocks
            offset = 0 if block is None else block.offset
            inputs.append((tensor.name, tensor.datatype, tensor.shape, source, offset, lease.nbytes))
        else:
            lent.lend(lease)
            inputs.append((tensor.name, tensor.datatype, tensor.shape, lease.segment, lease.offset, lease.nbytes))
    outputs: Any = request.requested_outputs
    if request.regions:
        outputs = lent.regions.places(outputs, request.regions)
    options = None
    if request.id or request.has_options:
        trace = request.trace
        if trace is not None:
            trace.begin_execution()
        options = (
            request.id,
            request.correlation_id,
            request.flags,
            request.priority,
            request.timeout_us,
            request.parameters,
            0 if trace is None else trace.number,
            "" if trace is None else trace.model_carrier,
        )
    return (inputs, outputs or None, options)


def taken_back(lent: LentInputs, request: InferenceRequest) -> bool:
    """The input memory of a request is the host's again; False if the stub had already given some of it back."""
    taken = [lent.take_back(lease) for lease in _blocks(request)]
    return all(taken)


def is_lent(lent: LentInputs, request: InferenceRequest) -> bool:
    """True if the stub has not given back any of the request's input memory."""
    return all(lent.has(lease) for lease in _blocks(request))


def share(request: InferenceRequest) -> None:
    """A stub still has the input memory of a request that is executed once more; it gives it back once more, too."""
    for lease in _blocks(request):
        lease.share()


def _blocks(request: InferenceRequest) -> list[Any]:
    """The input memory of a request."""
    leases: list[Any] = [tensor.lease for tensor in request.inputs]
    blocks = (lease.block if type(lease) is RegionInput else lease for lease in leases)
    return [block for block in blocks if block is not None]
