"""The host of models as a server would have it, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pybackend.frontend.calls.services import EngineRouter, ModelServices
from pybackend.instance.shared_core import SharedCore
from pybackend.model.host import ModelHost
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.repository.host_settings import make_host
from pybackend.settings import Settings


@contextmanager
def model_host(settings: Settings) -> Iterator[ModelHost]:
    """The host for the length of a ``with`` block. It has started no process.

    Raises PybackendError if the code of model processes cannot be staged.
    """
    launcher = StubLauncher(stage_bundle())
    shared_core = SharedCore()
    services = ModelServices(shared_core)
    host = make_host(settings, launcher, services, EngineRouter(services), shared_core)
    try:
        yield host
    finally:
        launcher.close()
        if host.sandbox is not None:
            host.sandbox.close()
