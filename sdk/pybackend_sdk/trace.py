"""The trace that a request belongs to."""

from typing import Optional


class InferenceTrace:
    """The trace of a request; pass it to a BLS request so that both are recorded together."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_context",)

    def __init__(self) -> None:
        self._context: Optional[str] = None

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry propagation context, None if the request is not traced."""
        return self._context
