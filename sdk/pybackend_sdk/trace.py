"""The trace that a request belongs to."""

from typing import Optional


class InferenceTrace:
    """The trace of a request; pass it to a BLS request so that both are recorded together."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_context", "_number")

    def __init__(self) -> None:
        self._number = 0
        self._context: Optional[str] = None

    @classmethod
    def _from_wire(cls, number: int, context: Optional[str]) -> "InferenceTrace":
        """Make the trace of a request that arrived.

        Args:
            number: the server's number of the trace.
            context: how it is continued outside; None if it cannot be.
        """
        trace = cls()
        trace._number, trace._context = number, context
        return trace

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry propagation context, None if the request is not traced with OpenTelemetry.

        It is a JSON object with the fields of W3C trace context: ``traceparent``, and ``tracestate`` if there is one.
        """
        return self._context
