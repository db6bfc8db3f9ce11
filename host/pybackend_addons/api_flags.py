"""The flags of further APIs: rows of :mod:`pybackend.plugins`.

They are apart, because they are read before the web stack is imported.
"""

import argparse
from collections.abc import Mapping, Sequence

from pybackend.flag import Flag, FlagOwner, switch
from pybackend.settings import Settings


class ApiFlag:
    """A flag that says whether an API is served."""

    def __init__(self, name: str, flag: Flag) -> None:
        self._name = name
        self._flag = flag

    @property
    def flags(self) -> Mapping[str, Sequence[Flag]]:
        """By the heading of their group."""
        return {"endpoints": (self._flag,)}

    def decide(self, settings: Settings, given: argparse.Namespace, _environ: Mapping[str, str]) -> Settings:
        """The settings, with the API's name among the extensions if it is served."""
        return settings.with_extension(self._name, True) if vars(given)[self._flag.key] else settings


OPENAI: FlagOwner = ApiFlag(
    "openai",
    switch(
        "--allow-openai",
        "serve OpenAI's API below /v1 on the port of HTTP",
        default=False,
        page="serve [OpenAI's API](openai.md) below `/v1` and `/openai/v1` on the port of HTTP",
    ),
)

MLFLOW: FlagOwner = ApiFlag(
    "mlflow",
    switch(
        "--allow-mlflow",
        "serve /invocations and /ping as MLflow does on the port of HTTP",
        default=False,
        page="serve [`/invocations` and `/ping`](mlflow.md) as `mlflow models serve` does on the port of HTTP",
    ),
)
