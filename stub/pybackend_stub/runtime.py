"""What the SDK's classes reach when they run inside a stub: the host, by way of the channel."""

from contextlib import suppress
from typing import TYPE_CHECKING

from pybackend_sdk.runtime import UnavailableRuntime
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_wire.messages import StubMessage

if TYPE_CHECKING:
    from pybackend_sdk.logger import Logger
    from pybackend_sdk.request import InferenceRequest


class StubRuntime(UnavailableRuntime):
    """The services of the host that a model can use through ``pb_utils``."""

    reason = "This release of the server does not offer it yet."

    def __init__(self, channel: HostChannel, model_directory: str) -> None:
        self._channel = channel
        self.model_directory = model_directory

    def is_cancelled(self, request: "InferenceRequest") -> bool:
        """Always False: what has begun is not cancelled, and what was cancelled before is never begun."""
        return False

    def log(self, level: "Logger.LogLevel", file: str, line: int, message: str) -> None:
        """Hand a line to the host's log, which decides whether it is wanted."""
        with suppress(HostGone):  # the main thread ends the process when it reads the end of file
            self._channel.send([(StubMessage.LOG, int(level), file, line, shortened(message, MOST_TEXT))])
