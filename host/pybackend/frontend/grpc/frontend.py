"""State shared by all gRPC connections."""

from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.engine.answers import RefusalReason
from pybackend.engine.door import Door
from pybackend.errors import InferenceError
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.grpc.head import CallPolicy, read_metadata, use_of_metadata
from pybackend.frontend.listener import Port
from pybackend.frontend.request_log import RequestLog
from pybackend.protocol.grpc.layouts import MessageLayout, MessageLayouts
from pybackend.protocol.grpc.message import InferMessage, split_message
from pybackend.protocol.grpc.request import decode_in_steps, decode_message, plan_arriving
from pybackend.protocol.grpc.response import LONGEST_HEADER_BYTES, MOST_HEADERS, MessageHeaders
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches
from pybackend.protocol.steps import Steps
from pybackend.recurring import Recurring
from pybackend.settings import GrpcSettings, KeepaliveSettings
from pybackend_http2 import Config, PingRules

PROTOCOL = "grpc"
"""The protocol's name in metrics and logs."""


_DEFAULTS = GrpcSettings()

_Engine_co = TypeVar("_Engine_co", bound=Door, covariant=True)

_TWO_HOURS_S = 7200.0
"""The interval of PINGs that gRPC allows clients without open calls."""


class KnownParts:
    """The recurring parts of requests, in all, and by model version; and of answers."""

    def __init__(self) -> None:
        self.layouts = MessageLayouts()
        self.plans = PlanCaches()
        self.headers: MessageHeaders = Recurring(MOST_HEADERS, LONGEST_HEADER_BYTES)


def _config(keepalive: KeepaliveSettings, policy: CallPolicy | None, *, remembers_heads: bool) -> Config:
    """What clients are offered: large frames and windows, so that a large tensor is not a thousand frames."""
    rules = None
    if keepalive.max_ping_strikes:
        interval_s = keepalive.min_ping_interval_s
        idle_s = interval_s if keepalive.permit_without_calls else max(interval_s, _TWO_HOURS_S)
        rules = PingRules(monotonic, interval_s, idle_s, keepalive.max_ping_strikes)
    return Config(
        max_frame_bytes=1024 * 1024,
        stream_window_bytes=4 * 1024 * 1024,
        ping_rules=rules,
        read_text=partial(read_metadata, policy),
        remembers_heads=remembers_heads,
        use_of=partial(use_of_metadata, policy),
    )


class GrpcFrontend(Port[Any], Generic[_Engine_co]):
    """The front end."""

    def __init__(
        self,
        engine: _Engine_co,
        limits: BodyLimits,
        client_memory: ClientMemory,
        request_log: RequestLog | None = None,
        policy: CallPolicy | None = None,
        settings: GrpcSettings = _DEFAULTS,
        *,
        fast_paths: bool = True,
    ) -> None:
        super().__init__()
        self.settings = settings  # the operator's
        # what the HTTP/2 connections offer their clients
        self.config = _config(settings.keepalive, policy, remembers_heads=fast_paths)
        self.memory = KnownParts() if fast_paths else None  # of recurring messages; None if nothing is remembered
        # beginnings of answers that recur; None if nothing is remembered
        self.headers = None if self.memory is None else self.memory.headers
        self.request_log = RequestLog() if request_log is None else request_log  # records calls for the log
        self.policy = policy  # rules for the heads of calls; None if there are none
        self.engine = engine  # handles the requests
        self.answer_counts = engine.answers[PROTOCOL]  # of the ends of calls, by status
        self.limits = limits  # bounds of messages
        self.client_memory = client_memory  # the account of bytes buffered for clients

    def stop_listening(self) -> None:
        super().stop_listening()
        for connection in list(self.connections):
            connection.leave()

    def forget_heads(self) -> None:
        """Read the heads of further calls again, because the rules for them have changed."""
        for connection in self.connections:
            connection.http2.forget_heads()

    def split(self, message: bytes) -> tuple[InferMessage, MessageLayout | None]:
        """The parts of a small message, and its layout if that was known; see :meth:`MessageLayouts.split`."""
        if self.memory is None:
            return split_message(message, self.limits), None
        return self.memory.layouts.split(message, self.limits)

    def plan(self, message: InferMessage, sender: Sender) -> tuple[ClientAdmission, InferPlan]:
        """The request in the parts of a message, and its admission to the model; an InferenceError if it is refused."""
        admission = self.engine.open(message.model_name, message.model_version, sender)
        memory, signature = self.memory, admission.signature
        plans = None if memory is None else memory.plans.of(signature)
        version, find_region = admission.model_version, self.engine.find_region
        return admission, decode_message(message, signature, version, self.limits, plans, find_region)

    def plan_large(self, message: InferMessage, admission: ClientAdmission, *, arriving: bool) -> Steps[InferPlan]:
        """The request in the parts of a large message, in steps of a few milliseconds.

        An InferenceError if it is refused.

        While its raw tensors are ``arriving``, there is one step.
        """
        signature, version = admission.signature, admission.model_version
        plans = None if self.memory is None else self.memory.plans.of(signature)
        find_region = self.engine.find_region
        if arriving:
            return plan_arriving(message, signature, version, self.limits, plans, find_region)
        return (yield from decode_in_steps(message, signature, version, self.limits, plans, find_region))

    def refused(self, error: InferenceError, address: str, model: str = "") -> None:
        """Count a request that was answered with this error before a model had accepted it."""
        self.engine.refusals.add_error(PROTOCOL, model, error, address)

    def malformed(self, message: str, address: str, reason: RefusalReason = RefusalReason.MALFORMED) -> None:
        """Count bytes that are not HTTP/2, or no gRPC call.

        Or, with another reason, a call that is refused by its head.
        """
        self.engine.refusals.add(PROTOCOL, reason, message, sender=address)
