"""Distributes the requests that name no version over a model's versions, and copies a share of them to a shadow."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.validation import validate
from pybackend.model.model import Model, ModelState, Submit
from pybackend.model.python_model import PythonModel
from pybackend.model.shadow import ShadowCopies
from pybackend.modelconfig.schema import Scheduling
from pybackend.modelconfig.sequences import is_iterative
from pybackend.modelconfig.traffic import TrafficRules

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Share:
    """A version that answers a share of the requests.

    Its credit grows by its weight with each request. The version with the highest credit answers, and pays the sum of
    all weights.
    """

    model: Model
    weight: int
    credit: int = 0


class Traffic:
    """Applies the rules of one model.

    Requests are distributed by smooth weighted round robin: with weights 3 and 1, one request of any four in a row goes
    to the second version. The weight of a version that is not ready is distributed over the others. Without weights,
    the newest ready version answers. A sequence stays on the version on which it began.
    """

    def __init__(self, name: str, rules: TrafficRules) -> None:
        self.rules = rules  # the rules in effect
        self._name = name
        self._shares: list[_Share] = []
        self._newest_first: tuple[Model, ...] = ()
        self._shadow: ShadowCopies | None = None
        self._lacking: set[str] = set()
        self._absent: list[int] = []

    def serve(self, versions: Mapping[int, Model]) -> None:
        """Distribute requests over these versions from now on; ascending by number."""
        rules, earlier = self.rules, {share.model.version: share.credit for share in self._shares}
        shadow = rules.shadow
        shadowing = None if shadow is None else versions.get(shadow.version)
        self._newest_first = tuple(model for model in reversed(list(versions.values())) if model is not shadowing)
        self._shares = [
            _Share(versions[version], weight, earlier.get(str(version), 0))
            for version, weight in rules.weights.items()
            if weight and version in versions
        ]
        named = {*rules.weights, *(() if shadow is None else (shadow.version,))}
        absent = sorted(named.difference(versions)) if versions else []
        if absent != self._absent:
            self._absent = absent
            for version in absent:
                log.warning("model '%s': its traffic rules name version %d, which is not loaded", self._name, version)
        if shadow is None or shadowing is None:
            self._shadow = None
        elif self._shadow is None or self._shadow.model is not shadowing:
            self._shadow = ShadowCopies(shadowing, shadow.percent)

    def next_version(self) -> Model | None:
        """The version that answers the next request; None if no version that may answer is ready.

        Of models with sequences it is only the probable version: :meth:`submit` knows the sequence, and takes the
        share.
        """
        if not self.rules.weights:
            return self.representative()
        if not self._shares:
            return None
        return self._next() if self._chooses_per_request else self.representative()

    @property
    def _chooses_per_request(self) -> bool:
        """True if each request has a share, and not each sequence."""
        if not self._shares:
            return False
        first = self._shares[0].model.config
        return first.scheduling is not Scheduling.SEQUENCE_BATCHING or is_iterative(first)

    def _next(self) -> Model | None:
        """The version that has waited longest for its share."""
        best, lacks = None, False
        for share in self._shares:
            if share.model.state is not ModelState.READY:
                lacks = True
            elif best is None or share.credit + share.weight > best.credit + best.weight:
                best = share
        if lacks or self._lacking:
            self._report_lacking()
        return None if best is None else best.model

    def _pay(self, model: Model) -> None:
        """Take a share for a version."""
        ready, total = self._ready(), 0
        for share in ready:
            share.credit += share.weight
            total += share.weight
        for share in ready:
            if share.model is model:
                share.credit -= total

    def _report_lacking(self) -> None:
        """Log that versions with a weight do not serve, or serve again; once for each change."""
        lacking = {share.model.version for share in self._shares if share.model.state is not ModelState.READY}
        if lacking != self._lacking:
            self._lacking = lacking
            shares = ", ".join(f"version {version} {percent:.3g} %" for version, percent in self.shares.items())
            names = ", ".join(sorted(lacking))
            why = f"version {names} is not ready" if names else "all versions with a weight are ready again"
            text = "model '%s': %s; requests that name no version go to: %s"
            log.warning(text, self._name, why, shares or "no version")

    def representative(self) -> Model | None:
        """The version that stands for all in documents: the ready one with the greatest weight, the newest of equals."""
        ready = [(share.weight, int(share.model.version), share.model) for share in self._ready()]
        if ready:
            return max(ready)[2]
        if self.rules.weights:
            return None
        return next((model for model in self._newest_first if model.state is ModelState.READY), None)

    @property
    def shares(self) -> Mapping[str, float]:
        """The percentage of requests that each version answers now, by version."""
        total = sum(share.weight for share in self._ready())
        if total:
            return {share.model.version: 100 * share.weight / total for share in self._ready()}
        only = self.representative()
        return {} if only is None else {only.version: 100.0}

    def _ready(self) -> list[_Share]:
        return [share for share in self._shares if share.model.state is ModelState.READY]

    def is_shadow(self, model: Model) -> bool:
        """True if a version gets copies of requests and answers nobody."""
        return self._shadow is not None and self._shadow.model is model

    def submit(
        self, submit: Submit, model: Model, request: InferenceRequest, on_response: OnResponse
    ) -> PendingRequest:
        """Queue a request that names no version, and perhaps a copy of it for the shadow.

        It was validated against the version that :meth:`next_version` chose.

        Raises:
            InferenceError: the request is refused, and its memory remains the caller's.
        """
        if self._shares and request.correlation_id and model.config.scheduling is Scheduling.SEQUENCE_BATCHING:
            model = self._moved(request, self._of_sequence(model, request), model)
        if self._chooses_per_request:
            self._pay(model)
        copy = None if self._shadow is None else self._shadow.copy_of(request)
        if copy is None:
            return submit(model, request, on_response)
        try:
            pending = submit(model, request, copy.compared(on_response))
        except BaseException:  # whatever the reason, there is nothing to compare the copy with
            copy.discard()
            raise
        copy.send_soon()
        return pending

    def redirect(
        self, submit: Submit, model: Model, request: InferenceRequest, on_response: OnResponse
    ) -> PendingRequest:
        """Choose a version for a request that was validated against ``model``, and queue it; see :meth:`submit`."""
        return self.submit(submit, self._moved(request, self.next_version() or model, model), request, on_response)

    def _of_sequence(self, model: Model, request: InferenceRequest) -> Model:
        """The version on which a request's sequence runs, or begins."""
        if is_iterative(model.config):
            return model
        ready = (each for each in self._newest_first if each.state is ModelState.READY)
        running = next((each for each in ready if isinstance(each, PythonModel) and each.sequences.has(request)), None)
        if running is not None:
            return running
        chosen = self._next() or model
        self._pay(chosen)
        return chosen

    @staticmethod
    def _moved(request: InferenceRequest, to: Model, model: Model) -> Model:
        """Prepare a request for another version, if it is not the one that it was validated against."""
        if to is not model:
            request.leave()
            request.model_version = to.version
            validate(request, to.signature)
        return to
