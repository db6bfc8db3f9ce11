"""A model's answers that need no execution: requests pass through here if their model has ``response_cache`` enabled.

Where: between a model's door and its scheduler. A request that was answered before is answered on the loop's next turn
and never queued; the response to any other is copied into the cache on its way out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Protocol

from pybackend.cache.entry import CachedResponse, copy_of, weight_bytes
from pybackend.cache.key import cache_key
from pybackend.cache.response_cache import ResponseCache
from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.model.source import ModelSource
from pybackend.model.statistics import ModelStatistics
from pybackend.modelconfig.schema import ModelConfig

log = logging.getLogger(__name__)

LARGE_KEY_BYTES = 1024 * 1024
"""From here on a request is digested in another thread: the event loop would stand still for a millisecond and more."""


class CachedModel(Protocol):
    """The model, as far as its cache cares."""

    version: str
    config: ModelConfig
    digest: bytes
    statistics: ModelStatistics

    def enqueue(self, pending: PendingRequest) -> None:
        """Have a request executed.

        Raises:
            InferenceError: it is not taken.
        """

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """Requests that were taken are not executed after all: answer them."""

    def on_hit(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """A request is answered from the cache."""

    def on_dropped(self, pending: PendingRequest) -> None:
        """A request was cancelled before it was looked up."""


class CachedAnswers:
    """The cache, as one version of a model uses it.

    Args:
        cache: shared with other models.
        identity: tells its answers from those of all other versions, and from its own before it was changed.
        model: executes what is not in the cache.
    """

    def __init__(self, cache: ResponseCache, identity: bytes, model: CachedModel) -> None:
        self._cache = cache
        self._identity = identity
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._looked_up: set[PendingRequest] = set()
        self._lookups: set[asyncio.Task[None]] = set()

    def submit(self, pending: PendingRequest) -> None:
        """Answer a request from the cache, later, or have it executed.

        Raises:
            InferenceError: it is not taken.
        """
        nbytes = sum(len(each.data) for each in pending.request.inputs)  # type: ignore[arg-type,misc]  # bytes are there
        if nbytes > LARGE_KEY_BYTES or not self._cache.is_here:
            self._looked_up.add(pending)
            task = self._loop.create_task(self._look_up(pending))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
            return
        began_ns = time.monotonic_ns()
        key = cache_key(self._identity, pending.request)
        found = self._cache.get(key)
        self._count(began_ns, found)
        if found is None:
            self._execute(pending, key)
        else:
            self._looked_up.add(pending)
            self._loop.call_soon(self._answer, pending, found)

    def concerns(self, pending: PendingRequest) -> bool:
        """True if a request is being looked up, or was and is about to be answered: no scheduler has it."""
        return pending in self._looked_up

    async def finish(self) -> None:
        """Wait for what is being looked up."""
        await asyncio.gather(*self._lookups)

    async def _look_up(self, pending: PendingRequest) -> None:
        """The same for what takes time. What is cancelled meanwhile is answered afterwards: its bytes are being read."""
        began_ns = time.monotonic_ns()
        key = await self._loop.run_in_executor(None, cache_key, self._identity, pending.request)
        found = await self._cache.look_up(key)
        self._count(began_ns, found)
        if found is not None or pending.cancelled:
            self._answer(pending, found)
            return
        self._looked_up.remove(pending)
        try:
            self._execute(pending, key)
        except InferenceError as error:
            self._model.on_refused([pending], error)

    def _answer(self, pending: PendingRequest, found: CachedResponse | None) -> None:
        self._looked_up.remove(pending)
        if pending.cancelled or found is None:
            self._model.on_dropped(pending)
            return
        request = pending.request
        response = InferenceResponse(request.model_name, self._model.version, request.id)
        found.fill(response)
        self._model.on_hit(pending, response)

    def _execute(self, pending: PendingRequest, key: bytes) -> None:
        pending.on_response = partial(self._keep, key, pending.on_response)
        self._model.enqueue(pending)

    def _keep(self, key: bytes, on_response: OnResponse, response: InferenceResponse) -> None:
        if response.error is None and response.final and not response.empty:
            began_ns = time.monotonic_ns()
            try:
                if self._cache.takes(weight_bytes(response)):
                    self._cache.put(key, copy_of(response))
            except Exception:  # the client gets its answer whatever becomes of the copy
                log.exception("a response of model '%s' cannot be cached", response.model_name)
            self._model.statistics.cache_miss_ns += time.monotonic_ns() - began_ns
        on_response(response)

    def _count(self, began_ns: int, found: CachedResponse | None) -> None:
        statistics, took_ns = self._model.statistics, time.monotonic_ns() - began_ns
        if found is None:
            statistics.cache_miss_count += 1
            statistics.cache_miss_ns += took_ns
        else:
            statistics.cache_hit_count += 1
            statistics.cache_hit_ns += took_ns


def cached_answers(cache: ResponseCache | None, model: CachedModel) -> CachedAnswers | None:
    """The cached answers of a version, from now on; None if its requests are all to be executed.

    Those that it gave before are forgotten, unless servers share the cache and its digest is what it was.

    Args:
        cache: the server's, if it has one.
        model: its configuration is finished.
    """
    if cache is None or not model.config.response_cache_enabled:
        return None
    return CachedAnswers(cache, model.digest if cache.stable_keys else os.urandom(16), model)


def warn_without_cache(cache: ResponseCache | None, config: ModelConfig) -> None:
    """Say that a model wants a cache and the server has none."""
    if cache is None and config.response_cache_enabled:
        text = "the server has no cache, every request is executed: --cache-config=local,size=BYTES gives it one"
        log.warning("model '%s' enables response_cache, but %s (%s)", config.name, text, config.source)


def version_digest(source: ModelSource, config: ModelConfig, parts: Iterable[bytes] = ()) -> bytes:
    """What tells a version from all others, and from itself before it was changed, on every server. Blocking.

    Args:
        source: where it lies.
        config: finished.
        parts: the digests of the models that it consists of, if it has no code.
    """
    code = parts if config.is_ensemble else [source.model_file.read_bytes()]
    digest = blake2b(digest_size=16)
    for part in (source.name.encode(), b"%d" % source.version, config.to_json().encode(), *code):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
