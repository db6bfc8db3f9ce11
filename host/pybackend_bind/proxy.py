"""Refuses imports of ``pytriton.proxy.types`` under this name: there is no proxy here."""

raise ImportError(
    "pybackend_bind has no proxy: a request is pybackend_bind.requests.Request, and a function returns dictionaries of arrays"
)
