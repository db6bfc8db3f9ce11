"""Answers requests from the response cache, for models that enable ``response_cache``.

Placed between a model's entry point and its scheduler. A request whose answer is cached is answered on the next loop
turn and never queued; responses to all other requests are copied into the cache as they are sent.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Iterable
from hashlib import blake2b

from pybackend.author_files import FileRefused, read_beneath, read_regular
from pybackend.errors import InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest, ResponsePath, to_sender
from pybackend.inference.response import InferenceResponse
from pybackend.model.cache.response_cache import CachedResponse, ResponseCache, cache_key, copy_of, weight_bytes
from pybackend.model.host import ModelHost
from pybackend.model.latencies import FirstResponses, LatencySummaries, first_response_bounds_ms
from pybackend.model.outcomes import RequestOutcomes
from pybackend.model.source import ModelSource
from pybackend.modelconfig.schema import ModelConfig

log = logging.getLogger(__name__)

_MOST_CODE_BYTES = 64 * 1024 * 1024
"""Limit on the size of a model file."""

LARGE_KEY_BYTES = 1024 * 1024
"""Requests of this size and more are hashed in another thread: each would block the event loop for 1 ms or more."""


class CachedAnswers:
    """One version's use of the cache, and a stage of the response path; for the digest, see :meth:`renew`."""

    def __init__(self, cache: ResponseCache, digest: bytes, requests: RequestOutcomes, pass_on: ResponsePath) -> None:
        self._cache = cache
        self._requests = requests
        self._pass_on = pass_on
        self._keys: dict[PendingRequest, bytes] = {}
        """The cache keys of executing requests."""
        self._loop = asyncio.get_running_loop()
        self._looked_up: set[PendingRequest] = set()
        self._lookups: set[asyncio.Task[None]] = set()
        self.renew(digest)

    def renew(self, digest: bytes) -> None:
        """From now on, use only answers that were stored under the same digest; see :func:`version_digest`.

        It is empty if servers do not share the cache: then no earlier answer is used.
        """
        self._identity = digest or os.urandom(16)

    def submit(self, pending: PendingRequest) -> None:
        """Answer a request from the cache in a later loop turn, or have it executed."""
        nbytes = sum(len(each.data) for each in pending.request.inputs)  # type: ignore[arg-type,misc]  # bytes are there
        if nbytes > LARGE_KEY_BYTES or not self._cache.is_here:
            self._looked_up.add(pending)
            task = self._loop.create_task(self._look_up(pending, self._identity))
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
        """True from the start of a request's lookup until it is answered or enqueued; no scheduler holds it."""
        return pending in self._looked_up

    async def finish(self) -> None:
        """Wait for the running lookups."""
        await asyncio.gather(*self._lookups)

    async def _look_up(self, pending: PendingRequest, identity: bytes) -> None:
        """The slow lookup. A request cancelled meanwhile is answered afterwards, because its bytes are being read."""
        began_ns = time.monotonic_ns()
        key = await self._loop.run_in_executor(None, cache_key, identity, pending.request)
        found = await self._cache.look_up(key)
        self._count(began_ns, found)
        if found is not None or pending.cancelled:
            self._answer(pending, found)
            return
        self._looked_up.remove(pending)
        try:
            self._execute(pending, key)
        except InferenceError as error:
            self._requests.on_refused([pending], error)

    def _answer(self, pending: PendingRequest, found: CachedResponse | None) -> None:
        self._looked_up.remove(pending)
        if pending.cancelled or found is None:
            self._requests.on_dropped(pending)
            return
        request = pending.request
        response = InferenceResponse(request.model_name, self._requests.version, request.id)
        found.fill(response)
        self._requests.on_hit(pending, response)

    def _execute(self, pending: PendingRequest, key: bytes) -> None:
        self._keys[pending] = key
        try:
            self._requests.enqueue(pending)
        except BaseException:  # whatever the reason, there will be no response to store
            self._keys.pop(pending, None)
            raise

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Copy a response into the cache if it is the complete answer to an executed request, and pass it on."""
        if response.final:
            key = self._keys.pop(pending, None)
            if key is not None and response.error is None and not response.empty:
                self._keep(key, response)
        self._pass_on(pending, response)

    def _keep(self, key: bytes, response: InferenceResponse) -> None:
        began_ns = time.monotonic_ns()
        try:
            if self._cache.takes(weight_bytes(response)):
                self._cache.put(key, copy_of(response))
        except Exception:  # the client gets its answer even if the copy fails
            log.exception("a response of model '%s' cannot be cached", response.model_name)
        self._requests.statistics.cache_miss_ns += time.monotonic_ns() - began_ns

    def _count(self, began_ns: int, found: CachedResponse | None) -> None:
        statistics, now_ns = self._requests.statistics, time.monotonic_ns()
        took_ns, summaries = now_ns - began_ns, statistics.summaries
        if found is None:
            statistics.cache_miss_count += 1
            statistics.cache_miss_ns += took_ns
        else:
            statistics.cache_hit_ns += took_ns
        if summaries is not None:
            (summaries.cache_miss if found is None else summaries.cache_hit).add(took_ns, now_ns)


def response_path(
    host: ModelHost, config: ModelConfig, digest: bytes, requests: RequestOutcomes
) -> tuple[CachedAnswers | None, ResponsePath]:
    """The cached answers, None if all requests must be executed; and the path through what every kind of model has.

    That is the cache, the histogram of latencies, and the limit on queued bytes.
    """
    path: ResponsePath = to_sender if host.queued_bytes is None else host.queued_bytes.on_response
    statistics = requests.statistics
    if host.metrics.summary_latencies:
        statistics.summaries = LatencySummaries()
    if host.metrics.histogram_latencies:
        statistics.first_responses = FirstResponses(first_response_bounds_ms(config))
        path = statistics.first_responses.stage(path)
    if host.cache is None or not config.response_cache_enabled:
        return None, path
    answers = CachedAnswers(host.cache, digest, requests, path)
    return answers, answers.on_response


def warn_without_cache(cache: ResponseCache | None, config: ModelConfig) -> None:
    """Warn that a model wants a cache and the server has none."""
    if cache is None and config.response_cache_enabled:
        text = "the server has no cache, every request is executed: enable one with --cache-config=local,size=BYTES"
        log.warning("model '%s' enables response_cache, but %s (%s)", config.name, text, config.source)


def _code_of(source: ModelSource) -> bytes:
    """The identity of a version's code: its bytes, or random bytes if the file leaves the model's directory."""
    try:
        if source.backend_file is not None:
            return read_regular(source.backend_file, _MOST_CODE_BYTES)
        return read_beneath(
            source.directory, f"{source.version}/{source.config.default_model_filename}", _MOST_CODE_BYTES
        )
    except FileRefused as error:
        if error.errno != errno.EXDEV:
            raise ModelLoadError(f"cannot read {source.model_file}: {error.strerror}") from None
        log.warning(
            "servers do not share responses of model '%s': %s: %s", source.full_name, source.model_file, error.strerror
        )
        return os.urandom(16)
    except OSError as error:
        raise ModelLoadError(f"cannot read {source.model_file}: {error.strerror}") from None


def version_digest(source: ModelSource, config: ModelConfig, parts: Iterable[bytes] = ()) -> bytes:
    """A digest of code and completed configuration, which changes with either and is equal on all servers. Blocking.

    ``parts`` are the digests of an ensemble's models.
    """
    code = parts if config.is_ensemble else [_code_of(source)]
    digest = blake2b(digest_size=16)
    for part in (source.full_name.encode(), b"%d" % source.version, config.to_json().encode(), *code):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
