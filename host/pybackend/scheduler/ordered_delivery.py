"""Sends responses in the order of their requests, even if they are ready in another order."""

from collections import OrderedDict, deque

from pybackend.inference.pending import PendingRequest, ResponsePath, guarded
from pybackend.inference.response import InferenceResponse


class OrderedDelivery:
    """A stage of the response path. It keeps any number of lines, each in its own order."""

    def __init__(self, pass_on: ResponsePath) -> None:
        self.pass_on = guarded(pass_on)
        self.lines: dict[PendingRequest, DeliveryLine] = {}
        """The line of each request that is in one; the lines update it."""

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Pass a response on, or hold it back until all earlier requests are answered."""
        line = self.lines.get(pending)
        if line is None:
            self.pass_on(pending, response)
        else:
            line.on_response(pending, response)


class DeliveryLine:
    """Requests that are answered one after another. Each stays in the line until its final response is passed on."""

    def __init__(self, delivery: OrderedDelivery) -> None:
        self._delivery = delivery
        self._held: OrderedDict[PendingRequest, deque[InferenceResponse]] = OrderedDict()
        """The responses held back for each request, by request."""

    def add(self, pending: PendingRequest) -> None:
        """Send this request's responses after those of all requests in the line."""
        self._held[pending] = deque()
        self._delivery.lines[pending] = self

    def withdraw(self, pending: PendingRequest) -> None:
        """Remove a request: its held-back responses are dropped, and later requests no longer wait for it."""
        responses = self._held.pop(pending)
        del self._delivery.lines[pending]
        for response in responses:
            response.release()
        self._advance()

    def on_response(self, pending: PendingRequest, response: InferenceResponse) -> None:
        self._held[pending].append(response)
        self._advance()

    def _advance(self) -> None:
        """Pass on all responses whose turn has come; receivers may change the line meanwhile."""
        while self._held:
            first, responses = next(iter(self._held.items()))
            if not responses:
                return
            response = responses.popleft()
            if response.final:
                del self._held[first]
                del self._delivery.lines[first]
            self._delivery.pass_on(first, response)
