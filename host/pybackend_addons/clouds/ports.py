"""The ports for clouds, as their flags and variables describe them: a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pybackend.errors import ServerError, SettingError
from pybackend.flag import Flag, integer, switch
from pybackend.frontend.http.further_port import FurtherPorts, FurtherService
from pybackend.settings import ApiGroup, FurtherPortSettings, KeyExemption, Settings
from pybackend_addons.clouds.settings import CloudSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pybackend.frontend.access.restrictions import Restrictions
    from pybackend_addons.clouds.application import CloudApp

_ACTIONS = ("infer", "generate", "generate_stream")

_PORT_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_PORT = integer(0, 65535)
_FREE_PORT = "`0` takes a free port and prints it"


def _port_range(text: str) -> tuple[int, int]:
    """Read ``<first>-<last>``."""
    found = _PORT_RANGE.fullmatch(text)
    if found is None or not int(found[1]) <= int(found[2]) <= 65535:
        raise argparse.ArgumentTypeError(f"Got {text}, expected two ports such as 8000-8100")
    return int(found[1]), int(found[2])


# The formatter would put each column of a row on a separate line.
# fmt: off
_FLAGS = (
    switch("--allow-sagemaker", "serve /ping and /invocations for Amazon SageMaker", default=False,
           page="serve `/ping` and `/invocations` for [Amazon SageMaker](deploy.md#sagemaker)"),
    Flag("--sagemaker-port", "PORT", "0 takes a free port", read=_PORT, default=8080, page=_FREE_PORT),
    Flag("--sagemaker-safe-port-range", "FIRST-LAST",
         "refuse to start if another endpoint's port is outside of this range",
         read=_port_range, default_text="any port"),
    switch("--allow-vertex-ai", "serve Vertex AI; true if AIP_MODE is PREDICTION", default=False, depends=True,
           page="serve [Vertex AI](deploy.md#vertex-ai); `true` if `AIP_MODE` is `PREDICTION`"),
    Flag("--vertex-ai-port", "PORT", "0 takes a free port", read=_PORT, default_text="AIP_HTTP_PORT, else 8080",
         page=_FREE_PORT),
    Flag("--vertex-ai-default-model", "NAME", "model that answers predictions", default="", default_text="the only one"),
)
# fmt: on


class Clouds:
    """See :class:`FurtherPorts`."""

    flags: Mapping[str, Sequence[Flag]] = {"clouds": _FLAGS}

    def decide(self, settings: Settings, _given: argparse.Namespace, _environ: Mapping[str, str]) -> Settings:
        """The ports are in the settings already."""
        return settings

    def ports(self, given: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[FurtherPortSettings]:
        clouds = [_sagemaker(given, environ)] if given.allow_sagemaker else []
        if _serves_vertex_ai(given, environ):
            clouds.append(_vertex_ai(given, environ))
        return [
            FurtherPortSettings(
                "clouds",
                cloud.name,
                cloud.port,
                cloud.health_route,
                cloud.exemption,
                replaces_v2=bool(cloud.redirect_header),  # Vertex AI calls its own routes only
                own=cloud,
            )
            for cloud in clouds
        ]

    def repository(self, given: argparse.Namespace, environ: Mapping[str, str]) -> str:
        return environ.get("AIP_STORAGE_URI", "") if _serves_vertex_ai(given, environ) else ""

    def check(self, given: argparse.Namespace, services: Sequence[FurtherService]) -> None:
        """Refuse a service whose port is outside of ``--sagemaker-safe-port-range``."""
        if given.sagemaker_safe_port_range is None:
            return
        first, last = given.sagemaker_safe_port_range
        for name, served, _, port in services:
            if served and not first <= port <= last:
                called = {"gRPC": "GRPC", "Metrics": "metrics"}.get(name, name)  # as the reference's texts write them
                raise ServerError(
                    f"The server cannot listen to {called} requests at port {port}, allowed port range is [{first}, {last}]"
                )

    def application(
        self,
        port: FurtherPortSettings,
        v2: FastAPI,
        restrictions: Restrictions,
        group_of: Callable[[str], ApiGroup | None],
        only_model: Callable[[], str | None],
    ) -> CloudApp:
        # Late: flags are read before the web stack is imported.
        from pybackend_addons.clouds.application import CloudApp

        assert isinstance(port.own, CloudSettings)
        return CloudApp(port.own, v2, restrictions, group_of, only_model)


CLOUDS: FurtherPorts = Clouds()


def _serves_vertex_ai(given: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    if given.allow_vertex_ai is None:
        return environ.get("AIP_MODE") == "PREDICTION"
    return bool(given.allow_vertex_ai)


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
            raise SettingError(
                f"Vertex AI sets the variable {variable} to a path such as /predict: set it, or leave out "
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
        raise SettingError(f"the variable AIP_HTTP_PORT is {text}, which is no port: set it to one such as 8080.")
    return int(text)


def _choice(environ: Mapping[str, str], variable: str, *choices: str) -> str:
    """The value of a variable, the first choice if it is not set."""
    value = environ.get(variable) or choices[0]
    if value not in choices:
        raise SettingError(f"the variable {variable} is {value}: set it to {', '.join(choices[:-1])} or {choices[-1]}.")
    return value
