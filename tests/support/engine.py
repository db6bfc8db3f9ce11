"""An engine in this process, with real stubs, for what no front end can ask for yet: batches, unloading, large counts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from pybackend.engine.engine import EngineState, InferenceEngine
from pybackend.environment.environment import Environment
from pybackend.frontend.calls.services import EnsembleDoor, StubCallDispatcher
from pybackend.inference.pending import PendingRequest, QueuedBytes, RequestHolder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.model.cache.response_cache import ResponseCache
from pybackend.model.host import ModelHost
from pybackend.model.model import Model
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher
from pybackend.repository.layout import scan_repositories
from pybackend.repository.remote import RemoteRepositories
from pybackend.repository.repository import ModelRepository
from pybackend.settings import ModelControlMode, ModelSettings
from pybackend_wire.bytes_tensor import decode_elements, encode_elements
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES

MEMORY_LIMIT_BYTES = 1 << 30


@asynccontextmanager
async def engine_on(
    repository: Path,
    *,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    auto_complete: bool = True,
    bundle: Path | None = None,
    python: str = sys.executable,
    explicit: bool = False,
    startup_models: tuple[str, ...] | None = None,
    model_load_count: int = 2,
    finalize_timeout_s: float = 30,
    end_s: float = 10,
    abandoned_limit_s: float | None = None,
    cache: ResponseCache | None = None,
    queued_bytes: QueuedBytes | None = None,
    runtime_places: Sequence[Path] | None = None,
    more_repositories: Sequence[Path] = (),
    remote: RemoteRepositories | None = None,
    namespacing: bool = False,
) -> AsyncIterator[InferenceEngine]:
    """An engine with every model of a repository loaded; unloaded at the end.

    Args:
        repository: the directory of models.
        memory_limit_bytes: for the inputs of each model, and for the outputs of each instance.
        auto_complete: models may complete their configurations.
        bundle: what to start as stubs; the real one if None.
        python: the interpreter that runs the stubs.
        explicit: models may be loaded and unloaded.
        startup_models: the models to load, None for all.
        model_load_count: models that load at the same time.
        finalize_timeout_s: how long ``finalize`` may take when a version is unloaded.
        end_s: how long all models may take at the end.
        abandoned_limit_s: how long a replaced version may execute for nobody.
        cache: for responses, None for none.
        queued_bytes: bounds the bytes of requests, None for no bound.
        runtime_places: where files lie that come with a load; the usual ones if None.
        more_repositories: directories of models beside the first.
        remote: repositories in cloud storage, which are open; None for none.
        namespacing: each repository is a namespace.
    """
    launcher = StubLauncher(bundle or stage_bundle(), Environment(Path(python), python))
    host = ModelHost(
        launcher=launcher,
        settings=ModelSettings(
            control=ModelControlMode.EXPLICIT if explicit else ModelControlMode.NONE,
            startup_models=startup_models,
            load_count=model_load_count,
            auto_complete=auto_complete,
            memory_limit_bytes=memory_limit_bytes,
            exit_timeout_s=finalize_timeout_s,
            abandoned_limit_s=abandoned_limit_s,
        ),
        cache=cache,
        queued_bytes=queued_bytes,
    )
    if runtime_places is not None:
        host = replace(host, runtime_places=runtime_places)
    remote = remote or RemoteRepositories()
    scan = scan_repositories([repository, *more_repositories], (), remote.listings, namespacing=namespacing)
    models = ModelRepository(scan, host, remote)
    engine = InferenceEngine(models, server_id="test", strict_readiness=True)
    services = StubCallDispatcher(engine, models.catalogue)
    engine.repository = models  # what tests look into
    try:
        await models.load_all(services, EnsembleDoor(engine, models.catalogue, services))
        engine.state = EngineState.READY
        yield engine
    finally:
        await models.unload_all(asyncio.get_running_loop().time() + end_s)
        launcher.close()


def services_without_models(launcher: StubLauncher) -> StubCallDispatcher:
    """The services of a server that has no models, for a model or a process beside it."""
    remote = RemoteRepositories()
    models = ModelRepository(scan_repositories([]), ModelHost(launcher=launcher), remote)
    return StubCallDispatcher(InferenceEngine(models, server_id="test", strict_readiness=True), models.catalogue)


def input_tensor(name: str, array: np.ndarray) -> InputTensor:
    """An array as an input; object arrays become BYTES."""
    if array.dtype == object:
        return InputTensor(name, "BYTES", list(array.shape), encode_elements(array.ravel()))
    return InputTensor(name, BY_NUMPY[array.dtype].name, list(array.shape), np.ascontiguousarray(array).tobytes())


def output_array(response: InferenceResponse, name: str) -> np.ndarray:
    """An output as an array of its own; fails if the response is an error."""
    assert response.error is None, response.error
    (tensor,) = [output for output in response.outputs if output.name == name]
    if tensor.datatype == "BYTES":
        return np.array(decode_elements(bytes(tensor.data)), dtype=object).reshape(tensor.shape)
    return np.frombuffer(bytes(tensor.data), DATATYPES[tensor.datatype].numpy).reshape(tensor.shape)


async def execute_batch(model: Model, requests: list[InferenceRequest], instance: int = 0) -> list[InferenceResponse]:
    """Give one execution of several requests to an instance, as a batching scheduler does."""
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[InferenceResponse]] = [loop.create_future() for _ in requests]
    batch = []
    for request, answer in zip(requests, answers, strict=True):
        batch.append(PendingRequest(request, answer.set_result, RequestHolder()))
        model.open_requests.enter(request)
    model.instances[instance].executor.execute(batch)
    return await asyncio.gather(*answers)


async def unload(engine: InferenceEngine, name: str, drain_s: float = 5, finalize_s: float = 5) -> bool:
    """Unload a model's versions, also where clients may not; True if nothing had to be cut short."""
    models = engine.repository.life_cycle.alive(name)
    return all(await asyncio.gather(*(model.unload(drain_s, finalize_s) for model in models)))
