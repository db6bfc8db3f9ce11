"""The cache in a Redis server, which several servers may share and which outlives them. Needs the extra ``redis``."""

import asyncio
import logging
import time
from collections.abc import Mapping
from math import prod

import msgspec

from pybackend.errors import ServerError
from pybackend.model.cache.kind import MOST, CacheKind
from pybackend.model.cache.response_cache import CachedResponse, ResponseCache
from pybackend.observability.log_lines import one_line
from pybackend_wire.bytes_tensor import element_problem
from pybackend_wire.dtypes import ITEMSIZE
from pybackend_wire.installation import install_command

log = logging.getLogger(__name__)

_LARGE_BYTES = 256 * 1024
"""An entry above this size is decoded and checked in a thread."""

_LARGEST_BYTES = 512 * 1024 * 1024
"""Redis's limit on the size of a value."""

_PREFIX = b"pybackend:response:"

_DEFAULT_TIMEOUT_MS = 1000
_SILENCE_S = 10
"""Time between two log lines about an unreachable server: every request would log one."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CachedResponse).decode


class RedisCache(ResponseCache):
    """Responses in Redis. Any failure there counts as a miss, and the log reports it.

    Raises ServerError: Redis's client is not installed.

    The time-outs among the options are in milliseconds; ``pool_size`` is the number of connections.
    """

    is_here = False
    stable_keys = True

    def __init__(self, options: Mapping[str, str]) -> None:
        try:
            from redis import asyncio as redis
            from redis.exceptions import AuthenticationError, RedisError
        except ImportError:
            raise ServerError(
                f"--cache-config=redis needs Redis's client, which is not installed: {install_command('redis')}"
            ) from None
        self._place = f"{options['host']}:{options['port']}"
        self._errors = (RedisError, OSError, TimeoutError)
        self._refusal = AuthenticationError  # the credentials are missing or wrong
        pool = redis.BlockingConnectionPool(
            host=options["host"],
            port=int(options["port"]),
            username=options.get("user"),
            password=options.get("password"),
            db=int(options.get("db", 0)),
            socket_connect_timeout=_seconds(options, "connect_timeout"),
            socket_timeout=_seconds(options, "socket_timeout"),
            max_connections=int(options.get("pool_size", 1)),
            timeout=_seconds(options, "wait_timeout"),
        )
        self._redis = redis.Redis(connection_pool=pool)
        self._insertions: set[asyncio.Task[None]] = set()
        self._silent_until_s = 0.0

    async def open(self) -> None:
        try:
            await self._redis.ping()
        except self._errors as error:
            await self._redis.aclose()
            advice = (
                ". Set TRITONCACHE_REDIS_PASSWORD, and TRITONCACHE_REDIS_USERNAME if it has users"
                if isinstance(error, self._refusal)
                else ""
            )
            text = str(error).rstrip(".")
            raise ServerError(f"the response cache at {self._place} cannot be used: {text}{advice}") from None

    async def close(self) -> None:
        await asyncio.gather(*self._insertions)
        await self._redis.aclose()

    def get(self, key: bytes) -> CachedResponse | None:
        return None

    async def look_up(self, key: bytes) -> CachedResponse | None:
        try:
            found = await self._redis.get(_PREFIX + key.hex().encode())
            if not isinstance(found, bytes):
                return None
            return await asyncio.to_thread(_response, found) if len(found) > _LARGE_BYTES else _response(found)
        except Exception as error:  # noqa: BLE001  whatever others have written there, the request is executed
            self._complain(error)
            return None

    def takes(self, nbytes: int) -> bool:
        return nbytes <= _LARGEST_BYTES

    def put(self, key: bytes, response: CachedResponse) -> None:
        task = asyncio.get_running_loop().create_task(self._insert(key, response))
        self._insertions.add(task)
        task.add_done_callback(self._insertions.discard)

    async def _insert(self, key: bytes, response: CachedResponse) -> None:
        try:
            await self._redis.set(_PREFIX + key.hex().encode(), _encode(response))
        except Exception as error:  # noqa: BLE001  whatever the server there has answered
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + _SILENCE_S
            log.warning("The response cache at %s failed; requests are executed instead: %s", self._place, error)


def _seconds(options: Mapping[str, str], key: str) -> float:
    return int(options.get(key, _DEFAULT_TIMEOUT_MS)) / 1000


def _response(found: bytes) -> CachedResponse:
    """Decode an entry, and check what encoders rely on: anybody who may write to Redis can have written it."""
    entry = _decode(found)
    for each in entry.outputs:
        count, problem = prod(each.shape), ""
        if each.datatype == "BYTES":
            problem = _elements_problem(each.data, count)
        elif len(each.data) != count * ITEMSIZE.get(each.datatype, -1):
            problem = f"{len(each.data)} bytes for {each.datatype[:10]} {list(each.shape)[:10]}"
        if problem:
            raise ValueError(f"an entry's output '{one_line(each.name[:100])}' has {problem}")
    return entry


def _elements_problem(data: bytes, count: int) -> str:
    checking = element_problem(data, count, "in a BYTES tensor")
    while True:
        try:
            next(checking)
        except StopIteration as end:
            return str(end.value)


REDIS = CacheKind(
    settings={
        "host": None,
        "port": (1, 65535),
        "user": None,
        "password": None,
        "db": (0, MOST),
        "connect_timeout": (0, MOST),
        "socket_timeout": (0, MOST),
        "pool_size": (1, 1024),
        "wait_timeout": (0, MOST),
    },
    required=("host", "port"),
    variables={"user": "TRITONCACHE_REDIS_USERNAME", "password": "TRITONCACHE_REDIS_PASSWORD"},
    make=RedisCache,
)
