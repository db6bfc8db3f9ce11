"""MLflow's routes: ``/invocations``, ``/ping``, ``/health`` and ``/version`` as ``mlflow models serve`` has them, and ``invocations`` of each model."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from fastapi import FastAPI, Request, Response

from pybackend import __version__
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http.answer_writer import STATUS
from pybackend.frontend.http.arrival import Arrival, admitted, begin_request
from pybackend.frontend.http.body import RouteLimit
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.http.infer_frontend import RouteFrontend
from pybackend.frontend.http.routes import (
    MODEL,
    VERSION,
    add_route,
    disconnected,
    model_name,
    object_schema,
    written_headers,
)
from pybackend.inference.validation import Checked
from pybackend.protocol.steps import in_turns
from pybackend_addons.mlflow.protocol import MAX_BODY_BYTES, mlflow_error, parse_invocation, predictions

_LIMIT = RouteLimit(MAX_BODY_BYTES, "use /infer with binary tensors")
_JSON, _CSV = "application/json", "text/csv"
_READ_AS_JSON = {_JSON, "application/x-www-form-urlencoded"}  # the second one is what curl says of its -d
_BODY = {
    _JSON: {
        "schema": object_schema(
            dataframe_split={"type": "object"},
            dataframe_records={"type": "array", "items": {"type": "object"}},
            instances={"type": "array"},
            inputs={},
            params={"type": "object"},
        )
    },
    _CSV: {"schema": {"type": "string"}},
}
_ERROR = object_schema(error_code={"type": "string"}, message={"type": "string"})
_ANSWER = {"description": "the predictions", "content": {_JSON: {"schema": object_schema(predictions={})}}}


def add(app: FastAPI, frontend: RouteFrontend) -> None:
    """Add the routes to an application."""

    async def invocations(request: Request) -> Response:
        try:
            is_csv = _is_csv(request.headers.get("content-type", _JSON))
            if is_csv is None:
                message = f"the Content-Type must be {_JSON} or {_CSV}, in UTF-8"
                return Response(message, 415, media_type="text/plain")
            return Response(await _answer(frontend, request, is_csv=is_csv), media_type=_JSON)
        except InferenceError as error:
            status = STATUS[error.code]
            return Response(mlflow_error(error.message, status), status, media_type=_JSON)

    async def ping(_request: Request) -> Response:
        return Response("\n", 200 if await frontend.engine.is_ready() else 503, media_type=_JSON)

    async def version(_request: Request) -> Response:
        return Response(__version__, media_type=_JSON)

    for path in ("/invocations", f"{MODEL}/invocations", f"{VERSION}/invocations"):
        summary = "Predict as MLflow's server does"
        add_route(app, "POST", path, "mlflow", summary, invocations, body=_BODY, answers=_ANSWER, errors=_ERROR)
    for path in ("/ping", "/health"):
        add_route(app, "GET", path, "mlflow", "Should clients send requests?", ping)
    add_route(app, "GET", "/version", "mlflow", "The server's version", version)


def _is_csv(content_type: str) -> bool | None:
    """Whether a body is CSV or JSON; None if it is neither, or no UTF-8."""
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if kind not in {*_READ_AS_JSON, _CSV} or any(
        each not in {"charset=utf-8", 'charset="utf-8"'} for each in parameters
    ):
        return None
    return kind == _CSV


async def _answer(frontend: RouteFrontend, request: Request, *, is_csv: bool) -> bytes:
    with admitted(frontend, request, HTTP_CLIENT, model_name(request) or _only_model(frontend)) as admission:
        forwarded = frontend.forwarded(written_headers(request))
        with closing(Arrival(frontend, request)) as arrival:
            body = await arrival.whole(_LIMIT)
            admission.renew()
            parsed = await in_turns(parse_invocation(body, admission.signature, admission.model_version, is_csv=is_csv))
        begin_request(frontend, request, admission, parsed, forwarded, sends=False)
        response = await admission.infer(parsed, partial(disconnected, request), Checked.HEADER)
    try:
        if response.error is not None:
            raise response.error.again()
        return predictions(response)
    finally:
        response.release()


def _only_model(frontend: RouteFrontend) -> str:
    names = frontend.engine.serving_names
    if len(names) != 1:
        raise InferenceError(
            f"/invocations needs a server with one model, and this one serves {len(names)}: POST "
            "/v2/models/NAME/invocations",
            ErrorCode.INVALID_ARG,
        )
    name: str = names[0]
    return name
