"""The page that documents the routes for a browser. Its scripts are files of this machine, so it works offline."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

PAGE = "/docs"

_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
_ONLY_OURS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:"
}


def add(app: FastAPI) -> None:
    """Add the page and its files. Addresses are relative, so that it works behind a proxy with a path prefix."""
    directory = _directory()
    script, style, icon = (f"{PAGE[1:]}/{name}" for name in _FILES)

    async def page(_request: Request) -> Response:
        # validatorUrl: otherwise Swagger UI sends the document's address to a service on the internet.
        document = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url=icon,
            swagger_ui_parameters={"validatorUrl": None},
        )
        document.headers.update(_ONLY_OURS)
        return document

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            raise HTTPException(404, "Not Found")
        return FileResponse(directory / name, media_type=_FILES[name])

    app.get(PAGE, include_in_schema=False, response_model=None)(page)
    app.get(f"{PAGE}/{{name}}", include_in_schema=False, response_model=None)(file)


def _directory() -> Path:
    """Where the package fastapi-offline has Swagger UI. The package is not imported: only its files are needed."""
    package = find_spec("fastapi_offline")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "static"
