"""Full names of models: they tell apart models that have the same name in several repositories.

A server with ``--model-namespacing=true`` treats each repository as a namespace. Its models are known to it by
``<namespace>::<name>``; on any other server, and for a model that came with a load request, the full name is the name.
"""

from __future__ import annotations

SEPARATOR = "::"
"""Between the namespace and the model's name."""


def full_name(namespace: str, name: str) -> str:
    """The full name of a model; its name if the namespace is ``""``."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name
