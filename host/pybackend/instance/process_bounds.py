"""What ends the life of a process that works: too much memory ends it at once, and wear has a new one take its place."""

import logging
import random

from pybackend.instance.in_flight import ExecutionsInFlight
from pybackend.modelconfig.options import ModelOptions
from pybackend.sandbox.options import MIB

log = logging.getLogger(__name__)


class ProcessBounds:
    """The bounds of one process of an instance, from the end of its start on."""

    def __init__(self, name: str, executions: ExecutionsInFlight, options: ModelOptions) -> None:
        self._executions = executions
        self._limit = options.process_memory
        # Processes that have started together need not be renewed together.
        most = options.restart_after_requests
        self._most_requests = most + random.randint(0, options.restart_jitter) if most else 0  # noqa: S311  no secret
        self._most_bytes = options.restart_at_memory_bytes
        if self._most_bytes and self._memory_bytes >= self._most_bytes:
            log.warning(
                "instance '%s' has %d MB of memory at its start, so RESTART_AT_MEMORY_MB, which is %d, has no effect: raise it",
                name,
                _megabytes(self._memory_bytes),
                self._most_bytes // MIB,
            )
            self._most_bytes = 0

    @property
    def _memory_bytes(self) -> int:
        session = self._executions.session
        return 0 if session is None else session.process.own_memory_bytes

    @property
    def excess(self) -> str:
        """By how much it is beyond its limit of memory, completing "the process ..."; empty if it is not."""
        limit = self._limit
        if limit is None:
            return ""
        nbytes = self._memory_bytes
        if nbytes <= limit.nbytes:
            return ""
        return f"used {_megabytes(nbytes)} MB of memory, more than its limit of {_megabytes(limit.nbytes)} MB ({limit.option})"

    @property
    def wear(self) -> str:
        """Why a new process should take its place, completing "the process ..."; empty if it should not."""
        count = self._executions.request_count
        if 0 < self._most_requests <= count:
            return f"has had {count} request{'s' if count > 1 else ''} (RESTART_AFTER_REQUESTS)"
        if self._most_bytes:
            nbytes = self._memory_bytes
            if nbytes >= self._most_bytes:
                return f"has {_megabytes(nbytes)} MB of memory (RESTART_AT_MEMORY_MB)"
        return ""


def _megabytes(nbytes: int) -> int:
    return -(-nbytes // MIB)
