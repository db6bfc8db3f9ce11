"""Outputs that a client wants in its shared memory: what the stub has not written there, the host copies."""

import asyncio
import logging
from collections import deque

from pybackend.errors import InferenceError
from pybackend.inference.region import IN_REGION, RegionOutputs
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, OutputTensor
from pybackend_wire.host_messages import too_small_text

log = logging.getLogger(__name__)


class RegionDelivery:
    """Passes the responses to one request on, in order, with every output in its place."""

    def __init__(self, regions: RegionOutputs, pass_on: OnResponse) -> None:
        self._regions = regions
        self._pass_on = pass_on
        self._waiting: deque[InferenceResponse] = deque()
        self._task: asyncio.Task[None] | None = None

    def on_response(self, response: InferenceResponse) -> None:
        """Write the outputs of a response, large ones in a thread."""
        left = self._left(response)
        if self._task is not None or any(len(output.data) >= LARGE_COPY_BYTES for output in left):
            self._waiting.append(response)
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._write_slowly())
            return
        self._write(response, left)
        self._finish(response)

    def _left(self, response: InferenceResponse) -> list[OutputTensor]:
        """The outputs that are not in their places yet."""
        return [output for output in response.outputs if output.name in self._regions and output.data is not IN_REGION]

    async def _write_slowly(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            response = self._waiting[0]
            await loop.run_in_executor(None, self._write, response, self._left(response))
            self._waiting.popleft()
            try:
                self._finish(response)
            except Exception:  # the other responses must go on
                log.exception("the receiver of a response of model '%s' failed", response.model_name)
                response.release()
        self._task = None

    def _write(self, response: InferenceResponse, outputs: list[OutputTensor]) -> None:
        """Write outputs; a failure turns the response into an error."""
        try:
            for output in outputs:
                part, nbytes = self._regions[output.name], len(output.data)
                if nbytes > part.nbytes:
                    raise InferenceError(too_small_text(output.name, part.nbytes, nbytes))
                part.region.write(part.offset, output.data)
                output.data = IN_REGION
        except InferenceError as error:
            response.error = error
        except Exception:  # the sender waits for an answer
            log.exception("outputs of model '%s' cannot be written to shared memory", response.model_name)
            response.error = InferenceError("internal error: see the server's log")

    def _finish(self, response: InferenceResponse) -> None:
        if response.error is not None:
            response.release()
        self._pass_on(response)
