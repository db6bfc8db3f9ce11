"""What makes two requests the same: everything that a model can see and may depend on."""

from __future__ import annotations

from hashlib import blake2b

from pybackend.inference.request import InferenceRequest

_KEY_BYTES = 24


def cache_key(identity: bytes, request: InferenceRequest) -> bytes:
    """The key of a request whose inputs have their bytes.

    The order of inputs and of requested outputs makes no difference, and neither do id, priority and time-out.

    Args:
        identity: of the model version as it was loaded.
        request: in the shapes that the client sent.
    """
    inputs = sorted(request.inputs, key=lambda tensor: tensor.name)
    sizes = [len(tensor.data) for tensor in inputs]  # type: ignore[arg-type]  # bytes have arrived
    what = (
        [(each.name, each.datatype, tuple(each.shape), size) for each, size in zip(inputs, sizes, strict=True)],
        sorted(request.requested_outputs),
        # repr tells 1 from 1.0 and from True.
        sorted(request.parameters.items()) if request.parameters else None,
        request.correlation_id,
        int(request.flags),
    )
    digest = blake2b(identity, digest_size=_KEY_BYTES)
    text = repr(what).encode("utf-8", "surrogatepass")
    digest.update(len(text).to_bytes(8, "little"))
    digest.update(text)
    for tensor in inputs:
        digest.update(tensor.data)  # type: ignore[arg-type]  # likewise
    return digest.digest()
