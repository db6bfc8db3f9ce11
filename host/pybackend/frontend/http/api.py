"""Further APIs on the port for HTTP: their paths, groups, errors and routes.

Rows of :mod:`pybackend.plugins` are such APIs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from pybackend.frontend.access.groups import http_group
from pybackend.protocol.documents.metadata import encode_error
from pybackend.settings import ApiGroup

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pybackend.frontend.http.infer_frontend import RouteFrontend


class Api(Protocol):
    """An API. Its paths, errors and groups are its own even if it is not served."""

    def owns(self, path: str) -> bool:
        """Whether errors of a path have this API's form."""
        ...

    def group_of(self, path: str) -> ApiGroup | None:
        """The group of a route, which decides whether a call needs a key or a header.

        None for a path of another API.
        """
        ...

    def error_body(self, message: str, status: int) -> bytes:
        """The body of an error."""
        ...

    def advice(self, *, is_served: bool) -> str:
        """Words behind the reason why a path of its form is not found."""
        ...

    def add_routes(self, app: FastAPI, frontend: RouteFrontend) -> None:
        """Add the routes to an application."""
        ...


class Apis:
    """The APIs beside v2, by their rows' names; ``served`` are the names of those that are served."""

    def __init__(self, known: Mapping[str, Api] | None = None, served: Collection[str] = ()) -> None:
        self._known = known or {}
        self._served = served

    def group_of(self, path: str) -> ApiGroup | None:
        """The group of a route; None for a path that belongs to none.

        The path is decoded, without the query. A line break at its end is ignored, as the router ignores it.
        """
        path = path.removesuffix("\n")
        for api in self._known.values():
            group = api.group_of(path)
            if group is not None:
                return group
        return http_group(path)

    def error_body(self, path: str, message: str, status: int) -> bytes:
        """The body of an error, in the form of the API to which a path belongs."""
        for api in self._known.values():
            if api.owns(path):
                return api.error_body(message, status)
        return encode_error(message)

    def advice(self, path: str) -> str | None:
        """Words behind the reason why a path is not found; None if it is of no further API."""
        found = next(((name, api) for name, api in self._known.items() if api.owns(path)), None)
        return None if found is None else found[1].advice(is_served=found[0] in self._served)

    def add_routes(self, app: FastAPI, frontend: RouteFrontend) -> None:
        """Add the routes of the APIs that are served.

        Raises ValueError for a route without a group: nobody could restrict it.
        """
        before = len(app.routes)
        for name, api in self._known.items():
            if name in self._served:
                api.add_routes(app, frontend)
        for path in [getattr(route, "path", "") for route in app.routes[before:]]:
            if self.group_of(path) is None:
                raise ValueError(f"the route {path} has no group, so that neither keys nor restrictions could guard it")
