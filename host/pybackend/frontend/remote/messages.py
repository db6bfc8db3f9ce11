"""What crosses between the engine's process and a front end's: msgspec checks every message while it is decoded.

A message is a struct on its way as an array: its tag, then its fields. Numbers have bounds, so that nothing behind the decoder
meets one that does not fit.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from pybackend.frontend.remote import control
from pybackend.frontend.remote.channel import decoder

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Open(Struct, array_like=True, frozen=True, gc=False, tag=1):
    """To the engine: tell me which version answers requests for this name and version now."""

    name: str
    version: str


class Cancel(Struct, array_like=True, frozen=True, gc=False, tag=3):
    """To the engine: nobody waits for this request any more."""

    ticket: Natural


class Closed(Struct, array_like=True, frozen=True, gc=False, tag=34):
    """To a front end: this version answers no more, or not all requests; ask again."""

    handle: Natural


# Tags: 1 to 31 are of the data path to the engine, 32 to 63 of that to front ends; 64 to 95 of forwarded requests to the engine,
# 96 to 127 of those to front ends.

from_front_end = decoder(Open | Cancel | control.FromFrontEnd)
"""Decodes frames of a front end."""

from_engine = decoder(Closed | control.FromEngine)
"""Decodes frames of the engine."""
