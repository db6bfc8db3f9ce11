"""Ports beside those of HTTP, gRPC and metrics. Rows of :mod:`pybackend.plugins` open such ports."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pybackend.flag import FlagOwner
from pybackend.settings import ApiGroup, FurtherPortSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pybackend.frontend.access.restrictions import Restrictions


class FurtherService(NamedTuple):
    """A port of the server, as the flags describe it."""

    name: str
    is_served: bool
    address: str
    port: int


class FurtherPorts(FlagOwner, Protocol):
    """Ports that flags open."""

    def ports(self, given: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[FurtherPortSettings]:
        """The ports. Raises ServerError if flags or variables contradict each other."""
        ...

    def repository(self, given: argparse.Namespace, environ: Mapping[str, str]) -> str:
        """The repository of a server whose flags name none; ``""`` for none."""
        ...

    def check(self, given: argparse.Namespace, services: Sequence[FurtherService]) -> None:
        """Raises ServerError: a port is one that the server may not have there."""
        ...

    def application(
        self,
        port: FurtherPortSettings,
        v2: FastAPI,
        restrictions: Restrictions,
        group_of: Callable[[str], ApiGroup | None],
        only_model: Callable[[], str | None],
    ) -> Any:
        """The ASGI application of a port.

        The restrictions of the port for HTTP hold for routes of ``v2`` that a request names. ``only_model`` gives the
        name of the server's only model, None if there are none or several.
        """
        ...
