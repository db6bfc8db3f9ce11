"""Cache keys: two requests have the same key if everything that a model can see, and may depend on, is equal."""

from __future__ import annotations

from hashlib import blake2b

from pybackend.inference.request import InferenceRequest

_KEY_BYTES = 24


def cache_key(identity: bytes, request: InferenceRequest) -> bytes:
    """The key of a request whose inputs have arrived.

    The order of inputs and of requested outputs does not matter, nor do id, priority and timeout.

    Args:
        request: with shapes as sent by the client.
    """
    inputs = sorted(request.inputs, key=lambda tensor: tensor.name)
    sizes = [len(tensor.data) for tensor in inputs]  # type: ignore[arg-type]  # bytes have arrived
    what = (
        [(each.name, each.datatype, tuple(each.shape), size) for each, size in zip(inputs, sizes, strict=True)],
        sorted(request.requested_outputs),
        # repr distinguishes 1 from 1.0 and from True.
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
