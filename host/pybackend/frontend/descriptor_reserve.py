"""Descriptors reserved for the server, to restart processes and grow tensor memory however many clients connect."""

from __future__ import annotations

import resource

LARGEST_RESERVE = 4096
"""More would be useless: an instance takes about five descriptors, and some for its tensors."""

RESERVED_PART = 4
"""The fraction of descriptors that is reserved, as a divisor."""


def is_reserved(descriptor: int) -> bool:
    """Whether a client's connection has a descriptor from the reserve.

    The system assigns the lowest free descriptor: if that is a high one, all below it are in use.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(LARGEST_RESERVE, limit // RESERVED_PART)
