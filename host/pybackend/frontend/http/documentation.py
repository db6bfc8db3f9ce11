"""The OpenAPI document, and the page that shows it in a browser.

The page's scripts are files of this machine, so it works offline.

Beside the routes, the document has a path for each model that serves, with a request that the model takes: a browser
fills in such examples, and what it makes up itself is refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from pybackend.engine.description import ModelDescription
from pybackend.errors import InferenceError
from pybackend.frontend.http.infer_frontend import RouteFrontend

PAGE = "/docs"

_MOST_EXAMPLES, _MOST_ELEMENTS = 100, 4096
"""Limits of the models that have an example, and of the elements of one."""

_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}
_ONLY_OURS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:"
}


class DocumentedApp(FastAPI):
    """An application whose document follows the models."""

    def __init__(self, frontend: RouteFrontend, **options: Any) -> None:
        super().__init__(**options)
        self._frontend = frontend

    def openapi(self) -> dict[str, Any]:
        """The document in its present state."""
        routes = super().openapi()
        port, paths = self._frontend.guard, dict(routes["paths"])
        guard = None if port is None else port.guard
        # Names of models and their tensors may be for some callers only.
        if guard is None or not any(guard.needs(path)[1] for path in ("/v2/models", "/v2/models/-")):
            paths |= self._paths_of_models(paths)
        if guard is None:
            return {**routes, "paths": paths}
        schemes: dict[str, Any] = {}
        secured = {
            path: {method: _secured(operation, guard.needs(path), schemes) for method, operation in operations.items()}
            for path, operations in paths.items()
        }
        components = {**routes.get("components", {}), "securitySchemes": schemes}
        return {**routes, "paths": secured, "components": components} if schemes else {**routes, "paths": paths}

    def _paths_of_models(self, paths: Mapping[str, Any]) -> dict[str, Any]:
        engine, found = self._frontend.engine, {}
        for name in engine.serving_names[:_MOST_EXAMPLES]:
            with suppress(InferenceError):  # it has ended meanwhile
                model = engine.describe(name)
                example = _example(model)
                if example is None:
                    continue
                is_stream = model.document.get("model_transaction_policy", {}).get("decoupled", False)
                route = "generate_stream" if is_stream else "infer"
                operation = {**paths[f"/v2/models/{{model_name}}/{route}"]["post"], "summary": f"Run '{name}'"}
                media = operation["requestBody"]["content"]["application/json"]
                operation["operationId"] = f"run {name}"
                operation["parameters"] = []
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {**media, "example": _flat(example) if is_stream else example}},
                }
                found[f"/v2/models/{quote(name, safe='')}/{route}"] = {"post": operation}
        return found


def _example(model: ModelDescription) -> dict[str, Any] | None:
    """A request that the model takes; None if it would be too long to read."""
    inputs: list[dict[str, Any]] = []
    for tensor in model.signature.inputs.values():
        if tensor.optional:
            continue
        dims = [1] if model.signature.max_batch_size else []
        shape = [*dims, *(max(dim, 1) if dim < 0 else dim for dim in tensor.dims)]
        count = prod(shape)
        if count > _MOST_ELEMENTS:
            return None
        value = {"BYTES": "text", "BOOL": True}.get(tensor.datatype, 1)
        inputs.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "data": [value] * count})
    example: dict[str, Any] = {"inputs": inputs}
    if "sequence_batching" in model.document:
        example["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    return example


def _flat(example: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for the routes of flat JSON."""
    return {tensor["name"]: tensor["data"] for tensor in example["inputs"]}


def _secured(operation: dict[str, Any], needs: tuple[bool, str], schemes: dict[str, Any]) -> dict[str, Any]:
    """An operation with the credentials that it needs, whose schemes are added."""
    key, header = needs
    needed: dict[str, list[str]] = {}
    if key:
        schemes["API key"] = {"type": "http", "scheme": "bearer"}
        needed["API key"] = []
    if header:
        schemes[header] = {"type": "apiKey", "in": "header", "name": header}
        needed[header] = []
    return {**operation, "security": [needed]} if needed else operation


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
