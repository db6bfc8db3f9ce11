"""The flags and variables of the front ends for SageMaker and Vertex AI."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from pybackend.cli.flag_values import add_switch, integer
from pybackend.errors import ServerError
from pybackend.settings import CloudSettings, GrpcSettings, HttpSettings, KeyExemption

_ACTIONS = ("infer", "generate", "generate_stream")
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


def add_cloud_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = serve.add_argument_group("clouds")
    port = integer(0, 65535)
    add_switch(group, "--allow-sagemaker", default=False, text="serve /ping and /invocations for Amazon SageMaker")
    group.add_argument("--sagemaker-port", type=port, default=8080, metavar="PORT", help="0 takes a free port [8080]")
    group.add_argument(
        "--sagemaker-safe-port-range",
        type=_port_range,
        default=None,
        metavar="FIRST-LAST",
        help="refuse to start if another endpoint's port is outside of this range [any port]",
    )
    text = "serve Vertex AI; true if AIP_MODE is PREDICTION"
    add_switch(group, "--allow-vertex-ai", default=False, text=text, depends=True)
    group.add_argument(
        "--vertex-ai-port",
        type=port,
        default=None,
        metavar="PORT",
        help="0 takes a free port [AIP_HTTP_PORT, else 8080]",
    )
    group.add_argument(
        "--vertex-ai-default-model", default="", metavar="NAME", help="model that answers predictions [the only one]"
    )


def _port_range(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None or not int(found[1]) <= int(found[2]) <= 65535:
        raise argparse.ArgumentTypeError(f"Got {text}, expected two ports such as 8000-8100")
    return int(found[1]), int(found[2])


def serves_vertex_ai(given: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """True if the front end for Vertex AI is requested."""
    if given.allow_vertex_ai is None:
        return environ.get("AIP_MODE") == "PREDICTION"
    return bool(given.allow_vertex_ai)


def cloud_settings(given: argparse.Namespace, environ: Mapping[str, str]) -> tuple[CloudSettings, ...]:
    """The front ends that are requested.

    Raises:
        ServerError: a variable is missing or has a wrong value.
    """
    clouds = []
    if given.allow_sagemaker:
        clouds.append(_sagemaker(given, environ))
    if serves_vertex_ai(given, environ):
        clouds.append(_vertex_ai(given, environ))
    return tuple(clouds)


def _sagemaker(given: argparse.Namespace, environ: Mapping[str, str]) -> CloudSettings:
    return CloudSettings(
        name="Sagemaker",
        port=given.sagemaker_port,
        health_route="/ping",
        predict_route="/invocations",
        media_type="application/vnd.sagemaker-triton.binary+json;json-header-size=",
        exemption=KeyExemption.SAGEMAKER,
        health=_choice(environ, "SAGEMAKER_TRITON_PING_MODE", "ready", "live"),
        action=_choice(environ, "SAGEMAKER_TRITON_INFERENCE_TYPE", *_ACTIONS),
        model=environ.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", ""),
        model_source="the variable SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
    )


def _vertex_ai(given: argparse.Namespace, environ: Mapping[str, str]) -> CloudSettings:
    for variable in ("AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"):
        if not environ.get(variable, "").startswith("/"):
            raise ServerError(
                f"Error: Vertex AI sets the variable {variable} to a path such as /predict: set it, or leave out "
                "--allow-vertex-ai."
            )
    return CloudSettings(
        name="Vertex AI",
        port=_vertex_port(environ) if given.vertex_ai_port is None else given.vertex_ai_port,
        health_route=environ["AIP_HEALTH_ROUTE"],
        predict_route=environ["AIP_PREDICT_ROUTE"],
        media_type="application/vnd.vertex-ai-triton.binary+json;json-header-size=",
        exemption=KeyExemption.VERTEX_AI,
        model=given.vertex_ai_default_model,
        model_source="--vertex-ai-default-model",
        redirect_header="x-vertex-ai-triton-redirect",
    )


def _vertex_port(environ: Mapping[str, str]) -> int:
    text = environ.get("AIP_HTTP_PORT", "8080")
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65536):
        raise ServerError(f"Error: the variable AIP_HTTP_PORT is {text}, which is no port: set it to one such as 8080.")
    return int(text)


def _choice(environ: Mapping[str, str], variable: str, *choices: str) -> str:
    """The value of a variable, the first choice if it is not set."""
    value = environ.get(variable) or choices[0]
    if value not in choices:
        raise ServerError(
            f"Error: the variable {variable} is {value}: set it to {', '.join(choices[:-1])} or {choices[-1]}."
        )
    return value


def check_safe_ports(given: argparse.Namespace, http: HttpSettings, grpc: GrpcSettings) -> None:
    """Check the ports of the other endpoints.

    Raises:
        ServerError: one is outside of ``--sagemaker-safe-port-range``.
    """
    if given.sagemaker_safe_port_range is None:
        return
    first, last = given.sagemaker_safe_port_range
    for name, served, port in (
        ("HTTP", http.enabled, http.port),
        ("GRPC", grpc.enabled, grpc.port),
        ("metrics", http.metrics_enabled, http.metrics_port),
    ):
        if served and not first <= port <= last:
            raise ServerError(
                f"The server cannot listen to {name} requests at port {port}, allowed port range is [{first}, {last}]"
            )
